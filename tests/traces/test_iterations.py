"""Ops get the batch of the innermost iteration around them, whatever their thread."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from opreplay.traces import read_trace
from opreplay.traces.iterations import BatchIndex


def trace(tmp_path: Path, notes: list[tuple[str, int, int]], ops: list[tuple[int, int]]) -> Any:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": n, "ts": ts, "dur": dur, "pid": 1, "tid": 1}
        for n, ts, dur in notes
    ] + [
        {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "ts": ts, "dur": 1, "pid": 1, "tid": tid,
         "args": {"Input Dims": [[4]], "Input type": ["float"]}}
        for ts, tid in ops
    ]  # fmt: skip
    file = tmp_path / "t.json.gz"
    file.write_bytes(gzip.compress(orjson.dumps({"traceEvents": events})))
    return read_trace(str(file))


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
