"""A trace of more different ops than a plan resolves is refused, a part of them is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opreplay.replay.plan import build
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.select import OpFilter
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
    monkeypatch.setattr(build, "MOST_OPS", 5)
    with pytest.raises(TooLarge) as raised:
        build_plan(trace)
    assert "--top" in (raised.value.hint or "")
    assert len(build_plan(trace, filters=OpFilter(top=5)).ops) == 5
