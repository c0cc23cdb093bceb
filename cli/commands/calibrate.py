# pyright: strict
"""`opreplay calibrate`: fits a simulated device to a profile of a real one and writes its device file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opreplay.cli.options.shared import force_option, format_option, measured_soc_option, tables_argument

if TYPE_CHECKING:
    from opreplay.replay.ascend.calibrate.validate import Measured
    from opreplay.replay.ascend.measured.call_tables import MeasuredCall


@click.command("calibrate", short_help="Fit a simulated device to a profile of a real NPU.")
@tables_argument
@measured_soc_option
@click.option("--output", "-o", required=True, metavar="FILE", help="The device file to write (.toml).")
@click.option("--name", metavar="NAME", help="Name of the new device; the file's by default.")
@click.option(
    "--shipped",
    metavar="VERSION",
    help="Refit all shipped devices together from their datasheets; --output is then a folder, and KERNEL_DETAILS may "
    "be one too, whose files' names tell the device.",
)
@format_option("table", "json")
@force_option
def command(
    kernel_details: tuple[str, ...],
    soc: tuple[str, ...],
    output: str,
    name: str | None,
    shipped: str | None,
    format_: str,
    force: bool,
) -> None:
    """Fit a device to measured kernels or calls, starting from what the device says now.

    Of kernels (kernel_details.csv) the constants are fitted: priors keep little data from doing harm, and nothing moves
    unless unseen kernels are predicted better for it. Of calls (measured.csv of `export --format measure`) the new file
    holds the calls, and every prediction is adjusted by the calls that are like it. The new file is for --soc FILE.
    KERNEL_DETAILS as for validate.
    """
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend import load_device
    from opreplay.replay.ascend.calibrate.validate import groups_of, read_measured
    from opreplay.traces.errors import UsageError

    check_target(Path(output), force=force, folder=shipped is not None)
    if shipped is None and of_calls(kernel_details):
        calibrate_to_calls(kernel_details, soc, Path(output), name=name, format_=format_, force=force)
        return
    if not soc and not (shipped is not None and Path(kernel_details[0]).is_dir()):
        raise UsageError("which device was measured is not said", hint="Give --soc once, or once for each table.")
    measured = (
        read_measured(kernel_details, [load_device(each) for each in soc]) if soc else measured_in(kernel_details[0])
    )
    if shipped is not None:
        if name is not None:
            raise UsageError("--name and --shipped exclude each other")
        from opreplay.replay.ascend.calibrate.calls import calls_in

        calls = calls_in(kernel_details[0])
        refit_shipped(measured, calls, Path(output), version=shipped, format_=format_)
        if Path(kernel_details[0]).is_dir():
            learn_shipped(calls, Path(output))
        return

    from opreplay.cli.outputs import write_file
    from opreplay.replay.ascend.calibrate.files import own_device_text
    from opreplay.replay.ascend.calibrate.recalibrate import recalibrate
    from opreplay.replay.report.views import calibration

    if len({table.device.name for table in measured}) > 1:
        raise UsageError("tables of several devices", hint="Calibrate one device at a time.")
    fit = recalibrate(groups_of(measured), measured[0].device, on_step=console.narrate)
    write_file(Path(output), own_device_text(fit, name=name or Path(output).stem), force=force)
    console.show_view(calibration.view(fit, output=output), format_)


def of_calls(paths: Sequence[str]) -> bool:
    """Whether tables hold calls. Raises UsageError where some hold calls and others kernels."""
    from opreplay.replay.ascend.measured.call_tables import is_call_table
    from opreplay.traces.errors import UsageError

    kinds = {not Path(path).is_dir() and is_call_table(path) for path in paths}
    if len(kinds) > 1:
        raise UsageError(
            "kernels and calls are calibrated one after the other",
            hint="Give the kernels first, then the calls with --soc and the file that results.",
        )
    return kinds.pop()


def calibrate_to_calls(
    paths: Sequence[str], soc: Sequence[str], output: Path, *, name: str | None, format_: str, force: bool
) -> None:
    """Write the device with the measured calls of tables, and print what they change."""
    from opreplay.cli.outputs import write_file
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend import load_device
    from opreplay.replay.ascend.calibrate.calls import read_call_tables
    from opreplay.replay.ascend.calibrate.own_calls import fit_calls, own_text
    from opreplay.replay.ascend.devices.file import MAX_FILE_BYTES, canonical_name
    from opreplay.replay.ops.work.expected import expected_contents
    from opreplay.replay.report.views import calibration
    from opreplay.traces.errors import UsageError
    from opreplay.traces.folders import read_regular

    if len(soc) != 1:
        raise UsageError("which device was measured is not said", hint="Give --soc once.")
    device = load_device(soc[0])
    fit = fit_calls(read_call_tables(paths, device.name), device, expected_contents())
    file_text = read_regular(soc[0], MAX_FILE_BYTES).decode() if canonical_name(device.name) is None else ""
    write_file(output, own_text(fit, name=name or output.stem, file_text=file_text), force=force)
    console.show_view(calibration.view_of_calls(fit, output=str(output)), format_)


def measured_in(folder: str) -> list[Measured]:
    """All tables of a folder with their devices."""
    from opreplay.replay.ascend import list_devices, load_device
    from opreplay.replay.ascend.calibrate.tables import read_folder
    from opreplay.replay.ascend.calibrate.validate import Measured

    tables, _ = read_folder(Path(folder), list_devices())
    return [Measured(table=table, device=load_device(soc)) for table, soc in tables]


def check_target(path: Path, *, force: bool, folder: bool) -> None:
    """Raises UsageError for what cannot be written, before any work is done."""
    from opreplay.cli.outputs import check_writable
    from opreplay.replay.ascend.devices.fitted import FILE
    from opreplay.traces.errors import UsageError

    if folder:
        if not path.is_dir():
            raise UsageError(f"{path} is no folder", hint="--shipped writes the table of all devices into a folder.")
        check_writable(path / FILE, force=force)
        return
    if path.suffix != ".toml":
        raise UsageError(f"{path}: a device file ends in .toml")
    check_writable(path, force=force)


def learn_shipped(calls: list[MeasuredCall], output: Path) -> None:
    """Write the measured calls that correct predictions of calls alone."""
    from opreplay.cli.outputs import write_file
    from opreplay.replay.ascend.calibrate.calls import learned_text
    from opreplay.replay.ascend.cost.correction import FILE

    write_file(output / FILE, learned_text(calls), force=True)


def refit_shipped(
    measured: list[Measured], calls: list[MeasuredCall], folder: Path, *, version: str, format_: str
) -> None:
    """Fit all shipped devices together and write their table; prints the cross-validated figures."""
    from opreplay.cli.outputs import write_file
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend import list_devices, load_device
    from opreplay.replay.ascend.calibrate.calibrate import calibrate
    from opreplay.replay.ascend.calibrate.files import shipped_table
    from opreplay.replay.ascend.calibrate.validate import groups_of
    from opreplay.replay.ascend.devices.file import datasheet_only
    from opreplay.replay.ascend.devices.fitted import FILE
    from opreplay.replay.report.views import validation

    groups = groups_of(measured)
    devices = {name: datasheet_only(load_device(name)) for name in list_devices()}
    fitted, held_out = calibrate(groups, devices, on_step=console.narrate)
    write_file(folder / FILE, shipped_table(groups, fitted, calls, version=version), force=True)
    console.show_view(validation.cross_view(held_out["folds"], held_out["unseen_soc"]), format_)
