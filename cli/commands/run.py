# pyright: strict
"""`opreplay run`: measure and predict the ops of traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opreplay.cli.commands.batch import run_many, run_showing
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
from opreplay.cli.options.ranks import ranks_options, served_as_rank
from opreplay.cli.options.sequence import sequence_options
from opreplay.cli.options.settings import Command, setting
from opreplay.cli.options.source import Source, sources_options

if TYPE_CHECKING:
    from opreplay.cli.reporting import Showing
    from opreplay.replay.execute.options import RunOptions
    from opreplay.replay.plan.selection import Selection
    from opreplay.replay.results.records import L2State


@click.command("run", cls=Command, short_help="Re-run the ops of traces here, and predict them on a simulated NPU.")
@sources_options
@shared.device_option
@shared.soc_option
@shared.cluster_option
@shared.l2_option(None)
@shared.selection_options
@shared.plugin_option
@click.option(
    "--output",
    "-o",
    multiple=True,
    metavar="FILE",
    help="Also write results: .jsonl (op by op), .csv, .md, .html; - is JSON Lines on stdout. Repeatable.",
)
@shared.force_option
@shared.format_option("table", "json")
@setting(
    "--rows", flag_stays=True, is_flag=True, help="Print each op to stderr as it is measured (always on a terminal)."
)
@many_options
@quick_option("the 20 heaviest ops, 20 ms each and at most 10 s, unless --top, op_time or op_limit are given")
@dry_run_option
@measuring_options
@resume_option
@sequence_options
@ranks_options
@max_failed_option
@stop_on_error_option
@shared.init_arg_option
@shared.values_option
@checking_options
@history_options
@shared.all_option
@shared.notes_option
def command(
    source: Source | None,
    *,
    traces: tuple[str, ...],
    execution_trace: tuple[str, ...],
    limit: tuple[tuple[str, str], ...],
    **options: Any,
) -> int:
    """Replay each unique op of TRACE on this machine, predict each on a simulated Ascend NPU, and print both next to
    what the trace recorded.

    TRACE is a PyTorch profiler file or ExecutionTrace (.json or .json.gz), - for stdin, a plan of `opreplay plan`, or
    TraceLens's event_replay_ir.json. Times are for one call. For several traces, a glob or a folder, ops that they
    share run once; every trace, every job of ranks and the total are reported, and filters apply to each trace
    separately. --engine ray runs them on many machines. Results go to stdout, progress to stderr. Ctrl-C keeps what was
    measured; --resume continues from there.
    """
    if source is not None:
        options["showing"] = run_showing(**options)
        return run_one(source, **{name: options[name] for name in run_one.__annotations__ if name in options})
    whole: dict[str, Any] = {**options, "rows": None, "notes": True}
    options["showing"] = run_showing(**whole)
    of_many = {name: options[name] for name in run_many.__annotations__ if name in options}
    return run_many(traces, execution_trace, limit=limit, **of_many)


def run_one(
    source: Source,
    *,
    device: str,
    soc: tuple[str, ...],
    cluster: str | None,
    l2: L2State | None,
    selection: Selection,
    plugin: tuple[str, ...],
    measuring: RunOptions,
    quick: bool,
    init_arg: tuple[str, ...],
    values: str | None,
    stop_on_error: bool,
    showing: Showing,
) -> int:
    """Replay the unique ops of a trace, or its step in order; return the exit code."""
    from opreplay.cli.reporting import run_and_show
    from opreplay.cli.run_outputs import Outputs
    from opreplay.cli.setup import open_job, prepare, tell_unused, warn_of_small_cluster
    from opreplay.replay.job.settings import Settings
    from opreplay.replay.plan.inputs import tells_step
    from opreplay.replay.plan.select import refuse_nothing

    showing.refuse_unusable()
    if quick:
        selection, measuring = quick_look(selection, measuring)
    if measuring.ranks is not None and served_as_rank(measuring.ranks):
        return ExitCode.OK
    settings = Settings.of(
        measuring,
        device=device,
        cluster=cluster,
        l2=l2,
        activity=measuring.mode == "sequence" and tells_step(source.trace),
        allow_imports=selection.allow_imports,
        plugins=plugin,
        init_args=init_arg,
        values=values,
        stop_on_error=stop_on_error,
    )
    job = open_job(source, selection, settings, soc)
    with Outputs(showing.output, force=showing.force, resume=showing.resume) as outputs:
        refuse_nothing(job.plan)
        prepare(job, plugin)
        warn_of_small_cluster(job)
        if showing.dry_run:
            from opreplay.cli.plan_views import show_dry_run

            code = show_dry_run(job, showing)
            tell_unused(job.devices, job.plan.ops)
            return code
        faults = run_and_show(job, outputs, showing, devices_held=[device])
    tell_unused(job.devices, job.plan.ops)
    return showing.conclude(outputs, faults)
