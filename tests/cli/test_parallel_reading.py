"""Large plain files are read by as many processes as processors are idle, and nothing else about the output differs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.host import idle
from opreplay.replay.plan import inputs
from opreplay.replay.plan.inputs import MOST_READERS, reading_processes
from opreplay.traces.reading import parallel
from tests.scenarios.events import owner


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    names = ("aten::mm", "aten::add", "aten::gelu")
    events = [e for i in range(400) for e in owner(names[i % 3], i + 1, [[64, 64 + i % 5]] * 2, 5.0 + i % 7)]
    file = tmp_path / "large.json"
    file.write_text(
        json.dumps({"schemaVersion": 1, "deviceProperties": [{"name": "NVIDIA H100"}], "traceEvents": events})
    )
    return file


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Files of 50 kB count as large; what became of each attempt to split one."""
    done: list[bool] = []
    scan: Callable[..., Any] = parallel.scan_parallel

    def spy(*arguments: Any, **more: Any) -> Any:
        found = scan(*arguments, **more)
        done.append(found is not None)
        return found

    monkeypatch.setattr(parallel, "MIN_PART_BYTES", 50_000)
    monkeypatch.setattr(parallel, "scan_parallel", spy)
    return done


def said(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(opreplay, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", [("inspect",), ("inspect", "--by", "kernel", "--format", "csv"), ("simulate",)])
def test_two_processes_print_the_same(
    trace: Path, split: list[bool], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(inputs, "STEP_BYTES", 50_000)
    monkeypatch.setattr(idle, "idle_cpus", lambda: 0.4)
    alone = said(*command, trace)
    assert split == [], "a busy machine is not made busier"
    monkeypatch.setattr(idle, "idle_cpus", lambda: 2.0)
    assert said(*command, trace) == alone
    assert split == [True]


def test_how_many_processes_pay(trace: Path, split: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked() -> float:
        raise AssertionError("looking at the processors takes 0.2 s, for a file that is not split")

    monkeypatch.setattr(idle, "idle_cpus", lambda: 64.0)
    assert reading_processes(str(trace)) == min(MOST_READERS, trace.stat().st_size // 50_000)
    monkeypatch.setattr(idle, "idle_cpus", lambda: None)
    assert reading_processes(str(trace)) == 1
    monkeypatch.setattr(idle, "idle_cpus", unasked)
    packed = trace.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(trace.read_bytes(), 0))
    small = trace.with_name("small.json")
    small.write_bytes(trace.read_bytes()[:60_000])
    for path in (packed, small, "-", trace.with_name("not there.json")):
        assert reading_processes(str(path)) == 1
    assert not split
