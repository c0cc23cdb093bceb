# pyright: strict
"""`opreplay calibrate`: fit a simulated device to measurements of a real one and write its device file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from opreplay.cli.options.shared import force_option, format_option, measured_soc_option, tables_argument


@click.command("calibrate", short_help="Fit a simulated device to a profile of a real NPU.")
@tables_argument
@measured_soc_option
@click.option("--output", "-o", required=True, metavar="FILE", help="The device file to write (.toml).")
@click.option("--name", metavar="NAME", help="Name of the new device.  [default: the file's name]")
@format_option("table", "json")
@force_option
def command(
    kernel_details: tuple[str, ...],
    soc: tuple[str, ...],
    output: str,
    name: str | None,
    format_: str,
    force: bool,
) -> None:
    """Fit a device to measured kernels or calls, starting from its current parameters.

    From kernels (kernel_details.csv), constants are fitted: priors limit the effect of little data, and a constant
    changes only if unseen kernels are predicted better with it. From calls (measured.csv of `export --format measure`),
    the new file holds the calls, and every prediction is adjusted by similar calls. Use the new file as --soc FILE.
    KERNEL_DETAILS as for validate.
    """
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend import load_device
    from opreplay.replay.ascend.calibrate.validate import groups_of, read_measured
    from opreplay.traces.errors import UsageError

    check_target(Path(output), force=force)
    if of_calls(kernel_details):
        calibrate_to_calls(kernel_details, soc, Path(output), name=name, format_=format_, force=force)
        return
    if not soc:
        raise UsageError("the measured device is not specified", hint="Give --soc once, or once per table.")
    measured = read_measured(kernel_details, [load_device(each) for each in soc])
    from opreplay.cli.outputs import write_file
    from opreplay.replay.ascend.calibrate.recalibrate import own_device_text, recalibrate
    from opreplay.replay.report.views import calibration

    if len({table.device.name for table in measured}) > 1:
        raise UsageError("the tables are from several devices", hint="Calibrate one device at a time.")
    fit = recalibrate(groups_of(measured), measured[0].device, on_step=console.narrate)
    write_file(Path(output), own_device_text(fit, name=name or Path(output).stem), force=force)
    console.show_view(calibration.view(fit, output=output), format_)


def of_calls(paths: Sequence[str]) -> bool:
    """Check whether the tables hold calls rather than kernels. Raises UsageError if they hold both."""
    from opreplay.replay.ascend.measured.call_tables import is_call_table
    from opreplay.traces.errors import UsageError

    kinds = {is_call_table(path) for path in paths}
    if len(kinds) > 1:
        raise UsageError(
            "kernels and calls must be calibrated separately",
            hint="Calibrate with the kernels first, then with the calls and --soc RESULT.toml.",
        )
    return kinds.pop()


def calibrate_to_calls(
    paths: Sequence[str], soc: Sequence[str], output: Path, *, name: str | None, format_: str, force: bool
) -> None:
    """Write the device file with the measured calls of the tables, and print how the predictions change."""
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
        raise UsageError("the measured device is not specified", hint="Give --soc once.")
    device = load_device(soc[0])
    fit = fit_calls(read_call_tables(paths, device.name), device, expected_contents())
    file_text = read_regular(soc[0], MAX_FILE_BYTES).decode() if canonical_name(device.name) is None else ""
    write_file(output, own_text(fit, name=name or output.stem, file_text=file_text), force=force)
    console.show_view(calibration.view_of_calls(fit, output=str(output)), format_)


def check_target(path: Path, *, force: bool) -> None:
    """Raise UsageError, before any work is done, if the device file cannot be written or does not end in .toml."""
    from opreplay.cli.outputs import check_writable
    from opreplay.traces.errors import UsageError

    if path.suffix != ".toml":
        raise UsageError(f"{path}: the name of a device file must end in .toml")
    check_writable(path, force=force)
