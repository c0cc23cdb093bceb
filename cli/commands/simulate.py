# pyright: strict
"""`opreplay simulate`: a trace on simulated devices alone; nothing is executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opreplay.cli.options import shared
from opreplay.cli.options.settings import Command
from opreplay.cli.options.source import Source, source_options

if TYPE_CHECKING:
    from opreplay.replay.capture.serving.form import Fused
    from opreplay.replay.plan.selection import Selection
    from opreplay.replay.results.records import L2State


@click.command("simulate", cls=Command, short_help="Predict a whole step on simulated NPUs.")
@source_options(execution_traces=False)
@shared.soc_option
@shared.cluster_option
@shared.l2_option("sequence")
@shared.selection_options
@shared.plugin_option
@shared.init_arg_option
@shared.values_option
@shared.seed_option
@click.option(
    "--losers",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="List the N ops that would lose most against the recorded device.",
)
@shared.format_option("table", "json")
@click.option(
    "--output",
    "-o",
    multiple=True,
    metavar="FILE",
    help="Also write all ops: .json, .csv or .html (works offline). Repeatable.",
)
@shared.force_option
@shared.notes_option
@shared.captured_fused_option
@shared.cache_option
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
    fused: Fused | None,
    no_cache: bool,
) -> None:
    """Predict the ops of TRACE on one or several simulated devices, side by side: the step's total with its band, where
    its time goes, and which ops would lose most against the device that was recorded. What lies in the L2 cache follows
    from the order of the calls in one recorded step, unless --l2 says otherwise.
    """
    from opreplay.cli.opening import tells_step
    from opreplay.cli.outputs import check_outputs, write_view
    from opreplay.cli.setup import plan_of_source, planned, recorded_step
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend.simulate.devices import ranks_without_dies, simulate_plan
    from opreplay.replay.plan.recorded.where import where_of
    from opreplay.replay.report.views import simulation

    check_outputs(output, (".json", ".csv", ".html"), force=force)
    ready, read = planned(
        plan_of_source(
            source,
            selection,
            in_order=True,
            cluster=cluster,
            activity=tells_step(source.trace),
            fused=fused,
            one_process=True,
        ),
        plugins=plugin,
        socs=soc,
        cluster=cluster,
        init_args=init_arg,
        values=values,
        seed=seed,
        keep=not no_cache and cluster is None,
    )
    plan, devices = ready.plan, ready.devices
    if any(op.collective is not None for op in plan.ops):
        console.narrate("opreplay: times of collectives are added up; `opreplay timeline --cluster` overlaps them")
    if (small := ranks_without_dies(plan.ops, devices.values())) is not None:
        console.narrate(small)
    steps = simulate_plan(plan, list(devices.values()), ready.contents, l2)
    # Of cold or warm caches at each op a step says nothing: then its verdict is of the recording alone.
    timed = list(devices.values()) if l2 == "sequence" else []
    step = recorded_step(read, selection, plan, timed, ready.contents)
    ready.conclude()
    view = simulation.view(plan, steps, devices, losers=losers, where=where_of(read), report=step, everything=notes)
    write_view(view, output, force=force)
    console.show_view(view, format_)
