# pyright: strict
"""The kernels of an NPU trace as text: how a kernel table was joined, and the kernels of each op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from opreplay.replay.report.table import COUNT, TIME, Column, Table, terminal
from opreplay.replay.report.text import DASH, end, listed, plural, safe, share_text, time_text
from opreplay.replay.results.records import OpResult
from opreplay.traces.links.npu_kernels import OpKernels, OwnedKernel

if TYPE_CHECKING:
    from opreplay.replay.ascend.simulate.agreement import KernelAgreement

OPS_SHOWN = 12
KERNELS_SHOWN = 4
DIFFERING_SHOWN = 10
TYPES_LISTED = 6
NO_OP = "(no op)"
AGREEMENTS = {
    "same": "the same kernels",
    "close": "the same except for versions and helper kernels",
    "differs": "other kernels",
}
_TYPE_CHARS = 32
_TENSOR_CHARS = 48


_OfKernel = Column[tuple[str, OwnedKernel, int]]
"""Column of the kernels table. A row is (op name if it is the op's first row, kernel, number of kernel types not
shown).
"""


def kernels_table(ops: Sequence[OpKernels]) -> Table[tuple[str, OwnedKernel, int]]:
    """Return the ops with most kernel time and their longest-running kernels.

    Columns are op, time, launches and kernel type. If there is room, also core, waiting time and largest tensors.
    """
    rows: list[tuple[str, OwnedKernel, int]] = []
    for op in ops[:OPS_SHOWN]:
        shown = op.kernels[:KERNELS_SHOWN]
        names = [op.op or NO_OP, *[""] * (len(shown) - 1)]
        hidden = [*[0] * (len(shown) - 1), len(op.kernels) - len(shown)]
        rows += zip(names, shown, hidden, strict=True)
    columns = [
        _OfKernel("op", lambda row: row[0], form="name"),
        _OfKernel("time", lambda row: row[1].total_us, TIME),
        _OfKernel("launches", lambda row: row[1].count, COUNT),
        _OfKernel("kernel", _type),
        _OfKernel("core", lambda row: row[1].core, style="dim", drop=2),
        _OfKernel("waited", lambda row: row[1].wait_us, TIME, style="dim", drop=3),
        _OfKernel("heaviest", lambda row: row[1].tensors, style="dim", drop=4, chars=_TENSOR_CHARS),
    ]
    return Table("NPU kernels by op", columns, rows, max(len(ops) - OPS_SHOWN, 0), "op")


def _type(row: tuple[str, OwnedKernel, int]) -> str:
    return end(row[1].type, _TYPE_CHARS) + (f" and {plural(row[2], 'more type')}" if row[2] else "")


def results_table(results: Sequence[OpResult]) -> Table[OpResult]:
    """Return a table of the recorded NPU kernels per call of each op, next to the kernels simulated on the first
    device.

    Ops with the most kernel time come first.
    """
    known = sorted((r for r in results if r.npu_kernels), key=lambda r: -sum(k.total_us for k in r.npu_kernels))
    soc = next(iter(known[0].simulated), None) if known else None

    def recorded(result: OpResult) -> str:
        return ", ".join(
            f"{launches({kernel.type: kernel.count / result.count})} {time_text(kernel.total_us / result.count)}"
            for kernel in result.npu_kernels[:TYPES_LISTED]
        )

    def simulated(result: OpResult) -> str:
        return launches(Counter(result.simulated[soc].kernels if soc in result.simulated else ()))

    columns = [
        Column[OpResult]("NPU kernels of", lambda r: r.name, chars=32),
        Column[OpResult]("recorded", recorded, form="fold"),
        Column[OpResult](soc or "simulated", simulated, form="fold", style="cyan"),
    ]
    return Table("NPU kernels", columns, known, noun="op")


def agreement_lines(compared: Sequence[KernelAgreement]) -> list[RenderableType]:
    """Return how many ops are lowered to the same kernels as recorded, and a table of the other ops."""
    if not compared:
        return []
    total_us = sum(op.recorded_us for op in compared) or 1.0
    counts: list[str] = []
    for verdict, text in AGREEMENTS.items():
        if chosen := [op.recorded_us for op in compared if op.verdict == verdict]:
            counts.append(f"{len(chosen):,} ({share_text(sum(chosen) / total_us)} of the time) {text}")
    head = Text(f"lowering against {plural(len(compared), 'op')} with recorded kernel types: {', '.join(counts)}")
    column = Column["KernelAgreement"]
    columns = [
        column("lowered to other kernels", lambda op: op.name, chars=32),
        column("recorded", lambda op: op.recorded_us, TIME),
        column("kernels recorded", lambda op: launches(op.recorded), form="fold"),
        column("kernels simulated", lambda op: launches(op.lowered), form="fold"),
    ]
    other = [op for op in compared if op.verdict == "differs"][:DIFFERING_SHOWN]
    return [Text(), head, *terminal(Table("Lowered to other kernels", columns, other))]


def launches(types: Mapping[str, float]) -> str:
    """Return kernel types, each with its number of launches per call if not 1: "TransData ×3, Conv2D"."""
    names = [f"{end(safe(type_), _TYPE_CHARS)}{'' if n == 1 else f' ×{n:.3g}'}" for type_, n in types.items()]
    return listed(names, TYPES_LISTED) or DASH
