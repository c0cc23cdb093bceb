"""Ops get the batch of the innermost iteration around them, whatever their thread."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from opreplay.traces import read_trace, summarize
from opreplay.traces.links.iterations import BatchIndex


def note(name: str, ts: int, dur: int, pid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": 1}


def read(tmp_path: Path, events: list[dict[str, Any]]) -> Any:
    file = tmp_path / "t.json.gz"
    file.write_bytes(gzip.compress(orjson.dumps({"traceEvents": events})))
    return read_trace(str(file))


def trace(tmp_path: Path, notes: list[tuple[str, int, int]], ops: list[tuple[int, int]]) -> Any:
    events = [note(*one) for one in notes] + [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::relu",
            "ts": ts,
            "dur": 1,
            "pid": 1,
            "tid": tid,
            "args": {"Input Dims": [[4]], "Input type": ["float"]},
        }
        for ts, tid in ops
    ]
    return read(tmp_path, events)


def test_innermost_wins_across_threads(tmp_path: Path) -> None:
    notes = [
        ("execute_context_1(64)_generation_2(2)", 0, 100),
        ("execute_context_0(0)_generation_5(5)", 40, 20),
        ("ProfilerStep#1", 45, 5),
    ]
    index = BatchIndex(trace(tmp_path, notes, [(10, 1), (45, 7), (70, 9), (200, 1)]))
    found = [None if i < 0 else index.contexts[i].decode_sequences for i in index.of_row]
    assert found == [2, 5, 2, None]


def test_what_an_inner_annotation_leaves_out_comes_from_one_that_agrees(tmp_path: Path) -> None:
    full = "execute_4_context_2(sq4sk9sqsq8sqsk18)_generation_0(sq0sk0sqsq0sqsk0)"
    index = BatchIndex(trace(tmp_path, [(full, 0, 100), ("step[EXTEND bs=2 toks=4]", 1, 50)], [(10, 1)]))
    assert index.contexts[index.of_row[0]].prefill_k == 9
    other = BatchIndex(trace(tmp_path, [(full, 0, 100), ("step[EXTEND bs=3 toks=4]", 1, 50)], [(10, 1)]))
    assert other.contexts[other.of_row[0]].prefill_k is None


def test_the_dominant_batch_has_most_weight(tmp_path: Path) -> None:
    notes = [(f"execute_context_0(0)_generation_{n}({n})", 100 * n, 50) for n in (1, 2)]
    index = BatchIndex(trace(tmp_path, notes, [(110, 1), (120, 1), (210, 1), (400, 1)]))
    rows = np.arange(4)
    even, heavy = index.dominant(rows, np.zeros(4)), index.dominant(rows, np.array([1.0, 1.0, 9.0, 1.0]))
    assert even is not None
    assert heavy is not None
    assert (even.context.decode_sequences, even.others) == (1, 2)
    assert (heavy.context.decode_sequences, heavy.share) == (2, pytest.approx(0.75))
    assert index.dominant(rows[3:], np.zeros(1)) is None


FORMATS = {
    "execute_4_context_2(sq3sk9sqsq5sqsk14)_generation_1(sq1sk7sqsq1sqsk7)": (2, 3, 9, 1, 1, 7),
    "execute_context_2(3)_generation_1(1)": (2, 3, None, 1, 1, None),
    "execute_context_2(3_5)_generation_1(1_7)": (2, 3, None, 1, 1, 7),
    "execute_new_2_cached_1": (2, None, None, 1, None, None),
    "step[EXTEND bs=2 toks=3]": (2, 3, None, 0, None, None),
}
"""An annotation of each format, and what `inspect` shows of it."""


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_reach_the_ops_and_the_summary(tmp_path: Path, name: str) -> None:
    found = trace(tmp_path, [(name, 0, 100), ("ProfilerStep#1", 0, 200)], [(10, 1), (20, 2), (150, 1)])
    index = BatchIndex(found)
    assert [index.contexts[i].prefill_sequences if i >= 0 else None for i in index.of_row] == [2, 2, None]
    summary = summarize(found)
    (batch,) = summary.batches
    assert FORMATS[name] == (
        batch.prefill_sequences,
        batch.prefill_tokens,
        batch.prefill_context,
        batch.decode_sequences,
        batch.decode_tokens,
        batch.decode_context,
    )
    assert (batch.iterations, batch.ops, batch.total_us) == (1, 2, 100)
    assert summary.iterations == 2
    assert summary.phases == {batch.phase: 1}


def test_an_iteration_that_is_marked_twice_counts_once(tmp_path: Path) -> None:
    outer = "execute_new_0_cached_4"
    notes = [(outer, 0, 100), ("step[DECODE bs=4]", 10, 50), ("step[DECODE bs=4]", 65, 20), (outer, 200, 100)]
    found = trace(tmp_path, notes, [(5, 1), (20, 1), (70, 1), (250, 1)])
    assert summarize(found).phases == {"decode": 3}, "one that is marked twice, its second step, and the last"
    index = BatchIndex(found)
    assert [index.contexts[i].decode_tokens for i in index.of_row] == [4, 4, 4, None]


def test_processes_do_not_share_iterations(tmp_path: Path) -> None:
    events = [note(f"step[DECODE bs={pid}]", 0, 100, pid=pid) for pid in (1, 2)]
    events += [
        {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "ts": 10 + pid, "dur": 1, "pid": pid, "tid": 9}
        for pid in (1, 2, 3)
    ]
    index = BatchIndex(read(tmp_path, events))
    assert [index.contexts[i].decode_sequences if i >= 0 else None for i in index.of_row] == [1, 2, None]


def test_overlapping_iterations_and_many_of_them(tmp_path: Path) -> None:
    notes = [(f"step[DECODE bs={n % 7 + 1}]", 100 * n, 150) for n in range(2000)]
    found = trace(tmp_path, notes, [(100 * n + 60, n % 3) for n in range(2000)])
    index = BatchIndex(found)
    assert len(index.contexts) == 7
    assert len(index.iterations) == 2000
    assert (index.of_row >= 0).all()


def test_graph_replays_belong_to_the_iteration_of_the_op_that_launches_them(tmp_path: Path) -> None:
    """A graph's kernels run after the annotation has ended; their link to the launch says which batch they are of."""
    op = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::relu",
        "ts": 10,
        "dur": 20,
        "pid": 1,
        "tid": 4,
        "args": {"Input Dims": [[4]], "Input type": ["float"]},
    }
    launch = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaGraphLaunch",
        "ts": 15,
        "dur": 5,
        "pid": 1,
        "tid": 4,
        "args": {"correlation": 7},
    }
    kernels = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "ts": 500 + 10 * i,
            "dur": 8,
            "pid": 0,
            "tid": 7,
            "args": {"correlation": 7, "device": 0, "stream": 7},
        }
        for i in range(3)
    ]
    found = read(tmp_path, [note("step[DECODE bs=4]", 0, 100), op, launch, *kernels])
    (batch,) = summarize(found).batches
    assert (batch.phase, batch.ops, batch.device_us) == ("decode", 1, 24)
