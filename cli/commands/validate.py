# pyright: strict
"""`opreplay validate`: compare predictions of the simulated device with kernels measured on hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from opreplay.cli.options import shared

if TYPE_CHECKING:
    from opreplay.replay.ascend.calibrate.validate import Validation
    from opreplay.replay.results.records import L2State


@click.command("validate", short_help="Compare predictions with a profile of a real NPU.")
@shared.tables_argument
@shared.measured_soc_option
@shared.l2_option(None, otherwise="from the table, else from its kernel order, else loop")
@click.option("--only-held-out", is_flag=True, help="Use only rows with 1 in column HeldOut.")
@click.option("--exclude-communication", is_flag=True, help="Leave out collectives: they wait for other ranks.")
@click.option(
    "--worst",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="List the N kernels with the largest lost time.",
)
@shared.page_option
@shared.force_option
@shared.format_option("table", "json")
def command(
    kernel_details: tuple[str, ...],
    soc: tuple[str, ...],
    l2: L2State | None,
    only_held_out: bool,
    exclude_communication: bool,
    worst: int,
    output: str | None,
    force: bool,
    format_: str,
) -> None:
    """Say how far predictions are from measured kernels: by kernel type and overall.

    KERNEL_DETAILS is kernel_details.csv or op_summary.csv of the Ascend profiler, or a table of means with a column
    Count, or a table of calls: columns op (a call as `op` takes it), torch_us or time_us, soc, l2 (cold, warm or else
    --l2). Rows without a duration are left out, but count for what lies in the L2 cache: the order of kernels tells
    that, unless --l2 says cold or warm. communication.json and communication_matrix.json are taken too, and tables of
    transfers: times of transfers between dies by the link model.
    """
    from opreplay.cli.outputs import check_outputs, write_view
    from opreplay.cli.terminal import console
    from opreplay.replay.report.views import validation as views
    from opreplay.traces.errors import UsageError

    kind = _kind_of(kernel_details, soc)
    check_outputs([output], force=force)
    if kind == "transfers":
        from opreplay.replay.ascend.calibrate.communication import read_and_validate

        if only_held_out or exclude_communication or l2:
            raise UsageError("these files contain only transfers", hint="Leave out --l2 and row filters.")
        validation = read_and_validate(kernel_details, soc)
    elif kind == "calls":
        if only_held_out or exclude_communication or len(soc) > 1:
            raise UsageError("a table of calls accepts neither filters nor several --soc")
        validation = _of_calls(kernel_details, soc, l2)
    else:
        from opreplay.replay.ascend import load_device
        from opreplay.replay.ascend.calibrate.validate import read_measured, validate

        validation = validate(
            read_measured(kernel_details, [load_device(name) for name in soc]),
            communication=not exclude_communication,
            only_held_out=only_held_out,
            l2=l2,
        )
    view = views.view(validation, worst=worst)
    write_view(view, [output], force=force)
    console.show_view(view, format_)


Kind = Literal["transfers", "calls", "kernels"]


def _kind_of(paths: Sequence[str], soc: Sequence[str]) -> Kind:
    """Return what the tables contain: transfers, calls or kernels.

    Raises UsageError for tables of different kinds, and for kernels without a device name.
    """
    from opreplay.replay.ascend.measured.call_tables import is_call_table
    from opreplay.replay.ascend.measured.communication import is_communication
    from opreplay.traces.errors import UsageError

    kinds: set[Kind] = {
        "transfers" if is_communication(path) else "calls" if is_call_table(path) else "kernels" for path in paths
    }
    if "kernels" in kinds or len(kinds) > 1:
        if not soc:
            raise UsageError("the measured device is not specified", hint="Give --soc.")
        if len(kinds) > 1:
            raise UsageError(
                "kernels, calls and transfers must be validated separately", hint="Give tables of only one kind."
            )
    return kinds.pop()


def _of_calls(paths: Sequence[str], soc: Sequence[str], l2: L2State | None) -> Validation:
    """Validate tables of calls. Each row is predicted for its own SoC, or for --soc if it names none."""
    from opreplay.replay.ascend import load_device
    from opreplay.replay.ascend.calibrate.calls import read_call_tables, validate_calls

    measured = read_call_tables(paths, load_device(soc[0]).name if soc else None)
    return validate_calls(measured, soc=soc[0] if soc else None, l2=l2)
