# pyright: strict
"""One job: a source, the ops selected of it, the settings and the simulated devices, and each stage on demand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from opreplay.replay.host.needs_torch import require_torch
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.job.events import Predicted, Sum
from opreplay.replay.job.predicting import OpPredictor
from opreplay.replay.job.settings import Settings
from opreplay.replay.plan.selection import Selection
from opreplay.traces.errors import UsageError
from opreplay.traces.model import Trace

if TYPE_CHECKING:
    from opreplay.initializers.registry import Registry
    from opreplay.replay.ascend.profile import DeviceProfile
    from opreplay.replay.ascend.simulate.step import Step
    from opreplay.replay.capture.serving.form import Fused
    from opreplay.replay.execute.processes.lanes import Engine
    from opreplay.replay.ir.model import ReplayOp
    from opreplay.replay.ir.step import StepReport
    from opreplay.replay.ir.verdicts import MetaCheck
    from opreplay.replay.job.consumers import Events
    from opreplay.replay.ops.work.expected import ExpectedContents
    from opreplay.replay.plan.kept import KeptContents
    from opreplay.replay.report.view import View
    from opreplay.replay.results.reading import MemorySink, ResultFile
    from opreplay.replay.results.records import OpResult

Read = TypeVar("Read")


class Opens(Protocol):
    """A source that is read when the job first needs it."""

    def open(self, *, activity: bool = False) -> Trace | ReplayPlan: ...


@runtime_checkable
class MakesPlan(Protocol):
    """A source that is no file to be planned: written calls, or several traces whose plans are merged."""

    def make_plan(self, job: Job) -> ReplayPlan: ...
    def leaves_out(self, op: ReplayOp) -> bool:
        """Return whether an op of the plan is not to be predicted."""
        ...


@runtime_checkable
class Merges(MakesPlan, Protocol):
    """Several traces as one source."""

    def facts(self) -> dict[str, object]:
        """Return what the header of the results says of the traces."""
        ...

    def sums(self, results: Sequence[OpResult]) -> Sequence[Sum]:
        """Return the records of each trace and job."""
        ...


Source = str | os.PathLike[str] | Trace | ReplayPlan | Opens | MakesPlan
"""A file, what was read from one, what opens one, or what makes a plan of something else."""


class Job:
    """A trace or plan on its way to results. Nothing is read, planned or executed before it is asked for."""

    def __init__(
        self,
        source: Source,
        selection: Selection | None = None,
        settings: Settings | None = None,
        devices: Mapping[str, DeviceProfile] | None = None,
    ) -> None:
        """`devices` are the simulated ones, loaded."""
        self.source = source
        self.selection = selection or Selection()
        self.settings = settings or Settings()
        self.devices: dict[str, DeviceProfile] = dict(devices or {})
        self.unfused = False
        """Whether fused kernels were asked for, and the source holds no calls that one stands for."""
        self._memory: MemorySink | None = None

    @classmethod
    def open(
        cls,
        source: Source,
        selection: Selection | None = None,
        settings: Settings | None = None,
        devices: Sequence[str] = (),
    ) -> Job:
        """Return the job on simulated devices by name or device file; plugins are loaded by then.

        Raises UsageError for an unknown device and for settings of initializers, FormatError for an unsound file of
        values.
        """
        from opreplay.replay.ascend.simulate.devices import load_socs

        settings = settings or Settings()
        job = cls(source, selection, settings, load_socs(devices, settings.cluster))
        if settings.init_args or settings.values is not None:
            _ = job.contents  # before a large trace is read
        return job

    @cached_property
    def read(self) -> Trace | ReplayPlan:
        """What the source holds, a captured plan with the kernels that the settings ask for.

        Raises as `opreplay.replay.plan.inputs.open_input` does, and UsageError for fused kernels of a trace.
        """
        if isinstance(self.source, MakesPlan):
            return self.plan
        activity = self.settings.activity or self.settings.with_collectives
        if isinstance(self.source, (Trace, ReplayPlan)):
            read = self.source
        elif isinstance(self.source, (str, os.PathLike)):
            from opreplay.replay.plan.inputs import open_input

            read = open_input(os.fspath(self.source), activity=activity)
        else:
            read = self.source.open(activity=activity)
        plan = served(read, self.settings.fused)
        self.unfused = plan is read and self.settings.fused == "ascend"
        return plan

    @property
    def trace(self) -> Trace | None:
        """The trace; None for a captured or written plan."""
        return self.read if isinstance(self.read, Trace) else None

    @cached_property
    def plan(self) -> ReplayPlan:
        """Each unique op with its arguments, or the reason why it cannot be replayed. Raises as `plan_of` does."""
        if isinstance(self.source, MakesPlan):
            return self.source.make_plan(self)
        settings = self.settings
        if settings.cache == "step" and self.selection.narrows:
            raise UsageError(
                "--cache step needs all ops of the step, because filtered ops fill the caches too",
                hint="Remove the filters, or measure with --cache cold.",
            )

        if self.keeps:
            from opreplay.replay.plan.kept import kept_plan

            return kept_plan(
                self.read, self.selection, device=settings.device, order=settings.needs_order, make=self._planned
            )
        return self._planned()

    def _planned(self) -> ReplayPlan:
        require_torch()
        from opreplay.replay.plan.collectives.in_plan import on_ranks
        from opreplay.replay.plan.inputs import plan_of, with_recorded_children

        settings = self.settings
        plan = plan_of(
            self.read,
            self.selection,
            device=settings.device,
            in_order=settings.needs_order,
            collectives=settings.with_collectives,
        )
        if settings.with_collectives:
            plan = on_ranks(plan, settings.ranks)
        return with_recorded_children(plan, self.read) if settings.check_kernels else plan

    @cached_property
    def keeps(self) -> bool:
        """Whether the plan may be kept between runs: nothing of the user's decides on it."""
        return self.settings.keep and not self.settings.with_collectives and is_plain(self.settings)

    @cached_property
    def contents(self) -> ExpectedContents | KeptContents:
        """What the arguments of ops will hold."""
        return contents_of(self.settings, lambda: self.plan if self.keeps else None)

    @property
    def registry(self) -> Registry:
        """The initializers that fill arguments, with the user's."""
        from opreplay.replay.ops.work.expected import ExpectedContents

        contents = self.contents
        assert isinstance(contents, ExpectedContents)  # kept ones are those of the built-in initializers
        return contents.registry

    @property
    def predict_op(self) -> OpPredictor:
        """What predicts single ops on the devices."""
        leaves_out = self.source.leaves_out if isinstance(self.source, MakesPlan) else None
        return OpPredictor(
            devices=self.devices, contents=self.contents, l2=self.settings.cache_state(), leaves_out=leaves_out
        )

    def predict(self) -> Iterator[Predicted]:
        """Yield the prediction of each op of the plan."""
        return map(self.predict_op, self.plan.ops)

    def expected_results(self, checks: Mapping[str, MetaCheck] | None = None) -> tuple[list[OpResult], list[Predicted]]:
        """Return the results that a run would start from, with their predictions; `checks` on meta tensors, by id."""
        from opreplay.replay.job.planned import planned_results

        predictions: dict[str, Predicted] = {}

        def predict(op: ReplayOp) -> Predicted:
            return predictions.setdefault(op.id, self.predict_op(op))

        settings = self.settings
        results = planned_results(
            self.plan, predict, max_op_bytes=settings.max_op_bytes, checks=checks, over=settings.over_budget
        )
        return results, list(predictions.values())

    def steps(self) -> list[Step]:
        """Predict the whole plan on each device, in the order of the devices."""
        from opreplay.replay.ascend.simulate.devices import simulate_plan

        return simulate_plan(self.plan, list(self.devices.values()), self.contents, self.settings.cache_state())

    def step(self, devices: Sequence[DeviceProfile], timed: Trace | None = None) -> StepReport | None:
        """Return the step of the trace as `timeline` has it; None where the plan holds a part of its ops.

        `timed`: the same trace with its activity, if it was read without.
        """
        from opreplay.replay.timeline.timeline import step_of

        trace = timed or self.trace
        if trace is None or self.selection.narrows:
            return None
        every = Selection(select="owner", allow_imports=self.selection.allow_imports)
        whole = self if self.selection == every else Job(trace, every, Settings(order=True))
        return step_of(trace, devices=devices, plan=whole.plan, contents=self.contents)

    def run(self, engine: Engine | None = None, *, earlier: ResultFile | None = None, beside: bool = False) -> Events:
        """Measure and predict every op; yield each step, as `run_events` does.

        `engine` replaces the one that the settings choose. `beside`: another job measures on the same device.
        """
        from opreplay.replay.job.consumers import recorded, writing
        from opreplay.replay.job.measuring import About, no_sums, run_events
        from opreplay.replay.plan.inputs import trace_facts
        from opreplay.replay.results.reading import MemorySink

        merged = self.source if isinstance(self.source, Merges) else None
        in_sequence = self.settings.mode == "sequence"
        about = About(
            trace=trace_facts(self.read) if merged is None else merged.facts(),
            step=self.step(list(self.devices.values())) if in_sequence else None,
            devices=tuple(f"{name} {device.version}" for name, device in self.devices.items()),
            beside=beside,
            sums=no_sums if merged is None else merged.sums,
        )
        events = run_events(
            self.plan, self.settings.run_options(), self.predict_op, about=about, engine=engine, earlier=earlier
        )
        self._memory = MemorySink()
        if earlier is not None:
            self._memory.take(earlier)
        return recorded(events, writing(self._memory))

    @property
    def results(self) -> ResultFile:
        """What was measured so far, as a file of results has it. Raises UsageError before the run has started."""
        from opreplay.replay.results.reading import ResultFile

        memory = self._memory
        if memory is None or memory.header is None:
            raise UsageError("nothing was measured yet", hint="Take the events of `run` first.")
        return ResultFile(
            header=memory.header,
            results=tuple(memory.results),
            summary=memory.summary,
            traces=tuple(memory.traces),
            jobs=tuple(memory.jobs),
            sequence=memory.sequence,
            complete_bytes=0,
        )

    def report(self, results: ResultFile) -> View:
        """Return the report on results in every form."""
        from opreplay.replay.report.run.report import view
        from opreplay.replay.report.run.tables import run_of
        from opreplay.replay.results.summary import summary_of

        run = run_of(results, summary_of(results))
        assert run is not None
        return view(run)


