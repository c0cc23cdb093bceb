# pyright: strict
"""Calls that were written down: each resolved, predicted, and measured here where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from opreplay.replay.ir.notation import call_text
from opreplay.replay.ir.sizes import need_of
from opreplay.replay.job.consumers import Consumer, deliver, writing
from opreplay.replay.job.events import Predicted
from opreplay.replay.job.predicting import Faults, Predictor, no_prediction
from opreplay.replay.resolve.written.sweep import is_refused
from opreplay.replay.results.cases import Case, Cases
from opreplay.replay.results.of_plan import result_of
from opreplay.replay.results.outcome import Outcome, unable

if TYPE_CHECKING:
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.execute.options import RunOptions
    from opreplay.replay.ir.model import ReplayOp, ReplayPlan
    from opreplay.replay.ops.work.contents import Contents
    from opreplay.replay.resolve.written.sweep import Written
    from opreplay.replay.results.records import L2State, OpResult


def _too_large_for(op: ReplayOp, devices: Mapping[str, DeviceProfile]) -> tuple[str, ...]:
    need_bytes = need_of(op).total
    return tuple(name for name, device in devices.items() if need_bytes > device.hbm_bytes)


def cases_of(
    written: Sequence[Written],
    plan: ReplayPlan,
    ids: Sequence[str],
    *,
    devices: Mapping[str, DeviceProfile],
    contents: Callable[[ReplayOp], Contents | None],
    l2: L2State,
    faults: Faults,
    measuring: RunOptions | None = None,
    consumers: Sequence[Consumer] = (),
) -> Cases:
    """What the calls take: on simulated devices, and with `measuring` here, each op once.

    `plan` and `ids` are `plan_of_calls`'s. A call whose arguments do not go together has a reason and no times; one
    that a user's function or program does not fit has no prediction. A call that does not run here, or fails when it
    does, keeps its prediction. `faults` collects those of opreplay's own, and `consumers` get the events of the run.
    Raises what `run_events` does.
    """
    predictor = Predictor(devices=devices, contents=contents, l2=l2)
    unpredicted: dict[str, tuple[str, ...]] = {}

    def predict(op: ReplayOp) -> Predicted:
        prediction = no_prediction(op) if is_refused(op) else predictor(op)
        unpredicted[op.id] = prediction.why
        faults.add([prediction])
        return prediction

    environment: dict[str, object] = {}
    if measuring is None:
        results = [result_of(plan, op, _not_run(op), predict(op).simulated) for op in plan.ops]
    else:
        from opreplay.replay.job.measuring import run_events
        from opreplay.replay.results.reading import MemorySink

        sink = MemorySink()
        deliver(run_events(plan, measuring, predict), writing(sink), *consumers)
        results = list(sink.results)
        environment = dict(sink.header.environment) if sink.header else {}
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
            )
            for call, id_ in zip(written, ids, strict=True)
        ),
        device=None if measuring is None else measuring.device,
        environment=environment,
        socs={name: device.version for name, device in devices.items()},
        l2=l2,
    )


def _not_run(op: ReplayOp) -> Outcome:
    return Outcome(status="replayed") if op.reason is None else unable(op.reason)
