# pyright: strict
"""The contents of a trace as terminal text, for `inspect`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ir.sizes import readable
from opreplay.replay.ir.step import StepReport
from opreplay.replay.report.run import npu
from opreplay.replay.report.step.verdict import idle_line, named, step_facts, step_rows, verdict
from opreplay.replay.report.table import (
    COUNT,
    SHARE,
    TIME,
    AnyTable,
    Column,
    Fact,
    Table,
    facts_grid,
    terminal,
    warnings_of,
)
from opreplay.replay.report.text import coarse_text, doubt_lines, end, listed, plural, safe, share_text, time_text
from opreplay.replay.report.view import View
from opreplay.traces import TraceSummary
from opreplay.traces.joins.kernel_details import join_text
from opreplay.traces.losses import copies_text, without_copies
from opreplay.traces.model import MergedProcesses
from opreplay.traces.names import trace_name
from opreplay.traces.summary import BatchSummary, Interval, TopOp
from opreplay.traces.times.breakdown import Row
from opreplay.traces.times.busy import DeviceBusy

MEANING: dict[str, str] = {
    "none": "no shapes: ops cannot be replayed (record with record_shapes=True)",
    "dims": "only shapes and types are recorded: scalars are assumed to be defaults, strides contiguous",
    "dims+concrete": "only shapes, types and scalars are recorded: strides are assumed contiguous",
    "full": "shapes, types, scalars and strides: ops can be replayed exactly",
}
"""What each metadata level means for a replay."""
BATCHES_SHOWN = 12
CATEGORIES_SHOWN = 12
CLASSES_SHOWN = 8
LEAST_CLASS = 0.001
"""Minimum share for a class of work to be listed."""
LEAST_NAMED = 0.01
"""Minimum share for a class of work to be listed in the first lines."""
DEVICES_SHOWN = 8


def view(summary: TraceSummary, step: StepReport | None, *, everything: bool = True, all_rows: bool = True) -> View:
    """Return a trace's contents in every output format.

    `step` describes the recorded step. If no step is marked, only the JSON output includes it.
    """
    shown = step if step is not None and step.marked else None
    return View(
        lines=first_lines(summary, shown),
        render=lambda width: render(summary, shown, width=width, everything=everything, all_rows=all_rows),
        facts=lambda: {**msgspec.to_builtins(summary), "step": None if step is None else step_facts(step)},
    )


def first_lines(summary: TraceSummary, step: StepReport | None) -> list[str]:
    """Return what bounds the step (without a step, how busy the device was), classes of work, and metadata level."""
    name, work = trace_name(summary.path), _work(summary, LEAST_NAMED)
    if step is not None:
        lines = [named(name, verdict(step)), idle_line(step)]
    else:
        busy = "; ".join(f"busy {_busy(device, len(summary.busy))}" for device in _devices_to_show(summary)[:1])
        lines = [f"{safe(name)}: {'; '.join(filter(None, [_device_work(summary), busy]))}"]
    shown = f"; metadata {summary.metadata_level}" if summary.cpu_ops else ""
    return [*filter(None, [*lines, work and f"work: {work}"]), f"ops: {_ops(summary)}{shown}"]


def render(
    summary: TraceSummary,
    step: StepReport | None = None,
    *,
    width: int,
    everything: bool = True,
    all_rows: bool = True,
) -> RenderableType:
    """Render the kernels or ops with the most time. With `everything`, also render facts of the file and event
    categories.
    """
    facts = _facts(summary, step)
    parts: list[RenderableType] = [facts_grid(facts if everything else warnings_of(facts))]
    clock = "device time" if summary.device_time_us or summary.kernels else "own time on the host"
    if summary.top_kernels:
        owned = share_text(summary.owned_device_time_us / summary.device_time_us)
        title = f"Kernels by device time ({owned} of it belongs to ops)"
        parts += _section(title, _top_kernels(summary), width, all_rows=all_rows)
    else:
        parts += _section(f"Ops by {clock}", _top_ops(summary), width, all_rows=all_rows)
    parts += _section("NPU kernels by op", npu.kernels_table(summary.npu_ops), width)
    parts += _section("Iterations by batch", _batches(summary), width, limit=None if all_rows else BATCHES_SHOWN)
    parts += _section("Annotations by time", _annotations(summary), width, all_rows=all_rows)
    if summary.categories and everything:
        parts += [Text(), Text("Events by category", style="bold"), Text(_categories(summary.categories), style="dim")]
    return Group(*parts)


def _section(
    title: str, table: AnyTable, width: int, limit: int | None = None, *, all_rows: bool = True
) -> list[RenderableType]:
    """Return the table under its title; nothing if it has no rows."""
    parts = terminal(table, width, limit=limit, all_rows=all_rows)
    return [Text(), Text(title, style="bold"), *parts[1:]] if parts else []


def _facts(summary: TraceSummary, step: StepReport | None) -> list[Fact]:
    level, joined = summary.metadata_level, summary.kernel_details
    return [
        ("trace", summary.path, "bold"),
        *(step_rows(step) if step is not None else ()),
        ("read", f"{readable(summary.bytes_read)}, {plural(summary.events, 'event')}, {summary.dialect}", ""),
        ("recorded by", _recorded_by(summary), ""),
        ("on", _device(summary), ""),
        ("ops", _ops(summary), ""),
        ("metadata", f"{level}: {MEANING[level]}" if summary.cpu_ops else "", "" if level != "none" else "yellow"),
        ("processes", _processes(summary.merged), ""),
        ("device", _device_work(summary), ""),
        *(("whole file", _busy(device, len(summary.busy)), "") for device in _devices_to_show(summary)),
        *(("times", line, "yellow") for line in ([] if step is not None else doubt_lines(summary.doubts))),
        ("clock", "" if summary.coarse_unit_us is None else coarse_text(summary.coarse_unit_us), "yellow"),
        ("work", _work(summary), ""),
        ("links", _links(summary), ""),
        ("kernel table", join_text(joined) if joined else "", "yellow" if joined and joined.problem else ""),
        ("span", _span(summary), ""),
        ("iterations", _iterations(summary), ""),
        ("lost", _counts(without_copies(summary.losses)), "yellow"),
        ("copies", copies_text(summary.losses), "yellow"),
        ("repaired", _counts(summary.repairs), "yellow"),
    ]


def _ops(summary: TraceSummary) -> str:
    collectives = f"{plural(summary.collectives, 'collective')} with sizes" if summary.collectives else ""
    if not summary.cpu_ops:
        return f"none recorded, but {collectives}" if collectives else "none recorded, so there is nothing to replay"
    return (
        f"{summary.cpu_ops:,} ({summary.cpu_ops_with_shapes:,} with shapes), "
        f"{summary.unique_ops:,} unique, {summary.owner_ops:,} with device time"
    ) + (f"; {collectives}" if collectives else "")


PROCESSES_SHOWN = 8


def _processes(merged: MergedProcesses | None) -> str:
    """Return a merged file's processes: "2: [TP00] 1 (1 op, 10 µs on device 0), ...; select one with --process"."""
    if merged is None:
        return ""
    shown = [
        f"{end(safe(process.name), 40)} ({plural(process.ops, 'op')}"
        + (f", {time_text(process.device_us)}" if process.device_us else "")
        + (f" on device {', '.join(map(str, process.devices))}" if process.devices else "")
        + ")"
        for process in merged.processes
    ]
    return f"{len(shown)}: {listed(shown, PROCESSES_SHOWN)}; select one with --process"


