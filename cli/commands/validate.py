# pyright: strict
"""`opreplay validate`: predictions of the simulated device against kernels measured on silicon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opreplay.cli.options.shared import force_option, format_option, l2_option, tables_argument
from opreplay.cli.options.types import SocName

if TYPE_CHECKING:
    from opreplay.replay.results.records import L2State


@click.command("validate", short_help="Compare predictions with a profile of a real NPU.")
@tables_argument
@click.option(
    "--soc",
    multiple=True,
    type=SocName(),
    metavar="NAME|FILE",
    help="The device measured, or a device file (.toml); once for all tables or once for each.",
)
@click.option(
    "--all",
    "all_tables",
    is_flag=True,
    help="KERNEL_DETAILS is a folder: one table of errors over all files there, whose names tell the device.",
)
@l2_option(None)
@click.option("--only-held-out", is_flag=True, help="Take only rows whose column HeldOut says 1.")
@click.option("--exclude-communication", is_flag=True, help="Leave out collectives: they wait for other ranks.")
@click.option(
    "--cross-validate",
    is_flag=True,
    help="Also predict what was left out: in 5 folds, and without one SoC, table, op or source at a time.",
)
@click.option(
    "--worst",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="List the N kernels that lose most time.",
)
@click.option("--output", "-o", metavar="FILE.html", help="Also write it as one HTML page that works offline.")
@force_option
@format_option("table", "json")
def command(
    kernel_details: tuple[str, ...],
    soc: tuple[str, ...],
    all_tables: bool,
    l2: L2State | None,
    only_held_out: bool,
    exclude_communication: bool,
    cross_validate: bool,
    worst: int,
    output: str | None,
    force: bool,
    format_: str,
) -> None:
    """Say how far predictions are from measured kernels: by kernel type and overall.

    KERNEL_DETAILS is kernel_details.csv or op_summary.csv of the Ascend profiler, or a table of means with a column
    Count, or a table of ops (KernelBench's columns, sweeps, serving), or a table of calls: columns op (a call as `op`
    takes it), torch_us or time_us, soc, l2 (cold, warm or else --l2). Rows without a duration are left out, but count
    for what lies in the L2 cache. communication.json and communication_matrix.json are taken too, and tables of
    transfers: times of transfers between dies by the link model.
    """
    from functools import partial

    from opreplay.cli.outputs import check_page, write_page
    from opreplay.cli.terminal import console
    from opreplay.traces.errors import UsageError

    if all_tables:
        if soc or only_held_out or len(kernel_details) != 1:
            raise UsageError("--all takes one folder, and neither --soc nor --only-held-out")
        from opreplay.replay.ascend.calibrate.error_table import error_table
        from opreplay.replay.report.views import validation as all_view

        errors = error_table(kernel_details[0], cross=cross_validate, on_step=console.narrate)
        console.show_as(
            format_, lambda: all_view.all_facts(errors), lambda width: all_view.render_all(errors, width=width)
        )
        return
    from opreplay.replay.ascend.measured.call_tables import is_call_table
    from opreplay.replay.ascend.measured.communication import is_communication

    transfers = [is_communication(path) for path in kernel_details]
    calls = [not other and is_call_table(path) for path, other in zip(kernel_details, transfers, strict=True)]
    if not soc and not all(transfers) and not all(calls):
        raise UsageError("which device was measured is not said", hint="Give --soc, or --all and a folder of tables.")
    from opreplay.replay.ascend import load_device
    from opreplay.replay.ascend.calibrate.validate import read_measured, validate
    from opreplay.replay.report.views import validation as view

    page = check_page(output, force=force)
    if all(transfers):
        from opreplay.replay.ascend.calibrate.communication import read_and_validate

        if only_held_out or exclude_communication:
            raise UsageError("these files hold transfers and nothing else", hint="Give them without other filters.")
        validation = read_and_validate(kernel_details, soc, cross=cross_validate, on_step=console.narrate)
    elif any(transfers) or (any(calls) and not all(calls)):
        raise UsageError("kernels, calls and transfers are validated apart", hint="Give tables of one kind.")
    elif all(calls):
        from opreplay.replay.ascend.calibrate.calls import read_call_tables, validate_calls

        if only_held_out or exclude_communication or len(soc) > 1:
            raise UsageError("a table of calls takes neither filters nor several --soc")
        validation = validate_calls(
            read_call_tables(kernel_details, load_device(soc[0]).name if soc else None),
            l2=l2,
            cross=cross_validate,
            on_step=console.narrate,
        )
    else:
        validation = validate(
            read_measured(kernel_details, [load_device(name) for name in soc]),
            communication=not exclude_communication,
            only_held_out=only_held_out,
            cross=cross_validate,
            on_step=console.narrate,
        )
    write_page(page, partial(view.page, validation), force=force)
    console.show_as(
        format_,
        lambda: view.facts(validation, worst=worst),
        lambda width: view.render(validation, worst=worst, width=width),
    )
