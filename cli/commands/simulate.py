# pyright: strict
"""`opreplay simulate`: a trace on simulated devices alone; nothing is executed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from opreplay.cli.options.settings import Command
from opreplay.cli.options.shared import (
    cache_option,
    cluster_option,
    force_option,
    format_option,
    init_arg_option,
    l2_option,
    notes_option,
    plugin_option,
    seed_option,
    selection_options,
    soc_option,
    values_option,
)
from opreplay.cli.options.source import Source, source_options

if TYPE_CHECKING:
    from opreplay.replay.plan.selection import Selection
    from opreplay.replay.results.records import L2State


@click.command("simulate", cls=Command, short_help="Predict a whole step on simulated NPUs.")
@source_options(execution_traces=False)
@soc_option
@cluster_option
@l2_option("sequence")
@selection_options
@plugin_option
@init_arg_option
@values_option
@seed_option
@click.option(
    "--losers",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="List the N ops that would lose most against the recorded device.",
)
@format_option("table", "json")
@click.option(
    "--output",
    "-o",
    multiple=True,
    metavar="FILE",
    help="Also write all ops: .json, .csv or .html (works offline). Repeatable.",
)
@force_option
@notes_option
@cache_option
def command(
    source: Source,
    soc: tuple[str, ...],
    cluster: str | None,
    l2: L2State,
    selection: Selection,
    plugin: tuple[str, ...],
    init_arg: tuple[str, ...],
    values: str | None,
    seed: int,
    losers: int,
    format_: str,
    output: tuple[str, ...],
    force: bool,
    notes: bool,
    no_cache: bool,
) -> None:
    """Predict the ops of TRACE on one or several simulated devices, side by side: the step's total with its band, where
    its time goes, and which ops would lose most against the device that was recorded. What lies in the L2 cache follows
    from the order of the calls in one recorded step, unless --l2 says otherwise.
    """
    from functools import partial

    from opreplay.cli.opening import tells_step
    from opreplay.cli.outputs import check_output, command_line, write_file
    from opreplay.cli.setup import plan_of_source, planned, recorded_step
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend.simulate.devices import ranks_without_dies, simulate_plan
    from opreplay.replay.plan.recorded.where import where_of
    from opreplay.replay.report.page.render import render
    from opreplay.replay.report.step.verdict import verdict
    from opreplay.replay.report.views import simulation as view

    for name in output:
        check_output(name, (".json", ".csv", ".html"), force=force)
    ready, read = planned(
        plan_of_source(source, selection, in_order=True, cluster=cluster, activity=tells_step(source.trace)),
        plugins=plugin,
        socs=soc,
        cluster=cluster,
        init_args=init_arg,
        values=values,
        seed=seed,
        keep=not no_cache and cluster is None,
    )
    plan, devices = ready.plan, ready.devices
    where = where_of(read)
    if any(op.collective is not None for op in plan.ops):
        console.narrate("opreplay: times of collectives are added up; `opreplay timeline --cluster` overlaps them")
    if (small := ranks_without_dies(plan.ops, devices.values())) is not None:
        console.narrate(small)
    steps = simulate_plan(plan, list(devices.values()), ready.contents, l2)
    step = recorded_step(read, selection, plan, list(devices.values()), ready.contents)
    ready.conclude()
    shown = step if step is not None and step.marked else None
    facts = partial(view.facts, plan, steps, losers=losers, where=where, report=step)
    texts = {
        ".html": lambda: render(view.page(plan, steps, command_line(), devices=devices, report=shown)),
        ".csv": lambda: view.csv_text(plan, steps),
        ".json": lambda: console.json_text(facts()),
    }
    for name in output:
        write_file(Path(name), texts[Path(name).suffix.lower()](), force=force)
    console.show_as(
        format_,
        facts,
        lambda width: view.render(plan, steps, losers=losers, width=width, where=where, report=shown, everything=notes),
        lines=[*map(verdict, filter(None, [shown])), view.head_line(plan, steps)],
    )
