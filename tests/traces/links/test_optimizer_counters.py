"""Calls that count an optimizer's steps: scalars inside its range, on its thread, of a trace without a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opreplay.traces import read_trace
from opreplay.traces.links.optimizer_counters import optimizer_counters


def event(name: str, ts: float, dims: list[Any], types: list[str], *, tid: int = 1, **more: object) -> dict[str, Any]:
    args = {"Input Dims": dims, "Input type": types}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": 1, "pid": 1, "tid": tid, "args": args, **more}


STEP = {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#AdamW.step", "pid": 1, "tid": 1, "dur": 100}
SCALAR = ([[], []], ["float", "Scalar"])


def counted(path: Path, *events: dict[str, Any]) -> list[bool]:
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return optimizer_counters(read_trace(path)).tolist()


def test_what_counts(tmp_path: Path) -> None:
    found = counted(
        tmp_path / "t.json",
        {**STEP, "ts": 100},
        event("aten::add_", 50, *SCALAR),  # before it
        event("aten::add_", 110, *SCALAR),
        event("aten::add_", 120, [[4], []], ["float", "Scalar"]),  # of a parameter
        event("aten::mul_", 130, *SCALAR),  # no counter is multiplied
        event("aten::item", 140, [[]], ["float"]),
        event("aten::add_", 150, *SCALAR, tid=2),  # another thread
        event("aten::_foreach_add_", 160, [[[], []], []], ["TensorList", "float"]),
        event("aten::_foreach_add_", 170, [[[], [3]], []], ["TensorList", "float"]),
        event("aten::add_", 220, *SCALAR),  # after it
        event("aten::add_", 240, [[], []], ["long int", "Scalar"]),
    )
    assert sum(found) == 3
    assert [i for i, one in enumerate(found) if one] == [1, 4, 6]


def test_where_a_device_worked_it_is_known_what_ran_there(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 111, "dur": 1, "pid": 0, "tid": 7}
    args = {"correlation": 1, "device": 0, "stream": 7}
    assert not any(
        counted(tmp_path / "t.json", {**STEP, "ts": 100}, event("aten::add_", 110, *SCALAR), {**kernel, "args": args})
    )
    assert not any(counted(tmp_path / "t.json", event("aten::add_", 110, *SCALAR)))
