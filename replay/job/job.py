# pyright: strict
"""One job: a source, the selected ops, the settings and the simulated devices. Each stage runs on demand."""

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
    from opreplay.replay.ascend.simulate.step_residency import PlannedStep
    from opreplay.replay.capture.serving.form import Fused
    from opreplay.replay.execute.processes.lanes import Engine
    from opreplay.replay.ir.model import ReplayOp
    from opreplay.replay.ir.step import StepReport
    from opreplay.replay.ir.verdicts import MetaCheck
    from opreplay.replay.job.consumers import Events
    from opreplay.replay.ops.work.expected import ExpectedContents
    from opreplay.replay.plan.kept import CachedContents
    from opreplay.replay.report.view import View
    from opreplay.replay.results.reading import MemorySink, ResultFile
    from opreplay.replay.results.records import OpResult

Read = TypeVar("Read")


class Opens(Protocol):
    """A source with a method `open`, which the job calls when it needs the trace or plan."""

    def open(self, *, activity: bool = False) -> Trace | ReplayPlan: ...


@runtime_checkable
class MakesPlan(Protocol):
    """A source that makes its own plan, e.g. from calls written as text or from several traces."""

    def make_plan(self, job: Job) -> ReplayPlan: ...
    def leaves_out(self, op: ReplayOp) -> bool:
        """Return whether to skip the prediction of an op."""
        ...


@runtime_checkable
class Merges(MakesPlan, Protocol):
    """Several traces as one source."""

    def facts(self) -> dict[str, object]:
        """Return the facts about the traces for the result header."""
        ...

    def sums(self, results: Sequence[OpResult]) -> Sequence[Sum]:
        """Return sums over results: one record per trace and per distributed job."""
        ...


Source = str | os.PathLike[str] | Trace | ReplayPlan | Opens | MakesPlan
"""A path, an opened trace or plan, an `Opens`, or a `MakesPlan`."""


