"""`opreplay plan`: the dry run; what would be replayed, how, and why not the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from opreplay.cli.options import (
    ByteSize,
    custom_op_option,
    device_option,
    execution_trace_option,
    force_option,
    format_option,
    limit_option,
    plugin_option,
    selection_options,
    soc_option,
    trace_argument,
)

if TYPE_CHECKING:
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.ir import ReplayPlan

TRACELENS_NAMES = (".tracelens.json", "event_replay_ir.json")
"""Ends of the names of files that are written as TraceLens's IR, which has no counts, times or reasons."""


@click.command("plan", short_help="Say what would run and how, without running it.")
@trace_argument
@execution_trace_option
@device_option
@soc_option
@custom_op_option
@selection_options
@plugin_option
@click.option("--max-op-memory", type=ByteSize(), metavar="SIZE", help="Mark ops that need more as skipped, e.g. 1GB.")
@click.option("--explain", metavar="OP", help="Explain one op in full: a name, a glob or an id.")
@format_option("table", "json")
@click.option(
    "--output", "-o", metavar="FILE", help="Write the plan as JSON; .tracelens.json for TraceLens; - is stdout."
)
@force_option
@limit_option
def command(
    trace: str, execution_trace: str | None, device: str, soc: tuple[str, ...], custom_op_dir: str | None, select: str,
    op_filter: tuple[str, ...], exclude: tuple[str, ...], phase: Phase | None, top: int | None, min_share: float | None,
    allow_import: tuple[tuple[str, str], ...], plugin: tuple[str, ...], max_op_memory: int | None,
    explain: str | None, format_: str, output: str | None, force: bool, limit: tuple[tuple[str, str], ...],
) -> None:  # fmt: skip
    """Resolve each unique op of TRACE, count its bytes and predict its time, without running anything.

    --explain shows one op: its arguments by name, what was assumed, how it was resolved, and the kernels it becomes on
    each simulated device.
    """
    from opreplay.cli.inputs import open_input, plan_of
    from opreplay.cli.outputs import check_writable
    from opreplay.cli.planning import Selection, load_socs, use_plugins

    if output not in (None, "-"):
        check_writable(Path(output), force=force)
    use_plugins(plugin)
    devices = load_socs(soc, custom_op_dir)
    selection = Selection(
        select=select, include=op_filter, exclude=exclude, phase=phase, top=top, min_share=min_share,
        allow_imports=dict(allow_import),
    )  # fmt: skip
    plan = plan_of(open_input(trace, limit, execution_trace=execution_trace), selection, device=device)
    if output is not None:
        save(plan, output, force=force)
    if explain is not None:
        show_explanation(plan, devices, explain, max_op_bytes=max_op_memory, format_=format_)
    elif output != "-":
        show_plan(plan, devices, max_op_bytes=max_op_memory, format_=format_)


def save(plan: ReplayPlan, output: str, *, force: bool) -> None:
    """Write the plan as JSON to a file or to stdout; as TraceLens has it where the file's name says so."""
    from opreplay.cli import console
    from opreplay.cli.outputs import write_file

    if output.lower().endswith(TRACELENS_NAMES):
        from opreplay.replay.tracelens_ir import write_tracelens_ir

        left_out = write_tracelens_ir(plan, output, force=force)
        if left_out:
            console.narrate(f"{output} leaves out {left_out} of {len(plan.ops)} ops, which cannot be called")
        return
    text = console.json_text(plan)
    if output == "-":
        console.write(text)
    else:
        write_file(Path(output), text, force=force)


def show_plan(
    plan: ReplayPlan, devices: dict[str, DeviceProfile], *, max_op_bytes: int | None, format_: str = "table"
) -> None:
    """Print the coverage that a run would have, then its ops."""
    from opreplay.cli import console
    from opreplay.cli.planning import simulate_on
    from opreplay.replay.report import plan as view
    from opreplay.replay.report.facts import coverage_line

    results = view.planned_results(plan, lambda op: simulate_on(op, devices), max_op_bytes=max_op_bytes)
    summary = view.planned_summary(plan, results)
    if format_ == "json":
        console.write(console.json_text(view.facts(plan, results, summary)))
        return
    console.show_line(coverage_line(None, results, summary, verb="would replay"))
    console.show_fitted(lambda width: view.render(plan, results, width=width))


def show_explanation(
    plan: ReplayPlan, devices: dict[str, DeviceProfile], wanted: str, *, max_op_bytes: int | None, format_: str
) -> None:
    """Print all that is known of the heaviest op that `wanted` matches. Raises UsageError when none does."""
    import msgspec

    from opreplay.cli import console
    from opreplay.cli.planning import find_ops, simulate_on
    from opreplay.replay.ascend import explain_op
    from opreplay.replay.report import explain as view
    from opreplay.replay.report.plan import planned_results

    found = find_ops(plan, wanted)
    one = found[0]
    alone = msgspec.structs.replace(plan, ops=(one,))
    (result,) = planned_results(alone, lambda op: simulate_on(op, devices), max_op_bytes=max_op_bytes)
    explanations = {name: explain_op(one, device) for name, device in devices.items()}
    if format_ == "json":
        console.write(console.json_text(view.facts(one, result, explanations)))
        return
    console.show(view.render(one, result, explanations))
    if len(found) > 1:
        others = ", ".join(op.id for op in found[1:6])
        console.narrate(
            f"{len(found) - 1} more match {wanted}; explain them by id: {others}{' ...' if len(found) > 6 else ''}"
        )
