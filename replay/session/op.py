# pyright: strict
"""A single op: describe it, call it, time it here and on a simulated device, and export it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.ir.model import Assumption, Reason, ReplayOp, ReplayPlan
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.job.events import Predicted
from opreplay.replay.job.job import Job
from opreplay.replay.job.planned import planned_results
from opreplay.replay.job.predicting import raise_errors
from opreplay.replay.job.settings import Settings
from opreplay.replay.results.measurement import Measurement
from opreplay.replay.results.records import L2State, Simulated
from opreplay.replay.session.display import Shown
from opreplay.replay.session.setting import DEFAULT_SOC, Setting, devices_of, executor_on

if TYPE_CHECKING:
    from opreplay.replay.ascend import Explanation
    from opreplay.replay.execute.executors.torch.device import TorchPrepared
    from opreplay.replay.report.view import View
    from opreplay.traces.links.annotations import BatchContext


class Op(Shown):
    """Op of a trace, an event or a call. It holds only metadata until it is prepared or called."""

    def __init__(self, plan: ReplayPlan, setting: Setting) -> None:
        """Create the op from a plan that contains only this op. The op's share refers to the totals of the plan."""
        (self.ir,) = plan.ops
        self._plan, self._setting = plan, setting

    @property
    def name(self) -> str:
        """Return the op's recorded name, "namespace::op"."""
        return self.ir.name

    @property
    def id(self) -> str:
        """Return the op's id, which is the same in every trace."""
        return self.ir.id

    @property
    def count(self) -> int:
        """Return the number of recorded calls of the op."""
        return self.ir.count

    @property
    def reason(self) -> Reason | None:
        """Return why the op cannot be replayed, or None if it can."""
        return self.ir.reason

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Return the assumptions that fill gaps in the recorded call. `prepare` adds assumptions about values."""
        return self.ir.assumptions

    def in_batch(self, batch: BatchContext) -> Op:
        """Return a copy of the op in an iteration with this batch. The batch determines sequence lengths."""
        op = msgspec.structs.replace(self.ir, batch=batch)
        return Op(msgspec.structs.replace(self._plan, ops=(op,)), self._setting)

    def prepare(self, *, options: RunOptions | None = None) -> PreparedCall:
        """Allocate the op's arguments in this process and fill them, using the seed of the options.

        Raises NotReplayable, with the reason, if this is impossible. An op is not shrunk if it needs more than
        `options.max_op_bytes`.
        """
        import torch

        options = self._setting.of_run(options)
        # Nothing is timed here: no need to look at how busy the processors are.
        ready = msgspec.structs.replace(options, threads=options.threads or torch.get_num_threads())
        with executor_on(ready) as executor:
            return PreparedCall(self.ir, executor.prepare(self.ir, seed=options.seed), options)

    def __call__(self) -> Any:
        """Call the op once on newly allocated, equal arguments, and return its result. Raises NotReplayable."""
        return self.prepare()()

    def measure(self, *, options: RunOptions | None = None) -> Measurement:
        """Measure the op as `run` does, but in this process unless the options set `isolation`.

        `RunOptions(isolation="process")` protects this process from an op that may crash or hang. An op above the
        memory budget is shrunk, with a warning. Raises NotReplayable, with the reason, if no time can be measured.
        """
        from opreplay.replay.execute.engines import make_runner
        from opreplay.replay.session.registered import refuse_what_workers_lack

        options = self._setting.of_run(options)
        options = msgspec.structs.replace(options, isolation=options.isolation or "none")
        refuse_what_workers_lack(self._plan, options)
        runner = make_runner(options)
        try:
            runner.start()
            outcome = runner.measure(self.ir)
        finally:
            runner.close()
        if outcome.measurement is None:
            raise NotReplayable(outcome.reason or Reason("failed", "no time was measured"))
        return outcome.measurement

    def simulate(self, soc: str = DEFAULT_SOC, *, l2: L2State = "cold") -> Simulated:
        """Predict the time of one call on a simulated device.

        `soc` is a name or a device file. `l2` is the cache state of the op's arguments; the default is "cold", as in
        `measure`. Raises NotReplayable if no time can be predicted.
        """
        job = Job(self._plan, settings=Settings(l2=l2), devices=devices_of(soc))
        predicted = raise_errors(job.predict_op)(self.ir)
        if not predicted.simulated:
            raise NotReplayable(
                self.reason or Reason("metadata missing", "there are no arguments from which to predict a time")
            )
        return next(iter(predicted.simulated.values()))

    def explain(self, *soc: str) -> Explained:
        """Explain the op: its arguments by name, the assumptions, and its kernels on each simulated device.

        The default device is "910b3".
        """
        from opreplay.replay.ascend import explain_op
        from opreplay.replay.ops.work.expected import expected_contents

        devices, contents = devices_of(soc or DEFAULT_SOC), expected_contents()
        op_contents = contents(self.ir)
        return Explained(
            self._plan, {name: explain_op(self.ir, device, op_contents, "cold") for name, device in devices.items()}
        )

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        keep_names: bool = False,
        force: bool = False,
        max_op_bytes: int | None = None,
    ) -> Path:
        """Write a folder, or a .zip file, with a script that replays the op and needs only torch.

        Without `keep_names`, the names of the model are left out. Raises NotReplayable for an op that torch alone
        cannot run, and UsageError if the path exists and `force` is not set.
        """
        from opreplay.replay.export import make_bundle, write_bundle
        from opreplay.replay.host.environment import default_op_bytes
        from opreplay.replay.ops.inputs import open_registry
        from opreplay.replay.resolve.policy import Policy

        bundle = make_bundle(
            self._plan,
            open_registry(),
            policy=Policy(allow_imports=self._setting.allow_imports),
            memory_bytes=max_op_bytes or default_op_bytes(),
            keep_names=keep_names,
        )
        if bundle.left_out:
            raise NotReplayable(self.reason or Reason("policy", f"cannot be bundled: {bundle.left_out[0].reason}"))
        write_bundle(bundle, Path(path), force=force)
        return Path(path)

    def _view(self) -> View:
        return _explained(self._plan, {})


class Explained(Shown):
    """Result of `Op.explain`: a text to read, and the values behind it."""

    def __init__(self, plan: ReplayPlan, devices: dict[str, Explanation]) -> None:
        self._plan = plan
        self.devices = devices
        """Device name → kernels with their times, bounds and bands."""

    @property
    def op(self) -> ReplayOp:
        return self._plan.ops[0]

    def _view(self) -> View:
        return _explained(self._plan, self.devices)


def _explained(plan: ReplayPlan, devices: dict[str, Explanation]) -> View:
    """Return the explanation of the single op of a plan as a view."""
    from opreplay.replay.report.views.explain import view

    simulated = {name: explanation.simulated for name, explanation in devices.items()}
    (result,) = planned_results(plan, lambda op: Predicted(op=op, simulated=simulated))
    return view(plan.ops[0], result, devices)


def single_op(plan: ReplayPlan, op: ReplayOp, setting: Setting) -> Op:
    """Return one op of a plan as an `Op`."""
    return Op(msgspec.structs.replace(plan, ops=(op,), sequence=None), setting)


class PreparedCall:
    """Op with allocated and filled arguments; created by `Op.prepare`."""

    def __init__(self, op: ReplayOp, prepared: TorchPrepared, options: RunOptions) -> None:
        self.op = op
        self._prepared, self._options = prepared, options

    @property
    def function(self) -> Any:
        """Return the function that is called: an overload of torch, a substitute, or a function of the user."""
        return self._prepared.overload_call.func

    @property
    def args(self) -> tuple[Any, ...]:
        """Return the positional arguments; their tensors are the ones that the call uses, not copies."""
        return self._prepared.overload_call.args

    @property
    def kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments."""
        return dict(self._prepared.overload_call.keywords)

    @property
    def initializer(self) -> str | None:
        """Return the name of the initializer that filled the tensors; None for an op without one."""
        return self._prepared.initializer

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Return all assumptions that fill gaps in the trace."""
        return self.op.assumptions + self._prepared.assumptions

    def __call__(self) -> Any:
        """Call the op once, without gradients, and return its result. Exceptions of the op are passed on."""
        import torch

        with torch.no_grad():
            return self._prepared.call()

    def reset(self) -> None:
        """Restore the initial values of arguments that the op writes to."""
        self._prepared.reset()

    def measure(self, options: RunOptions | None = None) -> Measurement:
        """Time calls with exactly these arguments, in this process. `options` defaults to the options of `prepare`."""
        from opreplay.replay.execute.threads import measure_on_idle

        options = options or self._options
        with executor_on(options) as executor:
            return measure_on_idle(executor, self._prepared, options)

    def __repr__(self) -> str:
        from opreplay.replay.ir.describe import describe_inputs
        from opreplay.replay.report.text import safe

        notes = [f"{safe(note.argument)}: {safe(note.what)}" for note in self.assumptions]
        lines = [f"{safe(self.op.name)} on {self._options.device}: {safe(describe_inputs(self.op))}"]
        filling = self._prepared.filling
        said = f": {safe(filling.summary)}" if filling is not None and filling.summary else ""
        lines += [f"  filled by {self.initializer}{said}"] if self.initializer else []
        return "\n".join([*lines, *(f"  assumed {note}" for note in notes)])