def _span(summary: TraceSummary) -> str:
    threads = f" on {plural(summary.threads, 'thread')}" if summary.threads else ""
    return f"{time_text(summary.span_us)}{threads}" if summary.span_us else ""


def _recorded_by(summary: TraceSummary) -> str:
    version = f"torch {summary.torch_version}" if summary.torch_version else ""
    ranks = ""
    if summary.world_size is not None and summary.rank is not None:
        ranks = f"rank {summary.rank} of {summary.world_size}"
        ranks += " (impossible, but recorded so)" if summary.rank >= summary.world_size else ""
    elif summary.world_size is not None:
        ranks = f"{plural(summary.world_size, 'rank')}, this rank is not recorded"
    elif summary.rank is not None:
        ranks = f"rank {summary.rank}, world size is not recorded"
    return ", ".join(text for text in (version, ranks, summary.backend or "") if text)


def _device(summary: TraceSummary) -> str:
    names = ", ".join(dict.fromkeys(summary.device_names))
    return f"{names} ({summary.vendor})" if names and summary.vendor else names or summary.vendor or "not recorded"


def _device_work(summary: TraceSummary) -> str:
    rows = [
        plural(summary.kernels, "kernel"),
        plural(summary.gpu_memory_events, "copy or set").replace("copy or sets", "copies and sets"),
        plural(summary.device_events, "NPU task") if summary.device_events else "",
    ]
    if not (summary.kernels or summary.gpu_memory_events or summary.device_events):
        return "no device work recorded: shares refer to host time"
    return f"{time_text(summary.device_time_us)} in {', '.join(row for row in rows if row)}"


def _busy(device: DeviceBusy, devices: int) -> str:
    """Return "52.6 % of 4.05 ms from first to last work; 12.0 % of the busy time on several streams; ..."."""
    which = f"device {device.device}: " if devices > 1 else ""
    parts = [f"{which}{share_text(device.busy_share)} of {time_text(device.span_us)} from first to last work"]
    if device.overlapped_us and device.busy_us:
        parts.append(f"{share_text(device.overlapped_us / device.busy_us)} of the busy time on several streams")
    if device.communication_us:
        hidden = share_text(device.hidden_communication_us / device.communication_us)
        parts.append(f"communication {time_text(device.communication_us)}, {hidden} of it while other work ran")
    return "; ".join(parts)


