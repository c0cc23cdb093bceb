# pyright: strict
"""Inspection of recorded traces: their contents, and why a step takes as long as it does.

Does not import torch by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ir.step import StepReport
from opreplay.replay.plan.inputs import names_several, open_input, open_trace, plan_dialect
from opreplay.replay.plugins import load_plugins
from opreplay.replay.session.display import Tabular
from opreplay.replay.session.setting import devices_of, several, warn_of_damage, warn_user
from opreplay.replay.session.trace import OpenTrace, Path, Source, paths_of, recorded_trace
from opreplay.traces import Limits, Trace, TraceSummary, summarize
from opreplay.traces.errors import UsageError
from opreplay.traces.processes.select import one_process

if TYPE_CHECKING:
    from opreplay.replay.ascend.profile import DeviceProfile
    from opreplay.replay.capture.serving.form import Fused
    from opreplay.replay.report.table import AnyTable
    from opreplay.replay.report.view import View
    from opreplay.replay.results.reading import ResultFile
    from opreplay.replay.session.whole import Results
    from opreplay.replay.timeline.captured import CapturedTimeline
    from opreplay.replay.timeline.job.values import JobTimeline
    from opreplay.replay.timeline.measured import MeasuredOps
    from opreplay.replay.timeline.timeline import Timeline as Step


class ShownStep(Tabular, StepReport, frozen=True, kw_only=True):
    """StepReport that displays itself at a prompt and in a notebook."""

    _command = "opreplay.step"

    @classmethod
    def of(cls, report: StepReport) -> ShownStep:
        return cls(**{field: getattr(report, field) for field in StepReport.__struct_fields__})

    def _tables(self) -> Mapping[str, Callable[[], AnyTable]]:
        from opreplay.replay.report.step.tables import segments

        return {"segments": lambda: segments(self)}

    def _view(self) -> View:
        from opreplay.replay.report.page.parts import view_of_step

        return view_of_step(self)


class Inspection(Tabular):
    """Contents of a trace: a summary, and tables of where the time goes."""

    _command = "opreplay.inspect"

    def __init__(self, trace: Trace, *, peak: str | None = None, limits: Limits | None = None) -> None:
        from opreplay.traces.times.peaks import peak_named

        self.trace = trace
        """The trace as returned by `read_trace`, stored in columns."""
        self._peak, self._limits = None if peak is None else peak_named(peak), limits

    @cached_property
    def summary(self) -> TraceSummary:
        """Return counts and times of the file, and what was lost in recording or reading it."""
        return summarize(self.trace)

    @cached_property
    def step(self) -> ShownStep | None:
        """Return the step of median length; None if the trace has no times."""
        from opreplay.replay.timeline.timeline import step_of

        found = step_of(self.trace)
        return None if found is None else ShownStep.of(found)

    def _tables(self) -> Mapping[str, Callable[[], AnyTable]]:
        from opreplay.replay.report.inspected import tables

        return tables(self.trace, peak=self._peak, limits=self._limits)

    def _view(self) -> View:
        from opreplay.replay.report.views.trace import view

        return view(self.summary, self.step)


def inspect(
    trace: Source | OpenTrace,
    *,
    process: str | None = None,
    kernel_details: str | None = None,
    capture: str | None = None,
    peak: str | None = None,
    limits: Limits | None = None,
) -> Inspection:
    """Summarize a trace and where its time goes: by op, kernel, module and others (see `Inspection.tables`).

    Args:
        trace: a profile, or a trace that was already read or opened.
        process: name of the process to use, if the file was merged from the profiles of several processes.
        kernel_details: kernel table of an NPU.
        capture: the profile recorded while the CUDA graphs of a trace were captured, or a folder of such profiles.
        peak: device whose peak rates count as 100 %, such as "MI300X", if the trace does not name its device.
        limits: limits of the reader.

    Raises UsageError for a plan, which has no recorded times, and TraceError for a file that cannot be read.
    """
    read = recorded_trace(trace, process=process, kernel_details=kernel_details, capture=capture, limits=limits)
    return Inspection(read, peak=peak, limits=limits)


def step(trace: str | os.PathLike[str], soc: str | Sequence[str] = ()) -> ShownStep:
    """Return the step of median length of a trace.

    The result tells the step's duration and what bounds it, both as recorded and on simulated devices. Raises
    UsageError for a file without event times, and for an unknown device.
    """
    from opreplay.replay.timeline.timeline import step_of

    read = warn_of_damage(open_input(os.fspath(trace), activity=True))
    devices = list(devices_of(soc).values())
    report = step_of(read, devices=devices)
    if report is None:
        raise UsageError(
            f"{os.fspath(trace)} does not record when events ran", hint="Record a profile with event times."
        )
    return ShownStep.of(report)


class Timeline(Tabular):
    """Analysis of one step: what the device did, why it was idle, the critical path, and the gain of changes."""

    _command = "opreplay.timeline"

    def __init__(self, found: Step | JobTimeline | CapturedTimeline, view: View) -> None:
        self.found = found
        """The full result: the step of a trace, of several ranks, or of a captured plan."""
        self._shown = view
        for change in found.what_if:
            if not change.matched:
                told = getattr(change, "assumptions", ()) or ("matches no call of the step",)
                warn_user(f"what_if {change.change!r} {told[0]}")

    def _view(self) -> View:
        return self._shown


def timeline(
    trace: Source | OpenTrace,
    *,
    ranks: bool = False,
    process: str | None = None,
    kernel_details: str | None = None,
    step: int | None = None,
    what_if: str | Sequence[str] = (),
    soc: str | Sequence[str] = (),
    cluster: str | None = None,
    host_scale: float = 1.0,
    measured: Results | Path | None = None,
    host: Results | Path | None = None,
    fused: Fused | None = None,
    plugins: str | Sequence[str] = (),
    limits: Limits | None = None,
) -> Timeline:
    """Explain the duration of one step, and estimate the gain of changes, as `opreplay timeline` does.

    Args:
        trace: a trace or a captured plan; several traces are the ranks of one job.
        ranks: whether the processes of one file are the ranks of a job.
        process: name of the process to use, if the file was merged from the profiles of several processes.
        kernel_details: kernel table of an NPU.
        step: N of ProfilerStep#N, or the Nth iteration of a server; by default the step of median length.
        what_if: changes: "aten::mm*=0.5x", "nccl*=0", "fuse aten::add,aten::mul", "dtype bf16", "cudagraph".
        soc: names of simulated devices, or device files, on which the step is predicted as well.
        cluster: the simulated cluster, such as "2x8x910b3".
        host_scale: factor for recorded CPU times on simulated devices.
        measured: results of a run; their measured times are used for the ops of a CPU step or of a job.
        host: results of a run; their CPU times are used for the calls of a captured plan.
        fused: fused kernels of inference servers that replace calls of a captured plan, as in `simulate`.
        plugins: files and modules to run first.
        limits: limits of the reader.

    Raises UsageError for options that cannot be combined, TraceError for a missing step and for an unknown change.
    """
    if not host_scale > 0:
        raise UsageError(f"host_scale is {host_scale}", hint="It must be above 0; 1 keeps the recorded host times.")
    load_plugins(several(plugins))
    devices = list(devices_of(soc, cluster).values())
    how = _StepOptions(step, several(what_if), devices, host_scale, _measured(measured))
    captured = _captured(trace)
    if captured is not None:
        if step is not None or measured is not None or ranks:
            raise UsageError("a captured step has no recorded times", hint="Remove `step`, `measured` and `ranks`.")
        return _of_captured(captured, how, host, fused)
    if host is not None or fused == "ascend":
        raise UsageError("`host` and `fused` need a captured step", hint="Scale recorded host times with host_scale.")
    source = trace.read if isinstance(trace, OpenTrace) else trace
    if not isinstance(source, (Trace, ReplayPlan)) and (ranks or names_several(paths_of(source))):
        if process is not None or kernel_details is not None:
            raise UsageError(
                "`process` and `kernel_details` are for one trace", hint="Remove them, or give only one trace."
            )
        return _of_ranks(paths_of(source), how, limits)
    read = recorded_trace(trace, process=process, kernel_details=kernel_details, limits=limits)
    part = one_process(read)
    if part is not read:
        warn_user(
            f"{read.info.path} contains {part.info.processes} processes; shown is {part.info.process!r}. Select "
            "another with `process`"
        )
    return _of_step(part, how)


class _StepOptions(NamedTuple):
    """Options for the analysis of one step, of a single trace or of several ranks."""

    step: int | None
    what_if: tuple[str, ...]
    devices: list[DeviceProfile]
    host_scale: float
    measured: MeasuredOps | None


def _captured(trace: Source | OpenTrace) -> ReplayPlan | None:
    """Return the captured plan that `trace` is or contains; None for a trace. Raises UsageError for any other plan."""
    source = trace.read if isinstance(trace, OpenTrace) else trace
    if isinstance(source, (str, os.PathLike)) and plan_dialect(os.fspath(source)) is not None:
        read = open_input(os.fspath(source))
        assert isinstance(read, ReplayPlan)
        source = read
    if not isinstance(source, ReplayPlan):
        return None
    if not source.captured:
        raise UsageError(f"{source.source} is the plan of a trace and contains no times", hint="Name the trace.")
    return source


def _measured(results: Results | Path | None) -> MeasuredOps | None:
    from opreplay.replay.timeline.measured import measured_ops

    return None if results is None else measured_ops(_file(results))


def _file(results: Results | Path) -> ResultFile:
    from opreplay.replay.results.reading import read_result_file

    return read_result_file(os.fspath(results)) if isinstance(results, (str, os.PathLike)) else results.file


def _of_step(trace: Trace, how: _StepOptions) -> Timeline:
    from opreplay.replay.job.job import planned_step
    from opreplay.replay.report.page.of_timeline import view
    from opreplay.replay.timeline.timeline import timeline, with_other_steps

    planned = planned_step(trace, how.devices)
    study = with_other_steps(trace, timeline(trace, planned=planned, **how._asdict()))
    return Timeline(study.timeline, view(study, everything=True))


def _of_ranks(paths: tuple[str, ...], how: _StepOptions, limits: Limits | None) -> Timeline:
    from opreplay.replay.batch.reading import open_ranks
    from opreplay.replay.job.job import planned_step
    from opreplay.replay.report.page.of_timeline import view_of_ranks
    from opreplay.replay.timeline.job.study import job_timeline

    traces = open_ranks(paths, lambda path: warn_of_damage(open_trace(path, limits=limits, activity=True)), warn_user)
    planned = [step for _, trace in traces if (step := planned_step(trace, how.devices)) is not None]
    study = job_timeline(traces, planned=planned, **how._asdict())
    return Timeline(study.timeline, view_of_ranks(study, everything=True))


def _of_captured(plan: ReplayPlan, how: _StepOptions, host: Results | Path | None, fused: Fused | None) -> Timeline:
    from opreplay.replay.ascend.simulate.devices import simulate_plan
    from opreplay.replay.ascend.simulate.step_residency import PlannedStep
    from opreplay.replay.job.job import with_fused_kernels
    from opreplay.replay.ops.work.expected import expected_contents
    from opreplay.replay.report.step.captured_times import view
    from opreplay.replay.timeline.captured import captured_timeline
    from opreplay.replay.timeline.measured import measured_host

    if not how.devices:
        raise UsageError("a captured step only has times on simulated devices", hint='Name one: soc="910b3".')
    served_plan = with_fused_kernels(plan, fused)
    assert isinstance(served_plan, ReplayPlan)
    steps = simulate_plan(PlannedStep(served_plan, expected_contents()), how.devices)
    times = None if host is None else measured_host(_file(host))
    found = captured_timeline(served_plan, steps, host_scale=how.host_scale, what_if=how.what_if, host=times)
    return Timeline(found, view(found))
