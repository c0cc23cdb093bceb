# pyright: strict
"""`opreplay simulate`: a trace on simulated devices alone; nothing is executed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from opreplay.cli.options.shared import (
    cache_option,
    capture_option,
    cluster_option,
    custom_op_option,
    force_option,
    format_option,
    init_options,
    kernel_details_option,
    l2_option,
    limit_option,
    notes_option,
    plugin_option,
    seed_option,
    selection_options,
    soc_option,
    trace_argument,
    values_option,
)

if TYPE_CHECKING:
    from opreplay.replay.plan.selection import Selection
    from opreplay.replay.results.records import L2State

SUFFIXES = (".json", ".csv", ".html")


@click.command("simulate", short_help="Predict a whole step on simulated NPUs, without running it.")
@trace_argument
@kernel_details_option
@capture_option
@soc_option
@cluster_option
@l2_option("sequence")
@custom_op_option
@selection_options
@plugin_option
@init_options
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
@limit_option
@cache_option
def command(
    trace: str,
    kernel_details: str | None,
    capture: str | None,
    soc: tuple[str, ...],
    cluster: str | None,
    l2: L2State,
    custom_op_dir: str | None,
    selection: Selection,
    plugin: tuple[str, ...],
    init_module: tuple[str, ...],
    init_arg: tuple[str, ...],
    values: str | None,
    seed: int,
    losers: int,
    format_: str,
    output: tuple[str, ...],
    force: bool,
    notes: bool,
    limit: tuple[tuple[str, str], ...],
    no_cache: bool,
) -> None:
    """Predict the ops of TRACE on one or several simulated devices, side by side: the step's total with its band, where
    its time goes, and which ops would lose most against the device that was recorded. What lies in the L2 cache follows
    from the order of the calls in one recorded step, unless --l2 says otherwise.
    """
    from opreplay.cli.opening import open_input
    from opreplay.cli.setup import (
        contents_of_plan,
        keep_contents,
        may_keep,
        own_contents,
        refuse_unused_initializers,
        tell_problems,
        tell_unused,
        use_plugins,
    )
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend.simulate.devices import load_socs, ranks_without_dies, simulate_plan
    from opreplay.replay.plan.inputs import plan_of
    from opreplay.replay.plan.kept import kept_plan_of
    from opreplay.replay.plan.recorded.where import where_of
    from opreplay.replay.report.views import simulation as view

    for name in output:
        check_output(Path(name), force=force)
    plugin = use_plugins(plugin, custom_op_dir)
    devices = load_socs(soc, cluster)
    keep = cluster is None and may_keep(not no_cache, plugin)
    given = own_contents(init_module, init_arg, seed=seed, values=values)
    read = open_input(trace, limit, kernel_details=kernel_details, capture=capture, activity=cluster is not None)
    if keep:
        plan = kept_plan_of(read, selection, device="cpu", in_order=True)
    else:
        plan = plan_of(read, selection, device="cpu", in_order=True, collectives=cluster is not None)
    if given is not None:
        refuse_unused_initializers(given.registry, plan.ops, init_module, init_arg)
    contents = contents_of_plan(plan, seed=seed, keep=keep) if given is None else given
    if values is not None:
        from opreplay.replay.arguments.supplied import check_values_file

        check_values_file(plan, values)
    where = where_of(read)
    if any(op.collective is not None for op in plan.ops):
        console.narrate("opreplay: times of collectives are added up; `opreplay timeline --cluster` overlaps them")
    if (small := ranks_without_dies(plan.ops, devices.values())) is not None:
        console.narrate(small)
    steps = simulate_plan(plan, list(devices.values()), contents, l2)
    tell_problems(contents)
    keep_contents(contents)
    tell_unused(devices, plan.ops)
    for name in output:
        from opreplay.cli.outputs import write_file

        suffix = Path(name).suffix.lower()
        if suffix == ".html":
            from opreplay.cli.outputs import command_line
            from opreplay.replay.report.page import of_simulation
            from opreplay.replay.report.page.render import render

            text = render(of_simulation.page(plan, steps, command_line()))
        elif suffix == ".csv":
            text = view.csv_text(plan, steps)
        else:
            text = console.json_text(view.facts(plan, steps, losers=losers, where=where))
        write_file(Path(name), text, force=force)
    if format_ == "json":
        console.write(console.json_text(view.facts(plan, steps, losers=losers, where=where)))
        return
    console.show_line(view.head_line(plan, steps))
    console.show_fitted(
        lambda width: view.render(plan, steps, losers=losers, width=width, where=where, everything=notes)
    )


def check_output(path: Path, *, force: bool) -> None:
    """Raises UsageError for a file of no known format or one that may not be written."""
    from opreplay.cli.outputs import check_writable
    from opreplay.traces.errors import UsageError

    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"no output format for {path.name}", hint=f"Suffixes are {', '.join(SUFFIXES)}.")
    check_writable(path, force=force)