def _devices_to_show(summary: TraceSummary) -> tuple[DeviceBusy, ...]:
    """Return the devices whose busy time is shown; none if busy times cannot be determined."""
    return () if summary.doubts.untimed else summary.busy[:DEVICES_SHOWN]


def _work(summary: TraceSummary, least: float = LEAST_CLASS) -> str:
    """Return the classes of work whose share is at least `least`, largest first."""
    shown = [row for row in summary.work if row.share >= least][:CLASSES_SHOWN]
    return ", ".join(f"{row.name} {share_text(row.share)}" for row in shown)


def _links(summary: TraceSummary) -> str:
    if not summary.device_time_us:
        links = summary.links
        if not links.launches_without_work:
            return ""
        return f"{links.launches_without_work:,} of {links.launches:,} launches without a kernel"
    owned = summary.owned_device_time_us / summary.device_time_us
    links = summary.links
    how = {"External id": links.by_external_id, "containment": links.by_containment, "flow": links.by_flow}
    named = ", ".join(f"{count:,} by {name}" for name, count in how.items() if count)
    text = f"{share_text(owned)} of the device time belongs to an op" + (f": {named}" if named else "")
    text += f"; {links.unowned:,} without" if links.unowned else ""
    if links.launched_before_device_ns / 1e3 / summary.device_time_us >= LEAST_CLASS:
        text += f" ({links.launched_before:,} of them launched before the recording)"
    if links.launches_without_work:
        text += f"; {links.launches_without_work:,} of {links.launches:,} launches without a kernel"
    return text


def _iterations(summary: TraceSummary) -> str:
    if not summary.iterations:
        repeated = any(interval.count > 1 for interval in summary.annotations)
        return "the trace marks no steps: it has no step annotation of torch.profiler or a server" if repeated else ""
    phases = ", ".join(f"{count:,} {phase}" for phase, count in summary.phases.items())
    return f"{summary.iterations:,}" + (f": {phases}" if phases else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{what} ({count:,})" for what, count in counts.items())


_Op = Column[TopOp]


def _top_ops(summary: TraceSummary) -> Table[TopOp]:
    total = summary.device_time_us or sum(row.time_us for row in summary.work) or 1.0
    columns = [
        _Op("share", lambda op: (op.device_us or op.host_us) / total, SHARE),
        _Op("time", lambda op: op.device_us or op.host_us, TIME),
        _Op("calls", lambda op: op.calls, COUNT),
        _Op("unique", lambda op: op.signatures, COUNT),
        _Op("op", lambda op: op.name, form="name"),
    ]
    return Table("Ops", columns, summary.top_ops, noun="op", weight=lambda op: op.device_us or op.host_us)


def _top_kernels(summary: TraceSummary) -> Table[Row]:
    columns = [
        Column[Row]("share", lambda row: row.share, SHARE),
        Column[Row]("time", lambda row: row.time_us, TIME),
        Column[Row]("calls", lambda row: row.calls, COUNT),
        Column[Row]("kind", lambda row: row.kind, drop=1),
        Column[Row]("kernel", lambda row: row.name, form="name"),
    ]
    return Table("Kernels", columns, summary.top_kernels, noun="kernel")


def _batches(summary: TraceSummary) -> Table[BatchSummary]:
    """Return one row per kind of batch: iterations, sequences, new and previously seen tokens, total times."""
    column = Column[BatchSummary]
    columns = [
        column("count", lambda batch: batch.iterations, COUNT),
        column("phase", lambda batch: batch.phase or "empty"),
        column("prefill", lambda batch: batch.prefill_sequences, COUNT),
        column("new", lambda batch: batch.prefill_tokens, COUNT),
        column("seen", lambda batch: batch.prefill_context, COUNT),
        column("decode", lambda batch: batch.decode_sequences, COUNT),
        column("new", lambda batch: batch.decode_tokens, COUNT),
        column("seen", lambda batch: batch.decode_context, COUNT),
        column("host", lambda batch: batch.total_us, TIME, drop=2),
        column("device", lambda batch: batch.device_us or None, TIME, drop=1),
    ]
    return Table("Batches", columns, summary.batches, noun="batch")


def _annotations(summary: TraceSummary) -> Table[Interval]:
    column = Column[Interval]
    columns = [
        column("time", lambda interval: interval.total_us, TIME),
        column("count", lambda interval: interval.count, COUNT),
        column("name", lambda interval: interval.name, form="name"),
    ]
    rows = summary.annotations
    return Table("Annotations", columns, rows, noun="name", weight=lambda interval: interval.total_us)


def _categories(categories: Mapping[str, int]) -> str:
    ranked = sorted(categories.items(), key=lambda item: -item[1])
    return listed([f"{end(safe(name), 32)} {count:,}" for name, count in ranked], CATEGORIES_SHOWN)
