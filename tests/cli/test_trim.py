"""`opreplay trim`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from tests.replay.timeline.machine import training


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return training().write(tmp_path / "t.json")


def invoke(*args: str) -> Result:
    return CliRunner().invoke(opreplay, ["trim", *args])


def test_a_step_and_its_timeline(trace: str, tmp_path: Path) -> None:
    target = str(tmp_path / "small.json.gz")
    result = invoke(trace, "--step", "1", "--output", target)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("kept ")
    whole, part = (
        json.loads(CliRunner().invoke(opreplay, ["timeline", path, "--step", "1", "--format", "json"]).stdout)
        for path in (trace, target)
    )
    assert part["recorded_step_us"] == pytest.approx(whole["recorded_step_us"])
    assert part["step"]["steps"] == 1
    again = invoke(trace, "--step", "1", "-o", target)
    assert again.exit_code == 2
    assert invoke(trace, "--step", "1", "-o", target, "--force").exit_code == 0


def test_between_times(trace: str, tmp_path: Path) -> None:
    counts = []
    for number, span in enumerate(("0..1ms", "1000..2000")):
        target = tmp_path / f"{number}.json"
        result = invoke(trace, "--between", span, "-o", str(target))
        assert result.exit_code == 0, result.stderr
        counts.append(len(json.loads(target.read_text())["traceEvents"]))
    assert counts[0] == counts[1]


def test_ops(trace: str, tmp_path: Path) -> None:
    target = tmp_path / "small.json"
    assert invoke(trace, "--op-filter", "aten::_foreach*", "-o", str(target)).exit_code == 0
    names = {event["name"] for event in json.loads(target.read_text())["traceEvents"]}
    assert names == {"aten::_foreach_add_", "cudaLaunchKernel", "foreach"}


@pytest.mark.parametrize(
    "args",
    [[], ["--step", "1", "--between", "0..1"], ["--between", "5"], ["--between", "2s..1s"], ["--between", "a..b"]],
)
def test_usage(trace: str, tmp_path: Path, args: list[str]) -> None:
    result = invoke(trace, *args, "-o", str(tmp_path / "small.json"))
    assert result.exit_code == 2
    assert not (tmp_path / "small.json").exists()
