# pyright: strict
"""The kernels of an NPU's trace as text: how a kernel table was joined, and what each op owns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from opreplay.replay.report.columns import plain_table
from opreplay.replay.report.text import DASH, end, middle, plural, safe, share_text, time_text
from opreplay.replay.results.records import OpResult
from opreplay.traces.links.npu_kernels import OpKernels

if TYPE_CHECKING:
    from opreplay.replay.ascend.simulate.agreement import KernelAgreement

OPS_SHOWN = 12
KERNELS_SHOWN = 4
DIFFERING_SHOWN = 10
TYPES_LISTED = 6
NO_OP = "(no op)"
_TYPE_CHARS = 32
_NARROW = 100
"""Width below which shapes are left out."""


def kernels_table(ops: Sequence[OpKernels], *, width: int) -> Table:
    """The heaviest ops with the heaviest of their kernels: type, launches, time, core and, if there is room, shapes."""
    table = plain_table()
    table.add_column("op", no_wrap=True)
    for title in ("time", "launches"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    wide = width >= _NARROW
    if wide:
        table.add_column("core", no_wrap=True, style="dim")
        table.add_column("waited", justify="right", no_wrap=True, style="dim")
        table.add_column("heaviest", no_wrap=True, style="dim", overflow="ellipsis")
    for op in ops[:OPS_SHOWN]:
        name = middle(safe(op.op or NO_OP), 40 if wide else 24)
        for kernel in op.kernels[:KERNELS_SHOWN]:
            cells = [name, time_text(kernel.total_us), f"{kernel.count:,}", end(safe(kernel.type), _TYPE_CHARS)]
            more = [safe(kernel.core), time_text(kernel.wait_us), safe(kernel.tensors)] if wide else []
            table.add_row(*map(Text, (*cells, *more)))
            name = ""
        if len(op.kernels) > KERNELS_SHOWN:
            table.add_row("", "", "", Text(f"and {len(op.kernels) - KERNELS_SHOWN} more types", style="dim"))
    if len(ops) > OPS_SHOWN:
        rest = sum(op.device_us for op in ops[OPS_SHOWN:])
        table.add_row(Text(plural(len(ops) - OPS_SHOWN, "more op"), style="dim"), Text(time_text(rest), style="dim"))
    return table


def results_table(results: Sequence[OpResult]) -> list[RenderableType]:
    """What the recorded NPU ran for each op, a call, beside what the first simulated one would; heaviest ops first."""
    known = [result for result in results if result.npu_kernels]
    if not known:
        return []
    soc = next(iter(known[0].simulated), None)
    table = plain_table()
    table.add_column("NPU kernels of", no_wrap=True)
    table.add_column("recorded", overflow="fold")
    table.add_column(Text(safe(soc) if soc else "simulated"), overflow="fold", style="cyan")
    known.sort(key=lambda result: -sum(kernel.total_us for kernel in result.npu_kernels))
    for result in known[:OPS_SHOWN]:
        shown = [
            f"{launches({kernel.type: kernel.count / result.count})} {time_text(kernel.total_us / result.count)}"
            for kernel in result.npu_kernels[:TYPES_LISTED]
        ]
        simulated = Counter(result.simulated[soc].kernels if soc in result.simulated else ())
        table.add_row(Text(middle(safe(result.name), 32)), Text(", ".join(shown)), Text(launches(simulated)))
    if len(known) > OPS_SHOWN:
        table.add_row(Text(plural(len(known) - OPS_SHOWN, "more op"), style="dim"))
    return [Text(), table]


def agreement_lines(compared: Sequence[KernelAgreement]) -> list[RenderableType]:
    """How many ops are lowered to the kernels that were recorded, and a table of those that are not."""
    if not compared:
        return []
    total_us = sum(one.recorded_us for one in compared) or 1.0
    words = {
        "same": "the same kernels",
        "close": "the same but for versions and helper kernels",
        "differs": "other kernels",
    }
    counts: list[str] = []
    for verdict, text in words.items():
        chosen = [one.recorded_us for one in compared if one.verdict == verdict]
        if chosen:
            counts.append(f"{len(chosen):,} ({share_text(sum(chosen) / total_us)} of the time) {text}")
    head = Text(f"lowering against {plural(len(compared), 'op')} with recorded kernel types: {', '.join(counts)}")
    other = [one for one in compared if one.verdict == "differs"][:DIFFERING_SHOWN]
    if not other:
        return [Text(), head]
    table = plain_table()
    table.add_column("lowered to other kernels", no_wrap=True)
    table.add_column("recorded", justify="right", no_wrap=True)
    table.add_column("kernels recorded", overflow="fold")
    table.add_column("kernels simulated", overflow="fold")
    for one in other:
        cells = (middle(safe(one.name), 32), time_text(one.recorded_us), launches(one.recorded), launches(one.lowered))
        table.add_row(*map(Text, cells))
    return [Text(), head, Text(), table]


def launches(types: Mapping[str, float]) -> str:
    """Kernel types with launches a call, where these are not one: "TransData ×3, Conv2D"."""
    shown = [
        end(safe(type_), _TYPE_CHARS) + ("" if count == 1 else f" ×{count:.3g}")
        for type_, count in list(types.items())[:TYPES_LISTED]
    ]
    rest = len(types) - len(shown)
    return (", ".join(shown) or DASH) + (f" and {rest} more" if rest else "")
