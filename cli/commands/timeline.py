# pyright: strict
"""`opreplay timeline`: explain the duration of one step, and estimate the gain of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import click

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options import shared
from opreplay.cli.options.settings import Command, setting
from opreplay.cli.options.types import SocName

if TYPE_CHECKING:
    from opreplay.replay.ascend.profile import DeviceProfile
    from opreplay.replay.capture.serving.form import Fused
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.report.step.tracks import Process
    from opreplay.replay.report.view import View
    from opreplay.replay.timeline.captured import CapturedChange
    from opreplay.replay.timeline.job.values import JobChange
    from opreplay.replay.timeline.measured import MeasuredOps
    from opreplay.replay.timeline.timeline import WhatIf


@click.command("timeline", cls=Command, short_help="Explain the time of a step, and estimate changes.")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option(
    "--ranks",
    is_flag=True,
    help=("Treat the TRACEs, or those in a folder, as ranks of one job: show who waits for whom, and who is late."),
)
@shared.process_option
@shared.kernel_details_option
@click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="N",
    help=("N of ProfilerStep#N, or the Nth iteration of a server.  [default: the step of median length]"),
)
@click.option(
    "--what-if",
    multiple=True,
    metavar="CHANGE",
    help=(
        "Show the step's duration after a change: 'aten::mm*=0.5x', 'nccl*=0', 'fuse "
        "aten::add,aten::mul', 'dtype bf16', 'cudagraph', 'overlap comm'. Repeatable."
    ),
)
@click.option(
    "--advise",
    is_flag=True,
    help=(
        "Try the usual changes (CUDA graphs, data loading, overlap, fusion, slow ops, types, copies) and rank them by "
        "time saved per step."
    ),
)
@click.option(
    "--soc",
    multiple=True,
    type=SocName(),
    metavar="NAME|FILE",
    help="Also predict the step on this simulated device, or on a device file (.toml). Repeatable.",
)
@shared.cluster_option
@setting(
    "--host-scale",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="X",
    help="On simulated devices, scale recorded host times by X.",
)
@click.option(
    "--timeline",
    "timeline_file",
    metavar="FILE.json.gz|.pftrace",
    help=(
        "Write recorded, measured and simulated timelines to one file for ui.perfetto.dev and "
        "chrome://tracing; .pftrace is Perfetto's own format."
    ),
)
@click.option(
    "--measured",
    metavar="RESULTS.jsonl",
    help=(
        "Also compute the step of a CPU trace from the op times measured by `run --output`; with --ranks, the step of "
        "a job, including measured collectives."
    ),
)
@click.option(
    "--host",
    metavar="RESULTS.jsonl",
    help=("For a captured step: use the host time per call that `run --output` measured for the plan on this machine."),
)
@shared.captured_fused_option
@shared.plugin_option
@shared.page_option
@shared.all_option
@shared.notes_option
@shared.format_option("table", "json")
@shared.force_option
@shared.limit_option
def command(
    traces: tuple[str, ...],
    ranks: bool,
    process: str | None,
    kernel_details: str | None,
    step: int | None,
    what_if: tuple[str, ...],
    advise: bool,
    soc: tuple[str, ...],
    cluster: str | None,
    host_scale: float,
    timeline_file: str | None,
    measured: str | None,
    host: str | None,
    fused: Fused | None,
    plugin: tuple[str, ...],
    output: str | None,
    all_rows: bool,
    notes: bool,
    format_: str,
    force: bool,
    limit: tuple[tuple[str, str], ...],
) -> int:
    """Rebuild one step of TRACE as a graph of what waited for what, and compute its times again: what the device did
    and why it was idle, the critical path, and what changes would gain. The first line says what bounds the
    step or, with --what-if, how long the changed step takes. --soc also predicts the step on a simulated device;
    --ranks shows how the ranks of a job wait for each other.
    """
    from opreplay.cli.outputs import check_outputs, write_view
    from opreplay.cli.plan_views import plan_file
    from opreplay.cli.setup import apply_fusion, tell_unused, use_plugins
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend.simulate.devices import load_socs
    from opreplay.traces.errors import UsageError

    first, *others = traces
    if others and not ranks:
        raise UsageError(
            f"several traces ({len(traces)}) without --ranks",
            hint="Add --ranks if they are ranks of one job; otherwise name one trace.",
        )
    check_outputs([output], force=force)
    if timeline_file is not None:
        _check_timeline(Path(timeline_file), force=force)
    use_plugins(plugin)
    socs = load_socs(soc, cluster)
    devices = list(socs.values())
    captured = apply_fusion(None if ranks else plan_file(first), fused)
    if host is not None and (captured is None or not captured.captured):
        raise UsageError(
            "--host needs a captured step",
            hint="A recorded step has its own host times; scale them with --set host_scale.",
        )
    if ranks and kernel_details is not None:
        raise UsageError("--set kernel_details is for one trace and cannot be combined with --ranks")
    if advise and (ranks or what_if or soc or measured is not None):
        raise UsageError(
            "--advise cannot be combined with --ranks, --what-if, --soc or --measured",
            hint="--advise only tries changes of one recorded step; use the other options in a second command.",
        )
    if captured is not None and captured.captured:
        refused = {"--step": step, "--timeline": timeline_file, "--measured": measured, "--output": output}
        refused["--advise"] = advise or None
        if (option := next((name for name, value in refused.items() if value is not None), None)) is not None:
            raise UsageError(
                f"{option} needs a recorded step", hint=f"{first} was captured, so no times were recorded."
            )
        return _of_captured(captured, devices, (host_scale, host), what_if, format_)
    asked = StepOptions(
        step=step, what_if=what_if, devices=devices, host_scale=host_scale, measured=_measured(measured)
    )
    if ranks:
        result = _job(traces, limit, asked, everything=notes, all_rows=all_rows)
    else:
        result = _step(
            first, limit, kernel_details, asked, process=process, everything=notes, all_rows=all_rows, advise=advise
        )
    _refuse_unmatched(result.what_if)
    write_view(result.view, [output], force=force)
    if timeline_file is not None:
        _write_timeline(result.processes(), Path(timeline_file), force=force)
    console.show_view(result.view, format_)
    if result.plan is not None:
        tell_unused(socs, result.plan.ops)
    return ExitCode.OK


class StepOptions(TypedDict):
    """Options for the analysis of one step, of a single trace or of several ranks."""

    step: int | None
    what_if: tuple[str, ...]
    devices: list[DeviceProfile]
    host_scale: float
    measured: MeasuredOps | None


class StepAnalysis(NamedTuple):
    """Result of the analysis of one step."""

    view: View
    processes: Callable[[], Iterable[Process]]
    """Function that returns the processes to write to the timeline file."""
    what_if: Sequence[WhatIf | JobChange]
    plan: ReplayPlan | None = None
    """Ops that were predicted, if any."""


def _step(
    text: str,
    limit: tuple[tuple[str, str], ...],
    kernel_details: str | None,
    asked: StepOptions,
    *,
    process: str | None,
    everything: bool,
    all_rows: bool,
    advise: bool,
) -> StepAnalysis:
    """Analyse one step of one trace."""
    from opreplay.cli.opening import busiest_of, open_trace
    from opreplay.replay.job.job import planned_step
    from opreplay.replay.report.page import of_timeline
    from opreplay.replay.report.step.tracks import processes
    from opreplay.replay.timeline.timeline import timeline, with_other_steps

    trace = open_trace(text, limit, process=process, kernel_details=kernel_details, activity=True)
    trace = busiest_of(trace)
    planned = planned_step(trace, asked["devices"])
    study = with_other_steps(trace, timeline(trace, planned=planned, **asked))
    if advise:
        view = of_timeline.view_of_advice(study, everything=everything)
    else:
        view = of_timeline.view(study, everything=everything, all_rows=all_rows)
    return StepAnalysis(view, lambda: processes(study), study.timeline.what_if, planned and planned.plan)


def _job(
    traces: tuple[str, ...], limit: tuple[tuple[str, str], ...], asked: StepOptions, *, everything: bool, all_rows: bool
) -> StepAnalysis:
    """Analyse one step of several ranks of the same job."""
    from opreplay.cli.opening import open_trace
    from opreplay.cli.terminal import console
    from opreplay.replay.batch.reading import open_ranks
    from opreplay.replay.job.job import planned_step
    from opreplay.replay.report.page import of_timeline
    from opreplay.replay.report.step.tracks import rank_processes
    from opreplay.replay.timeline.job.study import job_timeline

    rank_traces = open_ranks(traces, lambda path: open_trace(path, limit, activity=True), console.narrate)
    planned = [step for _, trace in rank_traces if (step := planned_step(trace, asked["devices"])) is not None]
    study = job_timeline(rank_traces, planned=planned, **asked)
    view = of_timeline.view_of_ranks(study, everything=everything, all_rows=all_rows)
    return StepAnalysis(view, lambda: rank_processes(study), study.timeline.what_if)


def _of_captured(
    plan: ReplayPlan,
    devices: list[DeviceProfile],
    host: tuple[float, str | None],
    what_if: tuple[str, ...],
    format_: str,
) -> int:
    """Print the analysis of the step of a captured plan, which has no recorded times.

    `host` is (factor for CPU times, file of CPU times or None).
    """
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend.simulate.devices import simulate_plan
    from opreplay.replay.ascend.simulate.step_residency import PlannedStep
    from opreplay.replay.ops.work.expected import expected_contents
    from opreplay.replay.report.step import captured_times
    from opreplay.replay.results.reading import read_result_file
    from opreplay.replay.timeline.captured import captured_timeline
    from opreplay.replay.timeline.measured import measured_host

    steps = simulate_plan(PlannedStep(plan, expected_contents()), devices)
    scale, file = host
    times = None if file is None else measured_host(read_result_file(file))
    timeline = captured_timeline(plan, steps, host_scale=scale, what_if=what_if, host=times)
    _refuse_unmatched(timeline.what_if)
    console.show_view(captured_times.view(timeline), format_)
    return ExitCode.OK


def _measured(path: str | None) -> MeasuredOps | None:
    """Return the measured ops of a result file; None if no file is given."""
    if path is None:
        return None
    from opreplay.replay.results.reading import read_result_file
    from opreplay.replay.timeline.measured import measured_ops

    return measured_ops(read_result_file(path))


def _refuse_unmatched(changes: Sequence[WhatIf | JobChange | CapturedChange]) -> None:
    """Raise UsageError for changes that match nothing in the step, before anything is printed."""
    from opreplay.traces.errors import UsageError

    nothing = [change for change in changes if not change.matched]
    if nothing:
        notes = [getattr(change, "assumptions", None) or ["matches no call of the step"] for change in nothing]
        why = [reasons[0].partition(". ") for reasons in notes]
        told = [f"--what-if {change.change!r} {what}" for change, (what, _, _) in zip(nothing, why, strict=True)]
        raise UsageError("; ".join(told), hint=why[0][2] or "`opreplay plan` lists the ops.")


def _check_timeline(path: Path, *, force: bool) -> None:
    """Raise UsageError, before anything is read, for a timeline file that cannot be written."""
    from opreplay.cli.outputs import check_writable
    from opreplay.replay.report.step import pftrace

    check_writable(path, force=force)
    if path.name.lower().endswith(pftrace.SUFFIXES):
        pftrace.check_installed()


def _write_timeline(processes: Iterable[Process], path: Path, *, force: bool) -> None:
    from opreplay.cli.terminal import console
    from opreplay.replay.report.step import pftrace, tracks

    is_perfetto = path.name.lower().endswith(pftrace.SUFFIXES)
    count = (pftrace if is_perfetto else tracks).write(processes, path, force=force)
    console.narrate(
        f"opreplay: {count:,} {'slices' if is_perfetto else 'events'} in {path}: open it in ui.perfetto.dev"
    )
