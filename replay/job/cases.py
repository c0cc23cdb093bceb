# pyright: strict
"""Resolve calls written as text, predict them, and measure them on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from opreplay.replay.ir.notation import call_text
from opreplay.replay.ir.sizes import need_of
from opreplay.replay.job.consumers import Consumer, deliver
from opreplay.replay.job.events import Event, Predicted
from opreplay.replay.job.predicting import Faults
from opreplay.replay.results.cases import Case, Cases
from opreplay.replay.results.of_plan import result_of
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.ir.model import ReplayOp, ReplayPlan
    from opreplay.replay.job.job import Job
    from opreplay.replay.resolve.written.sweep import Written
    from opreplay.replay.results.records import OpResult


def _too_large_for(op: ReplayOp, devices: Mapping[str, DeviceProfile]) -> tuple[str, ...]:
    need_bytes = need_of(op).total
    return tuple(name for name, device in devices.items() if need_bytes > device.hbm_bytes)


class Calls:
    """Calls written as text, as the source of a job."""

    def __init__(self, written: Sequence[Written], *, skip_invalid: bool = False) -> None:
        """Set the texts of the calls. With `skip_invalid`, invalid texts are skipped. If all are invalid, `make_plan`
        raises.
        """
        self.written = tuple(written)
        self.skip_invalid = skip_invalid
        self.ids: tuple[str, ...] = ()
        """Op id of each call; set by `make_plan`."""
        self.invalid: dict[str, UsageError] = {}
        """Text of each skipped call → its error; set by `make_plan`."""

    def make_plan(self, job: Job) -> ReplayPlan:
        """Return a plan with each distinct op once. Raises UsageError for an invalid text, unless `skip_invalid`."""
        from opreplay.replay.plan.kept import cached_plan_of_calls
        from opreplay.replay.resolve.written.sweep import invalid_calls, plan_of_calls

        make = partial(
            cached_plan_of_calls if job.keeps else plan_of_calls,
            allow_imports=job.settings.allow_imports,
            device=job.settings.device,
        )
        try:
            plan, self.ids = make(self.written)
        except UsageError:
            if not self.skip_invalid:
                raise
            self.invalid = invalid_calls(
                self.written, allow_imports=job.settings.allow_imports, device=job.settings.device
            )
            valid = tuple(call for call in self.written if call.text not in self.invalid)
            if not valid:
                raise
            self.written = valid
            plan, self.ids = make(valid)
        return plan

    def leaves_out(self, op: ReplayOp) -> bool:
        """Check whether an op's arguments contradict each other; no device can run such an op."""
        from opreplay.replay.resolve.written.sweep import is_refused

        return is_refused(op)


def cases_of(job: Job, faults: Faults, *, measure: bool = False, consumers: Sequence[Consumer] = ()) -> Cases:
    """Predict the calls of a job on its simulated devices. With `measure`, also measure each op on this machine.

    A call with contradictory arguments has a reason and no times. A call that cannot run here, or fails, keeps its
    prediction. If the user's estimator or tile program for a call fails, the call has no prediction. `faults` collects
    internal errors, and `consumers` get the events of the run. Raises the errors of `Job.run`.
    """
    calls, plan, devices = job.source, job.plan, job.devices
    assert isinstance(calls, Calls)
    unpredicted: dict[str, tuple[str, ...]] = {}

    def keep(event: Event) -> None:
        if isinstance(event, Predicted):
            unpredicted[event.op.id] = event.why
            faults(event)

    environment: dict[str, object] = {}
    if measure:
        deliver(job.run(), keep, *consumers)
        results = list(job.results.results)
        environment = dict(job.results.header.environment)
    else:
        results: list[OpResult] = []
        for predicted in job.predict():
            keep(predicted)
            results.append(result_of(plan, predicted.op, _not_run(predicted.op), predicted.simulated))
    by_id: dict[str, OpResult] = {result.id: result for result in results}
    ops = {op.id: op for op in plan.ops}
    return Cases(
        cases=tuple(
            Case(
                written=call.text,
                sizes=dict(call.sizes),
                call=call_text(ops[id_]),
                result=by_id[id_],
                unpredicted=unpredicted.get(id_, ()),
                too_large_for=_too_large_for(ops[id_], devices),
                assumed=_assumed_of(job, ops[id_], by_id[id_]),
            )
            for call, id_ in zip(calls.written, calls.ids, strict=True)
        ),
        device=job.settings.device if measure else None,
        environment=environment,
        socs={name: device.version for name, device in devices.items()},
        l2=job.settings.cache_state(),
    )


def _assumed_of(job: Job, op: ReplayOp, result: OpResult) -> tuple[str, ...]:
    """Return what the cost rule of a call assumes or leaves out. If no kernels were predicted, return nothing."""
    from opreplay.replay.ascend.lowering import lower

    if not any(prediction.kernels for prediction in result.simulated.values()):
        return ()
    return lower(op, job.contents(op)).notes


def _not_run(op: ReplayOp) -> Outcome:
    return Outcome(status="replayed") if op.reason is None else unable(op.reason)
