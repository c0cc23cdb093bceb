"""What commands cost grows with the size of a trace, not with how deep its calls lie in each other."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay

pytestmark = pytest.mark.slow

CALLS = 20_000
MOST_TIMES_FLAT = 3.0
"""Of the processor time of as many calls beside each other; one turn a level took 30 times as long."""


def written(path: Path, *, nested: bool) -> Path:
    """A trace of calls of one op, each inside the one before, or one after the other."""
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::relu",
            "pid": 1,
            "tid": 1,
            "ts": i if nested else 2 * i,
            "dur": 2 * (CALLS - i) if nested else 1,
            "args": {"External id": i, "Input Dims": [[2]], "Input type": ["float"]},
        }
        for i in range(CALLS)
    ]
    with gzip.open(path, "wt", compresslevel=1) as file:
        json.dump({"schemaVersion": 1, "traceEvents": events}, file)
    return path


def seconds(*args: str) -> float:
    """The least processor time of a few calls of a command."""
    taken: list[float] = []
    for _ in range(3):
        begin = time.process_time()
        result = CliRunner().invoke(opreplay, list(args), catch_exceptions=False)
        taken.append(time.process_time() - begin)
        assert result.exit_code == 0, result.output
    return min(taken)


@pytest.mark.parametrize(
    "args",
    [
        ("inspect",),
        ("inspect", "--by", "phase"),
        ("plan", "--set", "no_cache=true"),
        ("plan", "--set", "no_cache=true", "--select", "top"),
        ("timeline", "--what-if", "aten::relu=0.5x"),
        ("simulate", "--set", "no_cache=true", "--soc", "910b3"),
    ],
    ids=" ".join,
)
def test_depth_of_calls(args: tuple[str, ...], tmp_path: Path) -> None:
    deep, flat = (written(tmp_path / f"{nested}.json.gz", nested=nested) for nested in (True, False))
    assert seconds(args[0], str(deep), *args[1:]) < MOST_TIMES_FLAT * seconds(args[0], str(flat), *args[1:]) + 0.2
