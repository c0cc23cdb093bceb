# pyright: strict
"""`opreplay batch`: run many traces as one job.

Parses options, merges plans, runs them and prints the totals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import click

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options import shared
from opreplay.cli.options.history import history_options
from opreplay.cli.options.many import many_options
from opreplay.cli.options.measuring import (
    checking_options,
    dry_run_option,
    max_failed_option,
    measuring_options,
    quick_look,
    quick_option,
    resume_option,
    stop_on_error_option,
)
from opreplay.cli.options.settings import Command

if TYPE_CHECKING:
    from opreplay.cli.reporting import Showing
    from opreplay.cli.run_outputs import Outputs
    from opreplay.replay.batch.merge import Batch
    from opreplay.replay.batch.plan_store import PlanStore
    from opreplay.replay.batch.reading import HowToRead, Unreadable
    from opreplay.replay.execute.options import RunOptions
    from opreplay.replay.plan.selection import Selection


def run_many(
    traces: Sequence[str],
    execution_trace: Sequence[str],
    *,
    device: str,
    process: str | None,
    soc: tuple[str, ...],
    selection: Selection,
    plugin: tuple[str, ...],
    quick: bool,
    workers: int | None,
    engine: str,
    address: str | None,
    measuring: RunOptions,
    stop_on_error: bool,
    allow_damaged: bool,
    init_arg: tuple[str, ...],
    values: str | None,
    limit: tuple[tuple[str, str], ...],
    showing: Showing,
) -> int:
    """Replay the unique ops of many traces, each once; return the exit code."""
    from opreplay.cli.opening import parse_limits
    from opreplay.cli.reporting import engine_of, run_and_show
    from opreplay.cli.run_outputs import Outputs
    from opreplay.cli.setup import open_job
    from opreplay.cli.terminal.console import narrate
    from opreplay.cli.terminal.progress import FilesProgress
    from opreplay.replay.batch.job import Traces
    from opreplay.replay.execute.processes.lanes import lane_devices
    from opreplay.replay.job.settings import Settings
    from opreplay.traces.errors import UsageError

    if address is not None and engine != "ray":
        raise UsageError(
            "--set address needs --engine ray", hint="Add --engine ray: --set address names a Ray cluster."
        )
    showing.refuse_unusable()
    selection, measuring = quick_look(selection, measuring) if quick else (selection, measuring)
    settings = Settings.of(
        measuring,
        device=device,
        stop_on_error=stop_on_error,
        allow_imports=selection.allow_imports,
        plugins=plugin,
        init_args=init_arg,
        lanes=workers or 1,
        values=values,
    )
    source = Traces(lanes=workers, engine=engine, address=address, tell=narrate, progress=FilesProgress)
    job = open_job(source, selection, settings, soc)
    with Outputs(showing.output, force=showing.force, resume=showing.resume) as outputs:
        source.find(traces, execution_trace, job, limits=parse_limits(limit), process=process)
        if showing.dry_run:
            from opreplay.cli.plan_views import show_dry_run

            code = show_dry_run(job, showing)
            return _first(source.refused, _report_damaged(source.batch, allow_damaged), code)
        with stored_plans(outputs, source.how) as source.store:
            _ = job.plan  # fills source.batch
            devices_held = [] if engine == "ray" else lane_devices(device, workers or 1, shared=settings.shared_device)
            on_ray = engine_of(job.settings.run_options(), engine=engine, lanes=workers, address=address)
            faults = run_and_show(job, outputs, showing, devices_held=devices_held, engine=on_ray)
    return _first(source.refused, _report_damaged(source.batch, allow_damaged), showing.conclude(outputs, faults))


def run_showing(
    *,
    output: tuple[str, ...],
    force: bool,
    resume: bool,
    format_: str,
    history: str | None,
    label: str | None,
    max_failed: int | None,
    dry_run: bool,
    rows: bool | None = None,
    notes: bool = True,
    all_rows: bool = True,
    **others: Any,
) -> Showing:
    """Return the output settings, a `Showing`, from the options of a command that runs ops."""
    from opreplay.cli.reporting import Showing

    return Showing(
        output=output,
        force=force,
        resume=resume,
        format_=format_,
        history=history,
        label=label,
        max_failed=max_failed,
        dry_run=dry_run,
        rows=rows,
        notes=notes,
        all_rows=all_rows,
    )


@click.command("batch", cls=Command, short_help="Like `run`, for many traces.", hidden=True)
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@shared.execution_traces_option
@shared.device_option
@shared.process_option
@shared.soc_option
@shared.selection_options
@shared.plugin_option
@click.option(
    "--output",
    "-o",
    multiple=True,
    metavar="FILE",
    help="Also write results: .jsonl (op by op, then traces and jobs), .csv, .md, .html; - is JSON Lines on stdout. "
    "Repeatable.",
)
@shared.force_option
@shared.format_option("table", "json")
@quick_option("the 20 heaviest ops of each trace, as in `opreplay run`")
@dry_run_option
@many_options
@measuring_options
@resume_option
@max_failed_option
@stop_on_error_option
@shared.init_arg_option
@shared.values_option
@checking_options
@history_options
@shared.limit_option
def command(traces: tuple[str, ...], execution_trace: tuple[str, ...], **options: Any) -> int:
    """Run many traces like `opreplay run`, with the same report for a single one.

    TRACE is a profiler file, an ExecutionTrace or a plan; a glob; or a folder with such files. Filters apply to each
    trace separately. Files that are ranks of one job, by their metadata or names, are merged. A file that cannot be
    read does not affect the others; the exit code is then 3, as for a damaged one.
    """
    options["showing"] = run_showing(**options)
    of_many = {name: options[name] for name in run_many.__annotations__ if name in options}
    return run_many(traces, execution_trace, **of_many)


def _report_damaged(batch: Batch, allowed: bool) -> Sequence[str]:
    """Report on stderr and return the traces that were read only in part; return nothing if `allowed`."""
    from opreplay.cli.terminal.console import narrate

    damaged = () if allowed else batch.damaged()
    for path in damaged:
        narrate(
            f"opreplay: error: {path} is cut short or damaged: only the readable part is shown (to accept this, add "
            "--set allow_damaged=true)"
        )
    return damaged


def _first(refused: Sequence[Unreadable], damaged: Sequence[str], code: ExitCode) -> ExitCode:
    """Return the exit code of the process: REFUSED if a trace was unreadable or damaged, otherwise `code`."""
    return ExitCode.REFUSED if refused or damaged else code


@contextlib.contextmanager
def stored_plans(outputs: Outputs, how: HowToRead) -> Generator[PlanStore | None, None, None]:
    """Yield the store of plans in the user's cache; None if user code is used, because the store would not notice its
    changes.

    If a run cannot be resumed because trace files have changed, these files are reported and their stored plans
    removed.
    """
    if how.plugins or how.selection.allow_imports:
        yield None
        return
    from opreplay.cli.terminal.console import narrate
    from opreplay.replay.batch.job import some
    from opreplay.replay.batch.plan_store import PlanStore
    from opreplay.traces.errors import UsageError

    store = PlanStore(how.settings())
    try:
        yield store
    except UsageError:
        if outputs.earlier is not None and (others := store.undo()):
            narrate(f"opreplay: changed since the run to resume: {some(others)}")
        raise
