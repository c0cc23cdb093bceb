"""A trace of more different ops than a plan resolves is refused, a part of them is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.recorded import ops
from opreplay.replay.plan.recorded.groups import Rows, grouped_rows
from opreplay.replay.plan.selection import OpFilter
from opreplay.traces import read_trace
from opreplay.traces.errors import TooLarge


def test_more_ops_than_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::relu",
            "pid": 1,
            "tid": 1,
            "ts": 2 * i,
            "dur": 1,
            "args": {"External id": i, "Input Dims": [[i + 1]], "Input type": ["float"]},
        }
        for i in range(6)
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = read_trace(path)
    assert len(build_plan(trace).ops) == 6
    monkeypatch.setattr(ops, "MOST_OPS", 5)
    with pytest.raises(TooLarge) as raised:
        build_plan(trace)
    assert "--top" in (raised.value.hint or "")
    assert len(build_plan(trace, filters=OpFilter(top=5)).ops) == 5


@pytest.mark.parametrize(
    ("filters", "made"), [(OpFilter(), 6), (OpFilter(top=2), 2), (OpFilter(min_share=0.2), 2), (OpFilter(top=0), 0)]
)
@pytest.mark.parametrize("on_device", [True, False])
def test_nothing_is_made_of_ops_that_filters_drop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: OpFilter, made: int, on_device: bool
) -> None:
    """The heaviest are told from sums of their calls: by the device's time where it is recorded."""
    events: list[dict[str, object]] = []
    for call in range(12):
        op, ts = call % 6, 100 * call
        thread = {"ph": "X", "pid": 1, "tid": 1, "ts": ts}
        told = {"External id": call, "Input Dims": [[op + 1]], "Input type": ["float"]}
        events.append({**thread, "cat": "cpu_op", "name": "aten::relu", "dur": (1, 2, 3, 4, 20, 30)[op], "args": told})
        if on_device:
            launch = {"External id": call, "correlation": call}
            events.append({**thread, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 1, "args": launch})
            events.append(
                {"ph": "X", "pid": 0, "tid": 7, "ts": ts, "cat": "kernel", "name": "k"}
                | {"dur": (30, 20, 4, 3, 2, 1)[op], "args": launch}
            )
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = read_trace(path)
    counted: list[int] = []

    def groups(*arguments: Any) -> list[Rows]:
        out = grouped_rows(*arguments)
        counted.append(len(out))
        return out

    monkeypatch.setattr(ops, "grouped_rows", groups)
    plan = build_plan(trace, filters=filters)
    assert counted == [made]
    times = [op.recorded.device_us_total if on_device else op.recorded.host_us_total for op in plan.ops]
    assert times == [60.0, 40.0, 8.0, 6.0, 4.0, 2.0][:made]
    assert plan.host_us_total == 2 * 60
