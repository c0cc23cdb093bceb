# pyright: strict
"""`opreplay plan`: dry run that shows what would be replayed and how, and why the rest would not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from opreplay.cli.options import shared
from opreplay.cli.options.settings import Command, setting
from opreplay.cli.options.source import Source, source_options
from opreplay.cli.options.types import ByteSize, Count

if TYPE_CHECKING:
    from opreplay.replay.plan.selection import Selection
    from opreplay.replay.results.records import L2State


@click.command("plan", cls=Command, short_help="Show what `run` would do, without running it.")
@source_options()
@shared.device_option
@shared.soc_option
@shared.l2_option("cold")
@shared.selection_options
@shared.plugin_option
@shared.init_arg_option
@shared.values_option
@shared.seed_option
@setting(
    "--max-op-memory", type=ByteSize(), metavar="SIZE", help="Mark an op as skipped if it needs more memory, e.g. 1GB."
)
@click.option(
    "--ranks",
    type=Count(min=1, max=1024),
    metavar="N",
    help="Include every collective as an op, with the ids of `run --ranks N`.",
)
@click.option(
    "--meta",
    is_flag=True,
    help=(
        "Also call each op on meta tensors, to check that its arguments fit and its results have the recorded sizes."
    ),
)
@click.option(
    "--max-failed",
    type=click.IntRange(min=0),
    metavar="N",
    help="Exit with 1 if more than N ops would not be replayed or are wrong on meta tensors.",
)
@click.option("--explain", metavar="OP", help="Explain one op in full: a name, a glob, an id, or a rank such as #4.")
@shared.all_option
@shared.notes_option
@shared.format_option("table", "json")
@click.option(
    "--output", "-o", metavar="FILE", help="Write the plan as JSON; .tracelens.json for TraceLens; - is stdout."
)
@shared.force_option
@shared.cache_option
def command(
    source: Source,
    device: str,
    soc: tuple[str, ...],
    l2: L2State,
    selection: Selection,
    plugin: tuple[str, ...],
    init_arg: tuple[str, ...],
    values: str | None,
    seed: int,
    max_op_memory: int | None,
    ranks: int | None,
    meta: bool,
    max_failed: int | None,
    explain: str | None,
    all_rows: bool,
    notes: bool,
    format_: str,
    output: str | None,
    force: bool,
    no_cache: bool,
) -> int:
    """Resolve each unique op of TRACE, count its bytes and predict its time, without running anything.

    --explain shows one op: its arguments by name, what was assumed, how it was resolved, and its kernels on each
    simulated device. --meta also calls each op on meta tensors, which have sizes but no contents, so nothing is
    computed. If time depends on lengths and routes, they are the ones that a run with the same settings would use.
    """
    from opreplay.cli.outputs import check_plan_file
    from opreplay.cli.plan_views import narrate_checks, plan_code, save, show_explanation, show_plan
    from opreplay.cli.setup import finish_predictions, open_job, prepare
    from opreplay.replay.job.settings import Settings
    from opreplay.replay.plan.make import check_on_meta

    if output not in (None, "-"):
        check_plan_file(Path(output), force=force)
    settings = Settings(
        device=device,
        l2=l2,
        plugins=plugin,
        init_args=init_arg,
        values=values,
        seed=seed,
        max_op_bytes=max_op_memory,
        ranks=ranks,
        order=output is not None,
        keep=not no_cache,
    )
    job = open_job(source, selection, settings, soc)
    plan = prepare(job, plugin)
    checks = check_on_meta(plan, selection) if meta else None
    if output is not None:
        save(plan, output, force=force)
    if explain is not None:
        show_explanation(job, explain, format_=format_, checks=checks)
    elif output != "-":
        show_plan(job, format_=format_, checks=checks, everything=notes, all_rows=all_rows)
    elif checks is not None:
        narrate_checks(plan, checks)
    finish_predictions(job)
    return plan_code(job, checks, max_failed=max_failed)
