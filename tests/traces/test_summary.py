"""What `summarize` counts, and that it is JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec

from opreplay.traces import TraceSummary, read_trace, summarize
from tests.traces.events import document, note, small_events, write


def test_summary_of_the_small_trace(tmp_path: Path) -> None:
    summary = summarize(read_trace(write(tmp_path, document())))
    assert (summary.events, summary.cpu_ops, summary.unique_ops, summary.owner_ops) == (len(small_events()), 3, 3, 2)
    assert (summary.kernels, summary.gpu_memory_events, summary.device_events) == (2, 1, 0)
    assert summary.device_time_us == 14.5
    assert summary.owned_device_time_us == 9.5
    assert summary.span_us == 165.0 - 101.25
    assert (summary.user_annotations, summary.iterations) == (1, 1)
    assert summary.top_ops[0].name == "aten::mm"
    assert summary.top_ops[0].device_us == 7.5
    assert summary.annotations[0].total_us == 100.5
    assert summary.categories["cpu_op"] == 3
    assert summary.categories["(none)"] == 2
    assert sum(summary.categories.values()) == summary.events
    assert msgspec.json.decode(msgspec.json.encode(summary), type=TraceSummary) == summary


def test_unknown_categories_are_counted_by_name(tmp_path: Path) -> None:
    events = [*small_events(), *({"ph": "X", "cat": f"new_{i % 3}", "ts": 1, "name": "x"} for i in range(9))]
    summary = summarize(read_trace(write(tmp_path, document(events)), _block_bytes=200))
    assert [summary.categories[f"new_{i}"] for i in range(3)] == [3, 3, 3]


def test_many_annotations_are_summed_by_name(tmp_path: Path) -> None:
    events = [note(f"step[DECODE bs={i % 4}]", i, 2) for i in range(20)]
    summary = summarize(read_trace(write(tmp_path, document(events))))
    assert (summary.user_annotations, summary.iterations, len(summary.annotations)) == (20, 20, 4)
