"""`opreplay timeline`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from tests.replay.timeline.machine import training

CONTRACT = {
    "recorded_step_us", "retimed_step_us", "structure_error", "categories_us", "critical_path", "what_if",
}  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return training().write(tmp_path / "t.json")


def invoke(*args: str) -> Result:
    return CliRunner().invoke(opreplay, ["timeline", *args])


def test_the_first_line_says_how_far_the_graph_explains_the_step(trace: str) -> None:
    result = invoke(trace)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("ProfilerStep#0: recorded 3.61 ms, re-timed 3.61 ms (structure ")
    for text in ("computing", "critical path", "aten::mm", "off the path"):
        assert text in result.stdout


def test_json_keeps_its_contract(trace: str) -> None:
    result = invoke(trace, "--format", "json", "--what-if", "aten::mm=0.5x", "--what-if", "nccl*=0")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found.keys() >= CONTRACT
    assert found["schema_version"] == 1
    assert {"name", "us"} <= found["critical_path"][0].keys()
    assert [one["change"] for one in found["what_if"]] == ["aten::mm=0.5x", "nccl*=0"]
    assert all(one["step_us"] < found["retimed_step_us"] for one in found["what_if"])


def test_step_is_chosen(trace: str) -> None:
    assert invoke(trace, "--step", "1").stdout.startswith("ProfilerStep#1: ")
    result = invoke(trace, "--step", "5")
    assert result.exit_code == 3
    assert "has no step 5" in result.stderr


def test_a_bad_change_says_what_a_change_is(trace: str) -> None:
    result = invoke(trace, "--what-if", "faster please")
    assert result.exit_code == 3
    assert "PATTERN=0.5x" in result.stderr


def test_names_of_a_trace_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    machine = training()
    for event in machine.events:
        event["name"] = event["name"].replace("aten::mm", "aten::\x1b[31mmm\u202e")
    result = invoke(machine.write(tmp_path / "t.json"))
    assert result.exit_code == 0
    assert "\x1b[31m" not in result.stdout
    assert "\u202e" not in result.stdout
