# pyright: strict
"""Fit the devices that ship to measured tables, or say how far their predictions are from these.

    python -m benchmarks.device_model errors FOLDER [--cross-validate]
    python -m benchmarks.device_model calls FOLDER
    python -m benchmarks.device_model fit FOLDER --version VERSION --output FOLDER

`errors` prints one table over all files of a folder, whose names tell the device; with --cross-validate it refits from
the datasheets and predicts 5 folds, one table and one SoC that the fit did not see. `calls` predicts measured calls by
what was learned from the others: single calls in 5 folds, whole ops, whole sources. `fit` writes `fitted.csv` and
`measured_calls.csv`, which belong into replay/ascend/devices.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.device_model.calls import calls_in, corrected_row, known_calls, learned_text, left_out
from benchmarks.device_model.constants import calibrate, shipped_table
from benchmarks.device_model.error_table import error_table
from benchmarks.device_model.tables import read_folder
from benchmarks.device_model.views import view_of_all, view_of_figures
from opreplay.cli.terminal import console
from opreplay.replay.ascend.calibrate.validate import figures_of, groups_of_tables
from opreplay.replay.ascend.cost import correction
from opreplay.replay.ascend.devices import fitted
from opreplay.replay.ascend.devices.file import datasheet_only, list_devices, load_device
from opreplay.replay.report.view import View


def _calls_view(folder: Path) -> View:
    pairs_by_set = left_out(known_calls(calls_in(folder)), console.narrate)
    rows_by_set = {name: [corrected_row(*pair) for pair in pairs] for name, pairs in pairs_by_set.items()}
    return view_of_figures({name: figures_of(rows) for name, rows in rows_by_set.items()})


def _fit(folder: Path, version: str, output: Path) -> View:
    """Write both files, and return the cross-validated figures."""
    groups, calls = groups_of_tables(read_folder(folder, list_devices())[0]), calls_in(folder)
    devices = {name: datasheet_only(load_device(name)) for name in list_devices()}
    fitted_devices, held_out = calibrate(groups, devices, on_step=console.narrate)
    text = shipped_table(groups, fitted_devices, calls, version=version)
    (output / fitted.FILE).write_text(text, encoding="utf-8")
    (output / correction.FILE).write_text(learned_text(calls), encoding="utf-8")
    sets = {name: [kernel.compared for kernel in kernels] for name, kernels in held_out.items() if kernels}
    return view_of_figures({name: figures_of(compared) for name, compared in sets.items()})


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("errors", "calls", "fit"))
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="measured tables")
    parser.add_argument("--cross-validate", action="store_true", help="with errors: by fits that did not see the rows")
    parser.add_argument("--version", help="with fit: of the constants")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="with fit: where the two files go")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    if options.what == "fit":
        if options.version is None or options.output is None:
            parser.error("fit needs --version and --output")
        view = _fit(options.folder, options.version, options.output)
    elif options.what == "calls":
        view = _calls_view(options.folder)
    else:
        view = view_of_all(error_table(options.folder, cross=options.cross_validate, on_step=console.narrate))
    console.show_view(view, options.format)
    return 0


if __name__ == "__main__":
    sys.exit(main())
