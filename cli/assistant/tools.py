# pyright: strict
"""Tools of the MCP server: each calls the library once and returns a small answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from opreplay.cli.assistant.answers import (
    LEAST_BYTES,
    MAX_BYTES,
    MOST_BYTES,
    ChangeRow,
    Changes,
    Checked,
    Compared,
    ComparedRow,
    FileRow,
    Files,
    Inspection,
    KernelRow,
    LossRow,
    OpDetail,
    OpRow,
    PointRow,
    PredictedOp,
    Prediction,
    SocTotal,
    SweepRow,
    Swept,
    TimeRow,
    TopOps,
    Why,
    filled,
)
from opreplay.cli.assistant.folders import Folders
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.results.records import OpResult
from opreplay.replay.session.setting import DEFAULT_SOC, Setting
from opreplay.replay.session.trace import OpenTrace
from opreplay.traces.errors import UsageError
from opreplay.traces.model import Trace

LOSERS = 20
"""Maximum number of ops listed as predicted slower than recorded. Those that lose most time come first."""
FAILING = 3
"""Maximum number of cases shown for a failed point of a check."""
OPEN_FILES = 4
"""Maximum number of traces kept open for further tool calls."""

FileName = Annotated[str, Field(description="File name from `files`, or absolute path.")]
OpName = Annotated[str, Field(description='Op: id, name, glob ("aten::*mm*") or rank by time ("#1").')]
Socs = Annotated[list[str], Field(description='Simulated devices such as "910b3", or device files (.toml).')]
Size = Annotated[int, Field(ge=LEAST_BYTES, le=MOST_BYTES, description="Maximum bytes of the answer.")]
By = Literal["op", "category", "kernel", "phase"]


class Tools:
    """Functions that a client can call. They read only files in `folders`; `allow_run` permits `check`."""

    def __init__(self, folders: Folders, *, allow_run: bool) -> None:
        self._folders, self._allow_run = folders, allow_run

    def all(self) -> tuple[Callable[..., Any], ...]:
        """Return the tools in the order in which they are usually used."""
        return (
            self.files,
            self.inspect,
            self.top_ops,
            self.why,
            self.op_detail,
            self.what_if,
            self.predict,
            self.compare,
            self.sweep,
            self.check,
        )

    def files(self, max_bytes: Size = MAX_BYTES) -> Files:
        """List the traces, plans, results and device files that the other tools can open."""
        rows = [FileRow(name=name, size_bytes=size) for name, size in self._folders.files()]
        return Files(folders=list(self._folders.paths), files=rows)

    def inspect(self, trace: FileName, by: By = "op", max_bytes: Size = MAX_BYTES) -> Inspection:
        """Summarise a trace: its contents, what bounds its step, and its time by op, category, kernel or phase."""
        from opreplay.replay.report.step.verdict import verdict
        from opreplay.replay.timeline.timeline import step_of
        from opreplay.traces import summarize
        from opreplay.traces.times.breakdown import breakdown

        read = self._trace(trace)
        facts, step, times = summarize(read), step_of(read), breakdown(read, by)
        return filled(
            Inspection,
            facts,
            file=trace,
            verdict="" if step is None else verdict(step),
            devices=list(facts.device_names),
            calls=facts.cpu_ops,
            by=f"{by}, {times.clock} time",
            rows=[filled(TimeRow, row) for row in times.rows],
        )

    def top_ops(self, trace: FileName, max_bytes: Size = MAX_BYTES) -> TopOps:
        """List the unique ops of a trace or plan, those with most time first, with ids for `op_detail`."""
        from opreplay.replay.plan.passes import clock_of, total_of

        plan = self._open(trace).plan
        return TopOps(
            clock=clock_of(plan) or "none", total_us=total_of(plan), ops=[_op_row(row) for row in _results(plan)]
        )

    def why(self, trace: FileName, max_bytes: Size = MAX_BYTES) -> Why:
        """Explain why the step of median length takes as long as it does: verdict, idle time by cause."""
        from opreplay.replay.report.step.verdict import verdict
        from opreplay.replay.timeline.timeline import step_of

        step = step_of(self._trace(trace))
        if step is None:
            raise UsageError(f"{trace} does not record when events ran", hint="Record a profile with event times.")
        step_us = step.window.step_us
        return filled(
            Why,
            step,
            verdict=verdict(step),
            step=step.name,
            step_us=step_us,
            idle_us={cause: us for cause, us in step.idle_us.items() if us > 0},
            causes=[
                TimeRow(name=name, time_us=us, share=us / step_us if step_us else 0.0) for name, us in step.largest
            ],
        )

    def op_detail(self, trace: FileName, op: OpName, soc: Socs = [], max_bytes: Size = MAX_BYTES) -> OpDetail:  # noqa: B006
        """Describe one op: arguments, assumptions, and its kernels on simulated devices."""
        from opreplay.replay.report.views.explain import argument_text

        opened = self._open(trace)
        picked = opened[op]
        ir = picked.ir
        (result,) = _results(msgspec.structs.replace(opened.plan, ops=(ir,), sequence=None))
        explained = picked.explain(*map(self._folders.device, soc)).devices if soc else {}
        return OpDetail(
            op=_op_row(result),
            resolved_by=ir.resolved_by,
            op_schema=ir.schema,
            call=result.call,
            arguments={arg.name: argument_text(arg) for arg in ir.args},
            assumptions=[f"{note.argument}: {note.what}" for note in ir.assumptions],
            predictions=[filled(PredictedOp, device.simulated, soc=name) for name, device in explained.items()],
            kernels=[
                filled(KernelRow, kernel, soc=name, time_us=kernel.prediction.time_us, bound=kernel.prediction.bound)
                for name, device in explained.items()
                for kernel in device.kernels
            ],
        )

    def what_if(
        self,
        trace: FileName,
        changes: Annotated[
            list[str],
            Field(
                min_length=1,
                max_length=20,
                description="'aten::mm*=0.5x', 'nccl*=0', 'fuse aten::add,aten::mul', 'dtype bf16', 'cudagraph', "
                "'overlap comm'",
            ),
        ],
        max_bytes: Size = MAX_BYTES,
    ) -> Changes:
        """Estimate the step's duration after each change."""
        from opreplay.replay.timeline.timeline import timeline

        found = timeline(self._trace(trace), what_if=changes).timeline
        return Changes(
            step_us=found.recorded_step_us,
            structure_error=found.structure_error,
            changes=[filled(ChangeRow, change) for change in found.what_if],
        )

    def predict(self, trace: FileName, soc: Socs = [DEFAULT_SOC], max_bytes: Size = MAX_BYTES) -> Prediction:  # noqa: B006
        """Predict the ops of a trace or plan on simulated Ascend NPUs, with an 80 % band; nothing is run."""
        from opreplay.replay.ascend.simulate.coverage import coverage_of
        from opreplay.replay.ascend.simulate.step import losing
        from opreplay.replay.plan.passes import total_of
        from opreplay.replay.session.whole import simulate

        found = simulate(self._open(trace), [self._folders.device(name) for name in soc])
        plan, steps = found.plan, list(found.steps.values())
        coverage = coverage_of(plan, [(op.id, op.simulated) for op in steps[0].ops])
        return Prediction(
            ops=len(plan.ops),
            covered_share=coverage.predicted,
            recorded_us=total_of(plan),
            socs=[filled(SocTotal, step, soc=step.device, by_bound_us=step.by_bound) for step in steps],
            losing=[
                LossRow(soc=step.device, id=op.id, name=op.name, lost_us=lost)
                for step in steps
                for op, _, lost in losing(step, plan.ops, LOSERS)
            ],
            problems=list(found.problems),
        )

    def compare(self, before: FileName, after: FileName, max_bytes: Size = MAX_BYTES) -> Compared:
        """Compare two traces, plans or result files (.jsonl) op by op, largest change first; ratio > 1 is slower."""
        from opreplay.replay.report.views.comparison import ORDER, first_line
        from opreplay.replay.session.whole import compare

        found = compare(self._folders.file(before), self._folders.file(after)).found
        total = found.total
        return Compared(
            verdict=first_line(found),
            ratio=None if total is None else total.ratio,
            low=None if total is None else total.low,
            high=None if total is None else total.high,
            counts={verdict: count for verdict in ORDER if (count := len(found.of(verdict)))},
            ops=[filled(ComparedRow, op) for op in found.ops if op.verdict != "same"],
        )

    def sweep(
        self,
        calls: Annotated[list[str], Field(min_length=1, description='As "aten::mm(bf16[64,n], bf16[n,32])".')],
        vary: Annotated[list[str], Field(description='Values for the size names: "n=64,128", "n=2^7..2^14".')] = [],  # noqa: B006
        soc: Socs = [DEFAULT_SOC],  # noqa: B006
        max_bytes: Size = MAX_BYTES,
    ) -> Swept:
        """Predict calls over sizes on simulated devices; nothing is run."""
        from opreplay.replay.session.sweeping import sweep

        found = sweep(calls, vary=vary, soc=[self._folders.device(name) for name in soc]).found
        return Swept(
            socs=list(found.socs),
            cases=[
                filled(
                    SweepRow,
                    case.result,
                    call=case.call,
                    sizes=case.sizes,
                    reason="; ".join(
                        (*case.unpredicted, *filter(None, [case.result.reason and str(case.result.reason)]))
                    ),
                )
                for case in found.cases
            ],
        )

    def check(
        self,
        op: Annotated[str, Field(description='"namespace::op" or "file.py:function".')],
        against: Annotated[str | None, Field(description='Reference: an op, "torch.add", "file.py:function".')] = None,
        shapes: Annotated[list[str], Field(description='Calls to try: "4096x4096", "f32[4,8], f32[8]".')] = [],  # noqa: B006
        trace: Annotated[str | None, Field(description="Trace; its calls of the op are tried.")] = None,
        points: Annotated[list[str], Field(description="Points to check; empty for all.")] = [],  # noqa: B006
        plugins: Annotated[list[str], Field(description="Files (.py) that register the op.")] = [],  # noqa: B006
        max_bytes: Size = MAX_BYTES,
    ) -> Checked:
        """Run an op to test whether it is right. Needs a server that was started with --allow-run."""
        from opreplay.replay.check.model import POINTS
        from opreplay.replay.session.checking import check

        if not self._allow_run:
            raise UsageError("check runs code", hint="Ask the user to start `opreplay mcp` with --allow-run.")
        found = check(
            self._folders.function(op),
            against=None if against is None else self._folders.function(against),
            shapes=shapes,
            trace=None if trace is None else self._folders.file(trace),
            points=tuple(points) or tuple(POINTS),
            plugins=[self._folders.file(name) for name in plugins],
        )
        return filled(
            Checked,
            found,
            failed=[point.point for point in found.failed()],
            points=[
                filled(
                    PointRow,
                    point,
                    cases=len(point.cases),
                    failing=[f"{case.case}: {case.detail}" for case in point.of("fail")[:FAILING]],
                )
                for point in found.points
            ],
        )

    def _open(self, name: str) -> OpenTrace:
        """Return a trace or plan in the folders; it stays open for further tool calls."""
        return _opened(*_state(self._folders.file(name)))

    def _trace(self, name: str) -> Trace:
        """Return a recorded trace. Raises UsageError for a plan."""
        read = self._open(name).read
        if not isinstance(read, Trace):
            raise UsageError(
                f"{name} is a plan, which has no recorded times", hint="Use `predict`, which accepts plans."
            )
        return read


def _state(path: str) -> tuple[str, int, int]:
    status = os.stat(path)
    return path, status.st_mtime_ns, status.st_size


@lru_cache(maxsize=OPEN_FILES)
def _opened(path: str, mtime_ns: int, size_bytes: int) -> OpenTrace:
    from opreplay.replay.plan.inputs import open_input
    from opreplay.replay.plan.selection import Selection

    return OpenTrace(open_input(path, activity=True), Selection(), Setting())


def _results(plan: ReplayPlan) -> Sequence[OpResult]:
    from opreplay.replay.job.planned import planned_results

    return planned_results(plan)


def _op_row(result: OpResult) -> OpRow:
    return filled(
        OpRow,
        result,
        recorded_us=result.recorded_device_us or result.recorded_host_us,
        share=result.recorded_share,
        reason="" if result.reason is None else str(result.reason),
    )
