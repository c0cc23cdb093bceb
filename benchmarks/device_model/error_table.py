# pyright: strict
"""One table of errors over all measurements of a folder: file by file, with the shipped devices or by refits.

Owns which figures the table has; `tables` reads, `constants` holds out, `views` shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.device_model.constants import hold_out
from benchmarks.device_model.tables import read_folder, soc_in
from benchmarks.device_model.transports import of_folder
from opreplay.replay.ascend.calibrate.calibrate import Group
from opreplay.replay.ascend.calibrate.validate import groups_of_tables
from opreplay.replay.ascend.cost.predict import family_of
from opreplay.replay.ascend.devices.file import datasheet_only, list_devices, load_device
from opreplay.replay.ascend.measured.accuracy import Compared, Errors, compare_group, errors_of

PRODUCTS = frozenset({"MatMul", "MatMulFloat32", "BatchMatMul", "QuantMatMul", "GroupedMatMul"})


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """Error figures of one set of measurements."""

    name: str
    soc: str
    kind: str
    state: str
    errors: Errors
    fitted_to: bool
    """The device was fitted to these very rows: the figure tells nothing of others."""


class ErrorTable(msgspec.Struct, frozen=True, kw_only=True):
    """Error figures by hold-out method; each method has a list of rows."""

    sections: dict[str, tuple[TableRow, ...]]
    left_out: dict[str, str]
    """File → why it is not in the table."""


def error_table(
    folder: str | Path, *, cross: bool = False, on_step: Callable[[str], None] = lambda step: None
) -> ErrorTable:
    """Compute the errors of every table in a folder; the file name gives the SoC.

    `cross` refits from the datasheets: 5 folds over kernels and ops, one table left out at a time, one SoC left out at
    a time. Raises UsageError if `folder` is not a folder, Malformed if it holds no table.
    """
    pairs, left_out = read_folder(Path(folder), list_devices())
    groups = groups_of_tables(pairs)
    about = {table.workload: (soc_in(table.workload, [soc]) or "", table.kind, table.state) for table, soc in pairs}
    sections: dict[str, tuple[TableRow, ...]] = {}
    if not cross:
        compared = [(g.table, _first_family(g), compare_group(g.launches, load_device(g.soc))) for g in groups]
        sections["shipped"] = _rows(compared, about, fitted_to=True)
        return _with_transfers(ErrorTable(sections=sections, left_out=left_out), Path(folder), cross=False)
    devices = {name: datasheet_only(load_device(name)) for name in list_devices()}
    sets = hold_out(groups, devices, on_step=on_step)
    for name, kernels in sets.items():
        sections[name] = _rows([(k.table, k.family, k.compared) for k in kernels], about, fitted_to=False)
    return _with_transfers(ErrorTable(sections=sections, left_out=left_out), Path(folder), cross=True)


def _with_transfers(table: ErrorTable, folder: Path, *, cross: bool) -> ErrorTable:
    """Return the table with rows for communication, which are not part of any sum over kernels."""
    sections, files = dict(table.sections), set[str]()
    for name, entries in of_folder(folder, cross=cross).items():
        if name in sections:
            sections[name] += tuple(
                _row(f"{file} {soc}".strip(), comparisons, soc=soc, fitted_to=fitted)
                for file, soc, comparisons, fitted in entries
            )
        files |= {file for file, *_ in entries}
    return ErrorTable(sections=sections, left_out={k: why for k, why in table.left_out.items() if k not in files})


def _first_family(group: Group) -> str:
    return family_of(group.launches[0].parts[0].call, load_device(group.soc)).name


def _rows(
    compared: Sequence[tuple[str, str, Compared]], about: dict[str, tuple[str, str, str]], *, fitted_to: bool
) -> tuple[TableRow, ...]:
    rows: list[TableRow] = []
    for name in sorted({table for table, _, _ in compared}, key=lambda table: (about[table][1:], table)):
        soc, kind, state = about[name]
        rows.append(_row(name, [c for t, _, c in compared if t == name], soc, kind, state, fitted_to=fitted_to))
    every = (
        ("kernels in networks", [c for t, _, c in compared if "kernels" in about[t][1]]),
        ("matrix products", [c for _, family, c in compared if family in PRODUCTS]),
        ("all", [c for _, _, c in compared]),
    )
    return (*rows, *(_row(name, chosen, fitted_to=fitted_to) for name, chosen in every if chosen))


def _row(
    name: str, compared: Sequence[Compared], soc: str = "", kind: str = "", state: str = "", *, fitted_to: bool
) -> TableRow:
    return TableRow(name=name, soc=soc, kind=kind, state=state, errors=errors_of(compared), fitted_to=fitted_to)


def median_of_tables(rows: Sequence[TableRow]) -> float:
    """Return the median over tables of their median errors."""
    return median(row.errors.median_ape for row in rows if row.kind)
