# pyright: strict
"""Tables of measured kernels and of ops: which file is which, and of what SoC."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.device_model.op_tables import OpCase, OpTable, kind_of, read_op_table
from opreplay.replay.ascend.calibrate import validate
from opreplay.replay.ascend.calibrate.validate import Measured, Measurements
from opreplay.replay.ascend.cost.residency import touches_in
from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.measured.accuracy import Launch, Part
from opreplay.replay.ascend.measured.call_tables import header_of
from opreplay.replay.ascend.measured.kernel_tables import KernelRow
from opreplay.replay.ir.kernel import KernelCall, State
from opreplay.traces.errors import Malformed, UsageError


def launch_of(case: OpCase, state: State) -> Launch:
    """Return a measured op as a launch of several kernels."""
    known = touches_in(case.kernels, state)
    parts = tuple(Part(call, touches) for call, touches in zip(case.kernels, known, strict=True))
    first, last = case.kernels[0], case.kernels[-1]
    label = KernelCall(type=case.label, inputs=first.inputs, outputs=last.outputs)
    assert case.duration_us is not None
    row = KernelRow(call=label, duration_us=case.duration_us, held_out=case.held_out)
    return Launch(row=row, duration_us=case.duration_us, state=state, several=parts, soc=case.soc)


def of_op_table(table: OpTable) -> list[Launch]:
    """Return the measured cases of an op-level table as launches."""
    return [launch_of(case, table.state) for case in table.cases if case.duration_us is not None]


def read_measurements(path: str | Path) -> Measurements:
    """Read a kernel table or an op-level table, depending on the header.

    Raises TraceError, Malformed and TooLarge as the readers do.
    """
    kind = kind_of(header_of(path))
    if kind is not None:
        table = read_op_table(path)
        return Measurements(
            path=str(path),
            workload=Path(path).stem,
            kind=kind,
            state=table.state,
            launches=tuple(of_op_table(table)),
            rows=len(table.cases),
            dropped=table.dropped,
            has_held_out=table.has_held_out,
        )
    return validate.read_measurements(path)


def measured_on(paths: Iterable[Path], soc: str) -> list[Measured]:
    """Return the tables, each with the device that all of them were measured on."""
    device = load_device(soc)
    return [Measured(table=read_measurements(path), device=device) for path in paths]


def _by_soc(table: Measurements, named: str | None, known: Sequence[str]) -> dict[str, list[Launch]]:
    """Return a table's compute kernels by SoC: the SoC in the file name, otherwise the SoC of the row."""
    by_soc: dict[str, list[Launch]] = {}
    for launch in table.launches:
        soc = named or soc_in(launch.soc, known)
        if soc is not None and not launch.row.communication:
            by_soc.setdefault(soc, []).append(launch)
    return by_soc


def read_folder(folder: Path, known: Sequence[str]) -> tuple[list[tuple[Measurements, str]], dict[str, str]]:
    """Read all tables of a folder; return each with its SoC, and for each other CSV file why it is not a table.

    The SoC comes from the file name, otherwise from a column of the table; rows whose SoC is not in `known` are left
    out. Raises UsageError if `folder` is not a folder, Malformed if it holds no table.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", hint="Give the folder that holds the tables.")
    found: list[tuple[Measurements, str]] = []
    others: dict[str, str] = {}
    for path in sorted(folder.glob("*.csv")):
        try:
            table = read_measurements(path)
        except Malformed:
            others[path.name] = "neither a kernel table nor a table of ops"
            continue
        by_soc = _by_soc(table, soc_in(path.name, known), known)
        for soc, chosen in by_soc.items():
            found.append((msgspec.structs.replace(table, launches=tuple(chosen)), soc))
        if not by_soc:
            why = ", ".join(f"{n} rows: {reason}" for reason, n in table.dropped.items())
            others[path.name] = why or f"neither its name nor a column soc tells one of {', '.join(known)}"
    if not found:
        raise Malformed(f"{folder}: no tables of measured kernels or ops", hint="See docs/ascend-model.md.")
    return found, others


def soc_in(name: str, known: Iterable[str]) -> str | None:
    """Return the device in a file name, e.g. 910b2 for "kernelbench_910b2_large.csv"; None if the name contains
    none.
    """
    words = re.sub(r"[^a-z0-9]+", "-", f" {name.lower()} ")
    return max((soc for soc in known if f"-{soc}-" in words), key=len, default=None)
