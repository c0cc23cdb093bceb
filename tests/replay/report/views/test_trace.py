"""The view of `inspect`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from opreplay.replay.report.views import trace as view
from opreplay.traces import read_trace, summarize


def event(category: str, name: str, ts: int, dur: int, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def shown(path: Path, events: list[dict[str, object]], width: int = 80) -> str:
    path.write_text(json.dumps({"traceEvents": events}))
    stream = io.StringIO()
    rendered = view.render(summarize(read_trace(path)), width=width)
    Console(file=stream, width=width, markup=False, emoji=False, highlight=False).print(rendered)
    return stream.getvalue()


EVENTS = [
    event(
        "cpu_op",
        "aten::mm",
        10,
        30,
        **{"External id": 5, "Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "float"]},
    ),
    event("cuda_runtime", "cudaLaunchKernel", 12, 3, **{"External id": 5, "correlation": 9}),
    event("kernel", "gemm", 20, 8, **{"External id": 5, "correlation": 9, "device": 0, "stream": 7}),
    event("user_annotation", "ProfilerStep#1 \x1b[2J[red]", 5, 60),
]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_trace_in_one_view(tmp_path: Path, width: int) -> None:
    text = shown(tmp_path / "t.json", EVENTS, width)
    assert max(map(len, text.splitlines())) <= width
    assert "8.00 µs in 1 kernel" in text
    assert "1 unique, 1 with device time" in " ".join(text.split())
    assert "100.0 %" in text
    assert "aten::mm" in text
    assert "\x1b" not in text
    assert "\\x1b[2J[red]" in text


def test_a_trace_of_kernels_alone_says_that_nothing_can_be_replayed(tmp_path: Path) -> None:
    text = shown(tmp_path / "t.json", EVENTS[2:3])
    assert "none recorded, so there is nothing to replay" in text
    assert "metadata" not in text


def test_a_trace_without_device_says_so_and_what_its_metadata_is_good_for(tmp_path: Path) -> None:
    text = shown(tmp_path / "t.json", [event("cpu_op", "aten::mm", 1, 2)])
    assert "shares refer to host time" in text
    assert "record_shapes=True" in text


PREFILL, DECODE = "sq512sk900sqsq200000sqsk300000", "sq37sk37sqsq37sqsk37"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_iterations_by_batch(tmp_path: Path, width: int) -> None:
    notes = [
        event(
            "user_annotation",
            f"execute_549_context_{n % 2 + 1}({PREFILL})_generation_37({DECODE})",
            100 * n,
            50,
        )
        for n in range(1, 5)
    ]
    text = shown(tmp_path / "t.json", [*EVENTS[:3], *notes], width)
    assert max(map(len, text.splitlines())) <= width
    assert "4: 4 mixed" in text
    row = next(line.split() for line in text.splitlines() if " mixed " in line and "4: 4" not in line)
    assert row[:8] == ["2", "mixed", "2", "512", "900", "37", "37", "37"]
    assert ("hidden at a width" in text) == (len(row) < 11) == (width < 80)


@pytest.mark.parametrize(
    ("rank", "world_size", "says"),
    [
        (None, 2, "2 ranks, this rank is not recorded"),
        (3, None, "rank 3, world size is not recorded"),
        (3, 8, "rank 3 of 8"),
        (9, 8, "rank 9 of 8 (impossible, but recorded so)"),
        (8, 8, "rank 8 of 8 (impossible, but recorded so)"),
        (None, None, ""),
    ],
)
def test_a_rank_that_is_not_recorded_is_said(rank: int | None, world_size: int | None, says: str) -> None:
    source = Path(__file__).parents[3] / "traces" / "dialects" / "others" / "et_rank_none.json"
    summary = msgspec.structs.replace(summarize(read_trace(source)), rank=rank, world_size=world_size, backend=None)
    rendered = Console(file=io.StringIO(), width=100)
    rendered.print(view.render(summary, width=100))
    assert isinstance(rendered.file, io.StringIO)
    text = rendered.file.getvalue()
    assert "None" not in text
    assert says in text
    assert ("recorded by" in text) is bool(says)
    assert ("cannot be" in text) is ("cannot be" in says)


@pytest.mark.parametrize(("name", "told"), [("my_loop: forward", True), ("ProfilerStep#7", False)])
def test_annotations_that_recur_and_mark_no_step_are_told(tmp_path: Path, name: str, told: bool) -> None:
    marks = [event("user_annotation", name, 100 * i + 1, 90) for i in range(3)]
    text = shown(tmp_path / "t.json", [*EVENTS[:3], *marks], 200)
    assert ("the trace marks no steps" in text) is told
