"""Measured tables of every kind as groups that figures and fits take: kernel tables in launch order, tables of ops.

Owns which file is which, of what SoC, and which tables are of one workload; readers own columns, `calibrate` the fits.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from opreplay.replay.ascend.accuracy import Launch, Part, grouped, launches
from opreplay.replay.ascend.calibrate import Group
from opreplay.replay.ascend.kernel import KernelCall, State
from opreplay.replay.ascend.kernel_details import KernelRow, KernelTable, read_kernel_table
from opreplay.replay.ascend.op_tables import OpCase, OpTable, header_of, kind_of, read_op_table
from opreplay.replay.ascend.residency import Stream
from opreplay.traces.errors import Malformed


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """One file of measurements."""

    path: str
    workload: str
    """What it is of: files of several ranks or runs of one workload share it."""
    kind: str
    state: str
    launches: tuple[Launch, ...]
    rows: int
    dropped: dict[str, int]


def touches_in(calls: Sequence[KernelCall], state: State) -> list[Part]:
    """The kernels of one op, with what is in the caches when each starts; nothing is known of it in a network."""
    if state == "network":
        return [Part(call) for call in calls]
    stream = Stream()
    if state == "warm":
        for call in calls:
            stream.touch(call)
    return [Part(call, stream.touch(call)) for call in calls]


def launch_of(case: OpCase, state: State) -> Launch:
    """A measured op as a launch of several kernels."""
    parts = tuple(touches_in(case.kernels, state))
    first, last = case.kernels[0], case.kernels[-1]
    label = KernelCall(type=case.label, inputs=first.inputs, outputs=last.outputs)
    assert case.duration_us is not None
    row = KernelRow(call=label, duration_us=case.duration_us, held_out=case.held_out)
    return Launch(row=row, duration_us=case.duration_us, state=state, several=parts)


def of_op_table(table: OpTable) -> list[Launch]:
    """The measured cases of an op-level table."""
    return [launch_of(case, table.state) for case in table.cases if case.duration_us is not None]


def read_measurements(path: str | Path, *, communication: bool = False) -> Measurements:
    """Read a kernel table or an op-level table, whichever the header tells.

    Raises TraceError, Malformed and TooLarge as the readers do.
    """
    name = Path(path).stem
    kind = kind_of(header_of(path))
    if kind is not None:
        table = read_op_table(path)
        return Measurements(
            path=str(path), workload=name, kind=kind, state=table.state, launches=tuple(of_op_table(table)),
            rows=len(table.cases) + sum(table.dropped.values()), dropped=table.dropped,
        )  # fmt: skip
    kernels: KernelTable = read_kernel_table(path)
    found = [one for one in launches(kernels) if communication or not one.row.communication]
    return Measurements(
        path=str(path), workload=re.sub(r"_?(rank|level)\d+$", "", name),
        kind="kernels in launch order" if kernels.is_sequence else "means of kernels", state="network",
        launches=tuple(found), rows=len(kernels.rows), dropped=kernels.dropped,
    )  # fmt: skip


def read_folder(folder: Path) -> tuple[list[Measurements], dict[str, str]]:
    """All tables of a folder, by name, and why each other CSV file is none."""
    found: list[Measurements] = []
    others: dict[str, str] = {}
    for path in sorted(folder.glob("*.csv")):
        try:
            found.append(read_measurements(path))
        except Malformed as error:
            others[path.name] = str(error).split(": ", 1)[-1]
    return found, others


def soc_in(name: str, known: Iterable[str]) -> str | None:
    """The device that a file's name tells: "kernelbench_910b2_large.csv" is of the 910b2; None where it tells none."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((soc for soc in known if soc in words), None)


def groups_of_tables(tables: Iterable[tuple[Measurements, str]]) -> list[Group]:
    """Unique kernels and ops of each workload and SoC, tables weighted so that no workload dominates a fit.

    A workload of n kernels weighs as the root of n: with 4 times as many it counts twice, not 4 times.
    """
    by_workload: dict[tuple[str, str], list[Launch]] = {}
    for table, soc in tables:
        by_workload.setdefault((table.workload, soc), []).extend(table.launches)
    made = [
        Group(soc=soc, launches=tuple(group), table=workload)
        for (workload, soc), found in by_workload.items()
        for group in grouped(found)
    ]
    sizes = Counter(group.table for group in made)
    usual = max(sizes.values(), default=1)
    return [msgspec.structs.replace(g, weight=min(4.0, math.sqrt(usual / sizes[g.table]))) for g in made]