class Job:
    """A trace or plan with its settings. Nothing is read, planned or run before it is needed."""

    def __init__(
        self,
        source: Source,
        selection: Selection | None = None,
        settings: Settings | None = None,
        devices: Mapping[str, DeviceProfile] | None = None,
    ) -> None:
        """`devices` maps names to loaded devices."""
        self.source = source
        self.selection = selection or Selection()
        self.settings = settings or Settings()
        self.devices: dict[str, DeviceProfile] = dict(devices or {})
        self.unfused = False
        """Whether fused kernels were requested but none applies; set by `read`."""
        self._memory: MemorySink | None = None

    @classmethod
    def open(
        cls,
        source: Source,
        selection: Selection | None = None,
        settings: Settings | None = None,
        devices: Sequence[str] = (),
    ) -> Job:
        """Return a job with devices that are loaded from names or device files. Plugins must be loaded before.

        Raises UsageError for an unknown device or an invalid initializer setting, and FormatError for an invalid values
        file.
        """
        from opreplay.replay.ascend.simulate.devices import load_socs

        settings = settings or Settings()
        job = cls(source, selection, settings, load_socs(devices, settings.cluster))
        if settings.init_args or settings.values is not None:
            _ = job.contents  # before a large trace is read
        return job

    @cached_property
    def read(self) -> Trace | ReplayPlan:
        """The trace or plan. In a captured plan, fused kernels replace calls if the settings say so.

        Raises the errors of `opreplay.replay.plan.inputs.open_input`. Raises UsageError if fused kernels are requested
        for a trace.
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
        plan = with_fused_kernels(read, self.settings.fused)
        self.unfused = plan is read and self.settings.fused == "ascend"
        return plan

    @property
    def trace(self) -> Trace | None:
        """The trace; None for a captured or written plan."""
        return self.read if isinstance(self.read, Trace) else None

    @cached_property
    def plan(self) -> ReplayPlan:
        """Plan of the unique ops, each with its arguments or the reason why it cannot be replayed.

        Raises the errors of `plan_of`.
        """
        if isinstance(self.source, MakesPlan):
            return self.source.make_plan(self)
        settings = self.settings
        if settings.cache == "step" and self.selection.narrows:
            raise UsageError(
                "--cache step needs all ops of the step, because filtered-out ops also fill the caches",
                hint="Remove the filters, or measure with --cache cold.",
            )

        if self.keeps:
            from opreplay.replay.plan.kept import cached_plan

            return cached_plan(
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
        """Whether the plan may be cached, which requires that it depends on no user code."""
        return self.settings.keep and not self.settings.with_collectives and is_plain(self.settings)

    @cached_property
    def contents(self) -> ExpectedContents | CachedContents:
        """Provider of the expected contents of ops' arguments."""
        return contents_of(self.settings, lambda: self.plan if self.keeps else None)

    @property
    def registry(self) -> Registry:
        """Registry of the built-in and the user's initializers."""
        from opreplay.replay.ops.work.expected import ExpectedContents

        contents = self.contents
        assert isinstance(contents, ExpectedContents)  # kept ones are those of the built-in initializers
        return contents.registry

    @property
    def predict_op(self) -> OpPredictor:
        """The function that predicts one op on every device."""
        leaves_out = self.source.leaves_out if isinstance(self.source, MakesPlan) else None
        return OpPredictor(
            devices=self.devices, contents=self.contents, l2=self.settings.cache_state(), leaves_out=leaves_out
        )

    def predict(self) -> Iterator[Predicted]:
        """Yield the predictions of each op of the plan."""
        return map(self.predict_op, self.plan.ops)

    def expected_results(self, checks: Mapping[str, MetaCheck] | None = None) -> tuple[list[OpResult], list[Predicted]]:
        """Return (results before any measurement, predictions). `checks` maps op ids to checks on meta tensors."""
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
        """Predict the whole step on each device, in the order of the devices."""
        from opreplay.replay.ascend.simulate.devices import simulate_plan

        return simulate_plan(self.planned_step, list(self.devices.values()), self.settings.cache_state())

    @cached_property
    def planned_step(self) -> PlannedStep:
        """The plan with the expected contents of its arguments."""
        from opreplay.replay.ascend.simulate.step_residency import PlannedStep

        return PlannedStep(self.plan, self.contents)

    def step(self, devices: Sequence[DeviceProfile], timed: Trace | None = None) -> StepReport | None:
        """Return the report of the recorded step, as `timeline` does.

        None if there is no trace or if the selection excludes ops. If this job read the trace without its activity,
        `timed` must be the same trace read with its activity.
        """
        from opreplay.replay.ascend.simulate.step_residency import PlannedStep
        from opreplay.replay.timeline.timeline import step_of

        trace = timed or self.trace
        if trace is None or self.selection.narrows:
            return None
        every = Selection(select="owner", allow_imports=self.selection.allow_imports)
        if self.selection == every:
            planned = self.planned_step
        else:
            planned = PlannedStep(Job(trace, every, Settings(order=True)).plan, self.contents)
        return step_of(trace, devices=devices, planned=planned)

    def run(self, engine: Engine | None = None, *, earlier: ResultFile | None = None, beside: bool = False) -> Events:
        """Measure and predict every op, and yield events as `run_events` does.

        If `engine` is given, it replaces the engine from the settings. `beside` says that another job measures on the
        same device at the same time.
        """
        from opreplay.replay.job.consumers import tee, write_to
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
        return tee(events, write_to(self._memory))

    @property
    def results(self) -> ResultFile:
        """Results that the run has yielded so far. Raises UsageError before the run has started."""
        from opreplay.replay.results.reading import ResultFile

        memory = self._memory
        if memory is None or memory.header is None:
            raise UsageError("nothing was measured yet", hint="Iterate over the events of `run` first.")
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
        """Return the report on these results."""
        from opreplay.replay.report.run.report import view
        from opreplay.replay.report.run.tables import run_of
        from opreplay.replay.results.summary import summary_of

        run = run_of(results, summary_of(results))
        assert run is not None
        return view(run)


def with_fused_kernels(read: Read, fused: Fused | None) -> Read | ReplayPlan:
    """Return a captured plan with fused kernels in place of its calls.

    Other inputs are returned unchanged. Raises UsageError if fused kernels are requested for a trace.
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


def planned_step(trace: Trace, devices: Sequence[DeviceProfile]) -> PlannedStep | None:
    """Return the ops of a trace's step and the contents of their arguments, for predictions. None without devices."""
    return Job(trace, settings=Settings(order=True)).planned_step if devices else None


def is_plain(settings: Settings) -> bool:
    """Check that the settings use no user code and that no plugin is installed. Plans may be cached only in
    this case.
    """
    from opreplay.replay import plugins

    return not (settings.plugins or plugins.registrations() or plugins.any_installed())


def contents_of(settings: Settings, plan_to_keep: Callable[[], ReplayPlan | None]) -> ExpectedContents | CachedContents:
    """Return a provider of the expected contents of arguments.

    If `plan_to_keep` returns a plan, the provider uses the cache.

    Raises UsageError for an invalid initializer module or setting, and FormatError for an invalid values file.
    """

    def make() -> ExpectedContents:
        from opreplay.replay.ops.work.expected import expected_contents  # imports torch, which kept ones do not need

        return expected_contents(settings.init_modules, settings.init_args, seed=settings.seed, values=settings.values)

    if settings.init_args or settings.values is not None or (plan := plan_to_keep()) is None:
        return make()
    from opreplay.replay.plan.kept import CachedContents

    return CachedContents(make, plan, settings.seed)
