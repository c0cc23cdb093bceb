# pyright: strict
"""`opreplay run`: the main job; parses flags, runs the plan, prints the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opreplay.cli.commands.batch import run_many
from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options import shared
from opreplay.cli.options.history import add_to_history, history_options, refuse_bad_history
from opreplay.cli.options.many import many_options
from opreplay.cli.options.measuring import (
    checking_options,
    dry_run_option,
    max_failed_option,
    measuring_options,
    needs_order,
    quick_look,
    quick_option,
    resume_option,
    stop_on_error_option,
)
from opreplay.cli.options.ranks import ranks_options, served_as_rank
from opreplay.cli.options.sequence import sequence_options
from opreplay.cli.options.settings import Command
from opreplay.cli.options.source import Source, sources_options

if TYPE_CHECKING:
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
@click.option("--rows", is_flag=True, help="Print each op on stderr as it is measured. On a terminal always.")
@many_options
@quick_option("the 20 heaviest ops, 20 ms each and at most 10 s, unless --top, op_time and op_limit say otherwise")
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
@shared.notes_option
def command(
    source: Source | None,
    *,
    traces: tuple[str, ...],
    execution_trace: tuple[str, ...],
    limit: tuple[tuple[str, str], ...],
    **options: Any,
) -> int:
    """Replay each unique op of TRACE on this machine, predict each on a simulated Ascend NPU, and print both beside
    what the trace recorded.

    TRACE is a PyTorch profiler file or ExecutionTrace (.json or .json.gz), - for stdin, a plan of `opreplay plan`, or
    TraceLens's event_replay_ir.json. Times are for one call.
    Of several traces, a glob or a folder, ops that they share run once; every trace, every job of ranks and all
    together are reported, and filters hold for each trace by itself. --engine ray runs them on many machines.
    Results go to stdout, progress to stderr. Ctrl-C keeps what was measured; --resume goes on from there.
    """
    if source is not None:
        return run_one(source, **{name: options[name] for name in run_one.__annotations__ if name in options})
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
    output: tuple[str, ...],
    force: bool,
    format_: str,
    rows: bool,
    quick: bool,
    dry_run: bool,
    measuring: RunOptions,
    resume: bool,
    max_failed: int | None,
    stop_on_error: bool,
    init_arg: tuple[str, ...],
    values: str | None,
    history: str | None,
    label: str | None,
    notes: bool,
) -> int:
    """Replay the unique ops of a trace, or its step in order; the exit code."""
    import msgspec

    from opreplay.cli.opening import tells_step
    from opreplay.cli.outputs import Outputs
    from opreplay.cli.reporting import one_stdout, outcome_code, run_and_show
    from opreplay.cli.setup import recorded_step, refuse_unused_initializers, set_up, tell_unused
    from opreplay.cli.terminal.console import narrate
    from opreplay.replay.ascend.simulate.devices import ranks_without_dies
    from opreplay.replay.plan.collectives.in_plan import on_ranks
    from opreplay.replay.plan.inputs import plan_of, trace_facts, with_recorded_children
    from opreplay.replay.plan.recorded.where import where_of
    from opreplay.replay.plan.select import refuse_nothing

    one_stdout(format_, output)
    refuse_bad_history(history, label, dry_run=dry_run)
    if quick:
        selection, measuring = quick_look(selection, measuring)
    if measuring.ranks is not None and served_as_rank(measuring.ranks):
        return ExitCode.OK
    plugin, contents, devices = set_up(plugin, init_arg, seed=measuring.seed, values=values, socs=soc, cluster=cluster)
    state: L2State = l2 or ("sequence" if measuring.mode == "sequence" else measuring.l2_state())
    with Outputs(output, force=force, resume=resume) as outputs:
        collectives = measuring.ranks is not None or cluster is not None
        in_sequence = measuring.mode == "sequence"
        read = source.open(activity=collectives or (in_sequence and tells_step(source.trace)))
        ordered = needs_order(selection, measuring)
        plan = plan_of(read, selection, device=device, in_order=ordered, collectives=collectives)
        refuse_nothing(plan)
        plan = on_ranks(plan, measuring.ranks)
        refuse_unused_initializers(contents.registry, plan.ops, plugin, init_arg)
        if (small := ranks_without_dies(plan.ops, devices.values())) is not None:
            narrate(small)
        if dry_run:
            from opreplay.cli.plan_views import dry_run_code, show_dry_run

            show_dry_run(
                plan,
                devices,
                measuring,
                contents=contents,
                values=values,
                l2=state,
                where=where_of(read),
                everything=notes,
                format_=format_,
            )
            return dry_run_code(plan, measuring, max_failed)
        options = msgspec.structs.replace(
            measuring,
            device=device,
            stop_on_error=stop_on_error,
            allow_imports=selection.allow_imports,
            plugins=plugin,
            init_args=init_arg,
            values=values,
            l2=state,
        )
        step = recorded_step(read, selection, plan, list(devices.values()), contents) if in_sequence else None
        if options.check_kernels:
            plan = with_recorded_children(plan, read)
        faults = run_and_show(
            plan,
            options,
            outputs,
            devices,
            contents,
            devices_held=[device],
            format_=format_,
            everything=notes,
            rows=rows,
            trace=trace_facts(read),
            step=step,
        )
    tell_unused(devices, plan.ops)
    add_to_history(history, label, outputs)
    return outcome_code(outputs, max_failed, faults)
