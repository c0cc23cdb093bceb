"""Copies of recordings with other durations stay valid traces; the cost of a command is that of all its processes."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.costs import cost_of
from benchmarks.scale import events_of, retimed, write_trace
from opreplay.traces import read_trace
from opreplay.traces.samples import sample_path


def nested(events: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """Names of events and of the event of their thread right around each."""
    found: Counter[tuple[str, str]] = Counter()
    by_thread: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for event in events:
        if event.get("ph") == "X":
            by_thread.setdefault((event["pid"], event["tid"]), []).append(event)
    for thread in by_thread.values():
        around: list[dict[str, Any]] = []
        for event in sorted(thread, key=lambda one: (one["ts"], -one["dur"])):
            while around and around[-1]["ts"] + around[-1]["dur"] <= event["ts"]:
                around.pop()
            found[around[-1]["name"] if around else "", event["name"]] += 1
            around.append(event)
    return found


def test_a_copy_has_other_durations_and_the_same_nesting() -> None:
    trace = json.loads(gzip.decompress(sample_path("moe_block").read_bytes()))
    copy = retimed(trace, seed=3)
    ratios = [
        after["dur"] / before["dur"]
        for before, after in zip(trace["traceEvents"], copy["traceEvents"], strict=True)
        if before.get("dur", 0) > 5
    ]
    assert nested(copy["traceEvents"]) == nested(trace["traceEvents"])
    assert 0.7 < min(ratios) < 0.95 < 1.05 < max(ratios) < 1.4
    assert retimed(trace, seed=4) != copy


def test_a_written_trace_has_so_many_different_ops_with_a_kernel_each(tmp_path: Path) -> None:
    trace = read_trace(str(write_trace(tmp_path / "t.json", 40)))
    assert len(trace.ops) == len(trace.kernels) == 40
    calls = [event for event in events_of(40) if event["cat"] == "cpu_op"]
    assert len({(event["name"], str(event["args"]["Input Dims"])) for event in calls}) == 40


def test_costs_are_those_of_all_processes() -> None:
    child = "import time; held = bytearray(60_000_000)\nwhile time.process_time() < 0.4: pass"
    cost = cost_of([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"])
    assert cost.failure == ""
    assert cost.cpu_s >= 0.4
    assert cost.peak_mb >= cost.largest_mb >= 60


def test_a_command_over_its_time_is_stopped() -> None:
    assert cost_of([sys.executable, "-c", "while True: pass"], limit_s=0.2).failure == "time limit"


def test_a_failure_is_told_by_the_last_line() -> None:
    assert cost_of([sys.executable, "-c", "raise SystemExit('no such thing')"]).failure == "no such thing"
