# pyright: strict
"""Summary of a captured step: calls, operations and peak memory by phase, and how results compare with the model's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ir.captured import Capture, Check, PhasePeak
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ir.sizes import readable
from opreplay.replay.report.table import Column, Table, terminal
from opreplay.replay.report.text import DASH, digits, fusing, plural, safe
from opreplay.replay.report.view import View
from opreplay.traces.sums import summed

SCHEMA_VERSION = 1
SHOWN = 8
KINDS = ("parameter", "buffer", "gradient", "optimizer state", "input", "constant", "activation")
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def view(plan: ReplayPlan, check: Check | None = None) -> View:
    """Return a captured step in every output format."""
    return View(lines=[head_line(plan)], render=lambda width: render(plan, check), facts=lambda: facts(plan, check))


def facts(plan: ReplayPlan, check: Check | None) -> dict[str, Any]:
    """Return a captured step as JSON-safe values, including the comparison with the model, if there is one."""
    capture, sequence = plan.capture, plan.sequence
    assert capture is not None
    assert sequence is not None
    body: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "captured": True,
        "source": plan.source,
        "via": capture.via,
        "real": capture.real,
        "torch_version": capture.torch_version,
        "world_size": capture.world_size,
        "rank": capture.rank,
        "calls": len(sequence.calls) + sequence.cut,
        "calls_cut": sequence.cut,
        "ops": len(plan.ops),
        "not_replayable": sum(op.reason is not None for op in plan.ops),
        "collectives": sum(op.count for op in plan.ops if op.ranks is not None),
        "graphs": capture.graphs,
        "graph_breaks": capture.graph_breaks,
        "notes": capture.all_notes,
        "flops": capture.flops,
        "peak_bytes": capture.peak_bytes,
        "peaks": capture.peaks,
        "shared_parameters": shared_parameters(capture),
    }
    return body if check is None else {**body, **msgspec.structs.asdict(check)}


def shared_parameters(capture: Capture) -> list[tuple[str, ...]]:
    """Return groups of parameter names that refer to the same parameter."""
    return [storage.names for storage in capture.storages if storage.kind == "parameter" and len(storage.names) > 1]


def head_line(plan: ReplayPlan) -> str:
    """Return a line that describes what was captured."""
    capture, sequence = plan.capture, plan.sequence
    assert capture is not None
    assert sequence is not None
    calls = len(sequence.calls) + sequence.cut
    where = f", rank {capture.rank} of {capture.world_size}" if capture.world_size > 1 else ""
    on = "real tensors" if capture.real else "fake tensors, nothing was computed"
    graphs = ""
    if capture.graphs is not None:
        graphs = f"; {plural(capture.graphs, 'graph')}, {plural(len(capture.graph_breaks), 'break')}"
    phases = ", ".join(dict.fromkeys(peak.phase for peak in capture.peaks))
    return (
        f"{safe(plan.source)}: {phases + ': ' if phases else ''}{plural(calls, 'call')} of "
        f"{plural(len(plan.ops), 'op')} by {capture.via} on {on}{where}{graphs}{fusing(capture.fused, capture.unfused)}"
    ).replace("\n", " ")


def _refused(plan: ReplayPlan) -> list[tuple[str, float]]:
    """Return (reason, calls) for calls that cannot be replayed, most calls first."""
    refused = summed((str(op.reason), op.count) for op in plan.ops if op.reason is not None)
    return sorted(refused.items(), key=lambda item: -item[1])


def render(plan: ReplayPlan, check: Check | None) -> RenderableType:
    """Render the phases with operations and memory, what the plan cannot represent, and the check of the results."""
    capture, sequence = plan.capture, plan.sequence
    assert capture is not None
    assert sequence is not None
    parts = terminal(_phases(capture, sequence.phases))[1:]
    if sequence.cut:
        parts.append(
            Text(
                f"the plan contains only the first {len(sequence.calls):,} calls (the limit): times are without the "
                f"last {sequence.cut:,} calls; for a whole step, capture fewer tokens or layers",
                style="yellow",
            )
        )
    notes = [f"names of one shared parameter: {', '.join(names)}" for names in shared_parameters(capture)[:SHOWN]]
    notes += [f"assumed: {note}" for note in capture.all_notes]
    notes += [f"{plural(int(n), 'call')} cannot be replayed: {reason}" for reason, n in _refused(plan)[:SHOWN]]
    notes += [f"graph break: {line}" for line in capture.graph_breaks[:SHOWN]]
    notes.append("FLOPs: only matrix products, convolutions and attention (all pairs, including masked ones)")
    parts += [Text(safe(note), style="dim") for note in notes]
    if check is not None:
        parts += [Text(), *check_lines(check)]
    return Group(*parts)


def check_lines(check: Check) -> list[RenderableType]:
    """Return the result of the comparison with the model, and a line for each tensor that is not equal."""
    if check.reason is not None:
        return [Text(f"not checked: {safe(check.reason)}", style="red")]
    both = (*check.outputs, *check.parameters)
    wrong = [tensor for tensor in both if not tensor.equal]
    bits = sum(tensor.bits_equal for tensor in both)
    counted = f"{plural(len(check.outputs), 'output')}, {len(check.parameters):,} parameters and buffers"
    verdict = "equal" if check.equal else "NOT equal" if wrong else "nothing to compare"
    line = (
        f"check: {verdict}: {counted} after {plural(check.calls, 'call')}; {bits} of {len(both)} equal bit for bit, "
        f"largest error {digits(check.largest_error, 3)}, seed {check.seed}"
    )
    lines: list[RenderableType] = [Text(line, style="" if check.equal else "red")]
    lines += [Text(f"  {safe(tensor.name)}: {safe(tensor.detail)}") for tensor in wrong[:SHOWN]]
    if check.other_calls is not None:
        lines.append(Text(f"  other calls: {safe(check.other_calls)}", style="dim"))
    if check.first_difference is not None:
        lines.append(Text(f"  differs first: {safe(check.first_difference)}"))
    return lines


_Quantity = tuple[str, Callable[[PhasePeak], str]]
"""Row of the phase table: (name, function that returns the row's text for a phase)."""


def _phases(capture: Capture, phases: tuple[str, ...]) -> Table[_Quantity]:
    """Return one column per phase: calls, operations, and live memory at the phase's peak."""
    rows: list[_Quantity] = [
        ("calls", lambda phase: f"{phases.count(phase.phase):,}"),
        ("FLOPs", lambda phase: flops_text(capture.flops.get(phase.phase))),
        ("peak memory", lambda phase: readable(phase.peak_bytes)),
    ]
    for kind in KINDS:

        def size(phase: PhasePeak, kind: str = kind) -> str:
            size = {str(name): size for name, size in phase.by_kind.items()}.get(kind)
            return readable(size) if size else DASH

        if any(size(phase) != DASH for phase in capture.peaks):
            rows.append((f"  {kind}", size))
    columns = [Column[_Quantity]("", lambda row: row[0], style=lambda row: "dim" if row[0].startswith(" ") else "")]
    columns += [
        Column[_Quantity](phase.phase, lambda row, phase=phase: row[1](phase), right=True) for phase in capture.peaks
    ]
    return Table("Phases", columns, rows)


def flops_text(flops: int | None) -> str:
    """Format a number of operations, such as "1.25 T"; a dash if there are none."""
    if not flops:
        return DASH
    size, unit = next(((size, unit) for size, unit in _UNITS if flops >= size), (1.0, ""))
    return f"{digits(flops / size, 3)} {unit}".rstrip()
