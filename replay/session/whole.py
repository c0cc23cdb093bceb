# pyright: strict
"""Operations on whole traces: measure, simulate and compare.

Each result is a value that displays itself as the command line does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, get_args

import msgspec

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.host.needs_torch import require_torch
from opreplay.replay.results.compare.judge import DEFAULT_THRESHOLD, Method, OpComparison
from opreplay.replay.results.compare.judge import Comparison as Judged
from opreplay.replay.results.reading import ResultFile, read_result_file
from opreplay.replay.results.records import Header, OpResult, Summary
from opreplay.replay.session.display import Tabular
from opreplay.replay.session.setting import DEFAULT_SOC
from opreplay.replay.session.trace import Files, OpenTrace, Selecting, Source, open_if_needed, recorded_trace
from opreplay.traces.errors import TraceError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from typing_extensions import Unpack

    from opreplay.replay.ascend.profile import DeviceProfile
    from opreplay.replay.ascend.simulate.step import Step
    from opreplay.replay.capture.serving.form import Fused
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.ir.step import StepReport
    from opreplay.replay.job.events import Progress
    from opreplay.replay.job.job import Job
    from opreplay.replay.plan.recorded.where import Where
    from opreplay.replay.report.view import View

LOSERS = 10
"""Maximum number of ops listed as predicted slower than recorded. Those that lose most time come first."""


class Results(Tabular):
    """Results of a run, returned by `run` or read from a file."""

    _command = "opreplay.run"

    def __init__(self, file: ResultFile) -> None:
        self.file = file

    @property
    def header(self) -> Header:
        """Return facts about the trace, the machine and the options."""
        return self.file.header

    @property
    def ops(self) -> tuple[OpResult, ...]:
        """Return one result per op, in plan order; times are in microseconds per call."""
        return self.file.results

    @property
    def summary(self) -> Summary:
        """Return counts and shares. If the run was cut short, compute them from the existing results."""
        from opreplay.replay.results.summary import summary_of

        return summary_of(self.file)

    def _view(self) -> View:
        from opreplay.replay.report.run.report import view
        from opreplay.replay.report.run.tables import run_of

        run = run_of(self.file, self.summary)
        assert run is not None
        return view(run)


def run(
    trace: Source | OpenTrace,
    *,
    soc: str | Sequence[str] = (),
    options: RunOptions | None = None,
    workers: int | None = None,
    repeats: int | None = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    **selecting: Unpack[Selecting],
) -> Results:
    """Measure each op of one or several traces on this machine and predict it on each given simulated device.

    Runs in worker processes unless the options say otherwise. An op that several traces share is measured once.

    Args:
        trace: a file, a glob or a folder, a list of them, or the result of `open`.
        soc: names of simulated devices, or device files.
        options: how to measure; a file is opened for their device.
        workers: number of ops measured at the same time, each in its own process; one by default.
        repeats: number of times that each op is measured, far apart in the run; by default more on a busy CPU.
        output: a .jsonl file, written line by line as `opreplay run --output` does.
        force: whether to overwrite that file if it exists.
        on_progress: called before each op.
        selecting: options of `open`, such as `include` and `top`, for a trace that is not open yet.

    Raises UsageError for an `output` that is not named .jsonl or .ndjson. Also raises it if this program registered
    something that the ops need but worker processes do not have. Raises EnvironmentRefused if the device is missing.
    """
    require_torch()
    from opreplay.replay.execute.processes.lanes import lane_devices
    from opreplay.replay.host.device_lock import hold_locks
    from opreplay.replay.job.consumers import deliver, write_to
    from opreplay.replay.job.events import Event, Progress
    from opreplay.replay.results.records import LINES
    from opreplay.replay.results.writing import JsonLinesSink
    from opreplay.replay.session.registered import refuse_what_workers_lack

    for name, count in (("workers", workers), ("repeats", repeats)):
        if count is not None and count < 1:
            raise UsageError(f"{name} is {count}", hint="It must be at least 1.")
    wanted = options or RunOptions()
    wanted = msgspec.structs.replace(
        wanted,
        lanes=wanted.lanes if workers is None else workers,
        visits=wanted.visits if repeats is None else repeats,
    )
    if output is not None and not os.fspath(output).lower().endswith(LINES):
        raise UsageError(
            f"{os.fspath(output)} is not named {' or '.join(LINES)}",
            hint="Results are written as JSON Lines; `results.frame().to_csv(...)` writes a table.",
        )
    if not isinstance(trace, OpenTrace):
        selecting = {"device": wanted.device, "plugins": wanted.plugins, **selecting}
    read = open_if_needed(trace, **selecting)
    job = read.job(read.setting.of_run(wanted), soc)
    if not job.settings.check_kernels:
        job.plan = read.plan  # resolved once for several questions
    refuse_what_workers_lack(job.plan, job.settings)

    def tell(event: Event) -> None:
        if on_progress is not None and isinstance(event, Progress):
            on_progress(event)

    with contextlib.ExitStack() as stack:
        file = None if output is None else stack.enter_context(JsonLinesSink.open(os.fspath(output), force=force))
        settings = job.settings
        devices = lane_devices(settings.device, settings.lanes, shared=settings.shared_device)
        beside = stack.enter_context(hold_locks([] if settings.shared_device else devices))
        deliver(job.run(beside=bool(beside)), *([] if file is None else [write_to(file)]), tell)
    return Results(job.results)


def read_results(path: str | os.PathLike[str]) -> Results:
    """Read the results of a run from a .jsonl file. Raises FormatError for any other file."""
    return Results(read_result_file(os.fspath(path)))


class Simulation(Tabular):
    """Prediction of a step on one or several simulated devices. Times are in microseconds, summed over all calls."""

    _command = "opreplay.simulate"

    def __init__(
        self,
        plan: ReplayPlan,
        steps: Sequence[Step],
        devices: Mapping[str, DeviceProfile],
        problems: tuple[str, ...],
        recorded: Callable[[], tuple[Where | None, StepReport | None]],
    ) -> None:
        self.plan, self._devices, self._recorded = plan, devices, cache(recorded)
        self.steps = {step.device: step for step in steps}
        """Device → predicted step: total time with its band, and times by op, by limiting resource and by kernel
        family.
        """
        self.problems = problems
        """Ops whose inputs could not be generated, so only shapes count, or cannot hold the recorded batch."""

    @property
    def total_us(self) -> dict[str, float]:
        """Return the total time in microseconds by device."""
        return {name: step.total_us for name, step in self.steps.items()}

    def _view(self) -> View:
        from rich.console import Group

        from opreplay.replay.report.table import notes_lines
        from opreplay.replay.report.text import safe
        from opreplay.replay.report.views.simulation import view

        where, step = self._recorded()
        whole = view(self.plan, list(self.steps.values()), self._devices, losers=LOSERS, where=where, report=step)

        def render(width: int) -> RenderableType:
            return Group(whole.render(width), *notes_lines([safe(problem) for problem in self.problems]))

        return msgspec.structs.replace(whole, render=render)


def simulate(
    trace: Source | OpenTrace,
    soc: str | Sequence[str] = DEFAULT_SOC,
    fused: Fused | None = None,
    **selecting: Unpack[Selecting],
) -> Simulation:
    """Predict the ops of one or several traces on simulated devices, without running any.

    The contents of the L2 cache follow from the order of calls in a recorded step. For several traces, the arguments
    are assumed not to be in the cache.

    Args:
        trace: as for `run`.
        soc: names of simulated devices, or device files.
        fused: "ascend" replaces calls of a captured plan by the fused kernels of inference servers, "none" does not.
            By default they are replaced in an inference step of a model captured from its config.
        selecting: options of `open`, for a trace that is not open yet.

    Raises UsageError for an unknown device, and if no device is given.
    """
    read = open_if_needed(trace, timed=True, **selecting)
    l2 = "cold" if isinstance(read.read, Files) else "sequence"
    job = read.job(RunOptions(device=read.setting.device, l2=l2), soc)
    if not job.devices:
        raise UsageError("no simulated device is given", hint=f'Name one, such as "{DEFAULT_SOC}".')
    job.plan = read.plan
    if job.plan.captured:
        from opreplay.replay.capture.serving.form import as_served

        job.plan = as_served(job.plan, fused)
    steps, contents = job.steps(), job.contents
    if (keep := getattr(contents, "store_new", None)) is not None:
        keep()
    problems = [
        f"arguments are too small for the recorded batch: {problem}" for problem in contents.impossible.values()
    ]
    problems += [f"an op may have done more work than predicted: {problem}" for problem in contents.unrecorded.values()]
    problems += [
        f"inputs could not be generated, so only shapes affect the prediction: {text}"
        for text in contents.problems.values()
    ]
    return Simulation(job.plan, steps, job.devices, tuple(problems), lambda: _recorded_part(job))


def _recorded_part(job: Job) -> tuple[Where | None, StepReport | None]:
    """Return where a job's trace spends its time, and its step report with idle gaps and devices; used by `simulate`.

    If the caller opened the trace without event times, it is read again to get them. A large trace and several traces
    have no step report.
    """
    from opreplay.replay.plan.inputs import tells_step
    from opreplay.replay.plan.recorded.where import where_of

    trace, where = job.trace, where_of(job.read)
    if trace is None or trace.info.merged is not None or job.selection.narrows:
        return where, None
    if trace.activity is None and not tells_step(trace.info.path):
        return where, None
    try:
        timed = recorded_trace(trace)
    except TraceError:
        return where, None  # the file is not there any more
    return where, job.step(list(job.devices.values()), timed)


class Comparison(Tabular):
    """Comparison of two runs op by op, in descending order of the change of total time."""

    _command = "opreplay.compare"

    def __init__(self, judged: Judged, sides: Sequence[Sequence[object]] = ((), ())) -> None:
        self.found = judged
        """The full result: totals, spread, and differences between machines and options."""
        self._sides = sides

    @property
    def ops(self) -> tuple[OpComparison, ...]:
        return self.found.ops

    def of(self, *verdicts: str) -> list[OpComparison]:
        """Return the ops with these verdicts: "slower", "faster", "same", "unclear", "lost", "gained", ..."""
        return [op for op in self.ops if op.verdict in verdicts]

    def _view(self) -> View:
        from opreplay.replay.report.views.comparison import view
        from opreplay.replay.timeline.compared import steps_of_sides

        return view(self.found, steps_of_sides(*self._sides))


def compare(
    before: Results | str | os.PathLike[str],
    after: Results | str | os.PathLike[str] | None = None,
    *,
    times: str | None = None,
    threshold: float = DEFAULT_THRESHOLD,
    method: Method = "gauges",
    force: bool = False,
) -> Comparison:
    """Compare two inputs op by op, given as results or as files: results, traces or plans.

    Args:
        before: the first input.
        after: the second input; None compares the measured times of one result file with its predictions.
        times: "BEFORE:AFTER", each of "recorded", "measured", "simulated" or a simulated device; by default the
            recorded times of traces and plans, and the measured times of results.
        threshold: share, 0.05 for 5 %; smaller changes count as equal.
        method: for two runs: "gauges" (relative to reference measurements taken with every sample) or "medians".
        force: also compare runs of two machines or two measurement methods.

    Raises EnvironmentRefused if two runs are of two machines or two measurement methods, unless `force` is set;
    UsageError for times that an input does not have, and for other kinds of input.
    """
    from contextlib import nullcontext

    from opreplay.replay.job.times import simulated_times
    from opreplay.replay.plan.recorded.comparing import Operand, compare_operands, open_operand

    if method not in get_args(Method):
        raise UsageError(f"method is {method!r}", hint=f"Methods are {', '.join(get_args(Method))}.")
    if not threshold >= 0:
        raise UsageError(f"threshold is {threshold}", hint="It must be at least 0: 0.05 for 5 %.")

    def operand(given: Results | str | os.PathLike[str]) -> Operand:
        if isinstance(given, Results):
            return given.file
        try:
            path = os.fspath(given)
        except TypeError:
            raise UsageError(
                f"compare takes files and results of `run`, not {type(given).__name__}", hint="Name the trace's file."
            ) from None
        return open_operand(path, progress=nullcontext, activity=True)

    sides = [[] if given is None else [operand(given)] for given in (before, after)]
    judged = compare_operands(
        *sides, times=times, threshold=threshold, method=method, force=force, simulate=simulated_times
    )
    return Comparison(judged, sides)
