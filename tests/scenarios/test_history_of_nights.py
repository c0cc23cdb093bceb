"""Nightly runs by the console script: eight nights of the same op, then eight of one that does more."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from opreplay.replay.results.history import append_run, read_history
from opreplay.replay.results.records import Header, OpResult

pytestmark = pytest.mark.slow

SCRIPT = Path(sys.executable).parent / "opreplay"


def script(folder: Path, *args: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(SCRIPT), *args],
        cwd=folder,
        env={**os.environ, "OPREPLAY_SHARED_DEVICE": "1", "GITHUB_SHA": "5ha", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    return done.returncode, done.stdout + done.stderr


def test_nights_of_a_real_op_and_then_slower_ones(tmp_path: Path) -> None:
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::relu",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 10,
        "args": {"Input Dims": [[64, 64]], "Input type": ["float"], "Concrete Inputs": [""]},
    }
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [event]}))
    code, text = script(tmp_path, "run", "t.json", "--set", "op_time=5ms", "--history", "h.sqlite")
    assert code == 0, text
    assert "1 times added to h.sqlite as 5ha" in text
    (series,) = read_history(str(tmp_path / "h.sqlite"))
    (point,) = series.points
    assert point.label == "5ha"
    # The nights that follow are that one again, then a fifth slower.
    with contextlib.closing(sqlite3.connect(tmp_path / "h.sqlite")) as connection:
        (op,) = connection.execute("SELECT id, name, inputs FROM ops").fetchall()
    for night in range(16):
        header = Header(
            opreplay_version="0",
            started_at=f"2099-01-{night + 1:02d}T02:00:00",
            trace={},
            environment={"cpu": "the same all nights"},
            options={},
        )
        us = point.measured_us * (1.2 if night >= 8 else 1.0) * (1 + 0.01 * (night % 3))
        result = OpResult(id=op[0], name=op[1], inputs=op[2], count=1, status="replayed", measured_us=us)
        append_run(str(tmp_path / "h.sqlite"), header, [result], f"night{night}")
    code, text = script(tmp_path, "compare", "--history", "h.sqlite", "--fail-if", "slower>10%")
    assert code == 5, text
    assert "history of 2 ops in up to 16 runs: 1 changed" in text
    assert "night8, 2099-01-09 02:00" in text
