# pyright: strict
"""`opreplay simulate`: predict a trace on simulated devices; nothing is executed."""

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
    help="List the N ops that slow down most compared with the recorded device.",
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
    its time goes, and which ops would lose most against the recorded device. The contents of the L2 cache follow from
    the order of the calls in one recorded step, unless --l2 says otherwise.
    """
    from dataclasses import replace

    from opreplay.cli.outputs import check_outputs, write_view
    from opreplay.cli.setup import finish_predictions, open_job, prepare, warn_of_small_cluster
    from opreplay.cli.terminal import console
    from opreplay.replay.job.settings import Settings
    from opreplay.replay.plan.inputs import tells_step
    from opreplay.replay.plan.recorded.where import where_of
    from opreplay.replay.report.views import simulation

    check_outputs(output, (".json", ".csv", ".html"), force=force)
    settings = Settings(
        cluster=cluster,
        l2=l2,
        plugins=plugin,
        init_args=init_arg,
        values=values,
        seed=seed,
        fused=fused,
        order=True,
        activity=tells_step(source.trace),
        keep=not no_cache,
    )
    job = open_job(replace(source, one_process=True), selection, settings, soc)
    plan, devices = prepare(job, plugin), job.devices
    if any(op.collective is not None for op in plan.ops):
        console.narrate(
            "opreplay: collectives are added to the total without overlap; for overlap with computation, use "
            "`opreplay timeline --cluster`"
        )
    warn_of_small_cluster(job)
    steps = job.steps()
    # Of cold or warm caches at each op a step says nothing: then its verdict is of the recording alone.
    step = job.step(list(devices.values()) if l2 == "sequence" else [])
    finish_predictions(job)
    view = simulation.view(plan, steps, devices, losers=losers, where=where_of(job.read), report=step, everything=notes)
    write_view(view, output, force=force)
    console.show_view(view, format_)