def served(read: Read, fused: Fused | None) -> Read | ReplayPlan:
    """Return a captured plan with the fused kernels that `fused` asks for; anything else as it is.

    Raises UsageError where they are asked for of what was not captured.
    """
    if isinstance(read, ReplayPlan) and read.captured:
        from opreplay.replay.capture.serving.form import as_served

        return read if fused == "none" else as_served(read, fused)
    if fused == "ascend":
        raise UsageError(
            "--fused needs a captured plan, which records the inputs and outputs of each call",
            hint=(
                "Make one with `opreplay capture`. For a trace, use `opreplay timeline --what-if 'fuse "
                "aten::add,aten::mul'`."
            ),
        )
    return read


def is_plain(settings: Settings) -> bool:
    """Return whether no code of the user's and no installed plugin may decide on plans."""
    from importlib.metadata import entry_points

    from opreplay.initializers import extensions
    from opreplay.replay import plugins

    groups = (plugins.ENTRY_POINTS, extensions.ENTRY_POINTS)
    return not (settings.plugins or plugins.registrations() or any(entry_points(group=group) for group in groups))


def contents_of(settings: Settings, plan_to_keep: Callable[[], ReplayPlan | None]) -> ExpectedContents | KeptContents:
    """Return what arguments will hold; kept ones where there is a plan to keep them with and no setting decides.

    Raises UsageError for modules and settings of initializers, FormatError for an unsound file of values.
    """

    def make() -> ExpectedContents:
        from opreplay.replay.ops.work.expected import expected_contents  # imports torch, which kept ones do not need

        return expected_contents(settings.init_modules, settings.init_args, seed=settings.seed, values=settings.values)

    if settings.init_args or settings.values is not None or (plan := plan_to_keep()) is None:
        return make()
    from opreplay.replay.plan.kept import KeptContents

    return KeptContents(make, plan, settings.seed)
