# pyright: strict
"""Measured kernel tables, and their unique kernels as groups that figures and fits take."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from opreplay.replay.ascend.calibrate.calibrate import Group
from opreplay.replay.ascend.measured.accuracy import Launch, grouped, launches
from opreplay.replay.ascend.measured.kernel_tables import read_kernel_table
from opreplay.replay.ir.kernel import State


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """One file of measurements."""

    path: str
    workload: str
    """What it is of: files of several ranks or runs of one workload share it."""
    kind: str
    """What its rows are: kernels in launch order, or means."""
    state: State
    """Of the caches, when its rows were measured."""
    launches: tuple[Launch, ...]
    """Of the measured rows, collectives among them."""
    rows: int
    """Rows read, with and without a duration."""
    dropped: dict[str, int]
    has_held_out: bool = False
    """Whether a column says which rows are held out."""


def read_measurements(path: str | Path) -> Measurements:
    """Read a kernel table. Raises TraceError, Malformed and TooLarge as `read_kernel_table` does."""
    kernels = read_kernel_table(path)
    return Measurements(
        path=str(path),
        workload=re.sub(r"_?(rank|level)\d+$", "", Path(path).stem),
        kind="kernels in launch order" if kernels.is_sequence else "means of kernels",
        state="network",
        launches=tuple(launches(kernels)),
        rows=len(kernels.rows),
        dropped=kernels.dropped,
        has_held_out=kernels.has_held_out,
    )


def groups_of_tables(tables: Iterable[tuple[Measurements, str]]) -> list[Group]:
    """Unique kernels and ops of each workload and SoC, collectives left out; no workload dominates a fit.

    A workload of n kernels weighs as the root of n: with 4 times as many it counts twice, not 4 times.
    """
    by_workload: dict[tuple[str, str], list[Launch]] = {}
    for table, soc in tables:
        chosen = [launch for launch in table.launches if not launch.row.communication]
        by_workload.setdefault((table.workload, soc), []).extend(chosen)
    groups = [
        Group(soc=soc, launches=tuple(group), table=workload)
        for (workload, soc), measured in by_workload.items()
        for group in grouped(measured)
    ]
    sizes = Counter(group.table for group in groups)
    usual = max(sizes.values(), default=1)
    return [msgspec.structs.replace(g, weight=min(4.0, math.sqrt(usual / sizes[g.table]))) for g in groups]
