"""An op whose prediction the recording refutes is in no command's total, and its share of the time is said."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.scenarios.events import owner

pytestmark = pytest.mark.slow

Console = Callable[..., Result]
SOC = ("--soc", "910b3")
QUICK = ("--set", "op_time=1ms", "--set", "threads=1", "--set", "visits=1")
REFUTED, SOUND = "aten::mul", "aten::mm"
REFUTED_SHARE = 0.6


@pytest.fixture
def trace(trace_of: Callable[..., Path]) -> Path:
    """15 us for 240 MB, more than the memory of an H100 moves, and 10 us for a product."""
    return trace_of(*owner(REFUTED, 1, [[40_000_000]] * 2, 15.0), *owner(SOUND, 2, [[1024] * 2] * 2, 10.0))


@pytest.fixture
def results(console: Console, trace: Path, tmp_path: Path) -> Path:
    out = tmp_path / "r.jsonl"
    console("run", trace, *SOC, *QUICK, "-o", out)
    return out


def named(ops: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [one for one in ops if one["name"] == name]
    return found


def test_simulate(console: Console, trace: Path) -> None:
    facts = json.loads(console("simulate", trace, *SOC, "--format", "json").stdout)
    assert named(facts["unique_ops"], REFUTED)["simulated"] == {}
    one = facts["socs"]["910b3"]
    assert one["coverage"]["nothing"] == pytest.approx(REFUTED_SHARE)
    assert one["total_us"] == pytest.approx(named(facts["unique_ops"], SOUND)["simulated"]["910b3"]["time_us"])


def test_plan(console: Console, trace: Path) -> None:
    facts = json.loads(console("plan", trace, *SOC, "--format", "json").stdout)
    assert named(facts["unique_ops"], REFUTED)["simulated_us"] == {}
    assert facts["unpredicted_share"] == {"910b3": pytest.approx(REFUTED_SHARE)}


def test_run_and_report(console: Console, results: Path) -> None:
    facts = json.loads(console("show", results, "--format", "json").stdout)
    assert named(facts["ops"], REFUTED)["simulated_us"] == {}
    assert facts["summary"]["unpredicted_share"] == {"910b3": pytest.approx(REFUTED_SHARE)}
    assert facts["summary"]["simulated_us"] == named(facts["ops"], SOUND)["simulated_us"]
    rows = list(csv.DictReader(io.StringIO(console("show", results, "--format", "csv").stdout)))
    assert [bool(row["simulated_us_910b3"]) for row in rows] == [row["name"] == SOUND for row in rows]


def test_timeline(console: Console, trace: Path) -> None:
    one = json.loads(console("timeline", trace, *SOC, "--format", "json").stdout)["socs"]["910b3"]
    assert one["predicted_share"] == pytest.approx(1 - REFUTED_SHARE)
    assert one["invented_share"] == 0.0


def test_compare(console: Console, trace: Path) -> None:
    facts = json.loads(console("compare", trace, "--times", "recorded:910b3", "--format", "json").stdout)
    before, after = facts["sides"]
    assert before["matched_us"] == pytest.approx((1 - REFUTED_SHARE) * before["total_us"])
    assert (after["ops"], facts["counts"]["lost"]) == (1, 1)


def test_batch(console: Console, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.jsonl"
    console("batch", trace, *SOC, *QUICK, "-o", out)
    facts = json.loads(console("show", out, "--format", "json").stdout)
    (one,) = facts["traces"]
    assert one["unpredicted_share"] == {"910b3": pytest.approx(REFUTED_SHARE)}
    assert one["simulated_us"] == named(facts["ops"], SOUND)["simulated_us"]


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_a_report_says_first_how_much_is_not_predicted(
    console: Console, results: Path, tmp_path: Path, form: str
) -> None:
    out = tmp_path / f"r.{form}"
    text = console("show", results, "--format", form, *(("-o", out) if form == "html" else ())).stdout
    text = out.read_text() if form == "html" else text
    assert "60.0 % not predicted" in " ".join(text.split())


@pytest.mark.parametrize("command", ["simulate", "plan", "run", "timeline"])
def test_a_command_says_first_how_much_is_not_predicted(
    console: Console, trace: Path, tmp_path: Path, command: str
) -> None:
    more = (*QUICK, "-o", tmp_path / "r.jsonl") if command == "run" else ()
    lines = console(command, trace, *SOC, *more).stdout.splitlines()
    text = " ".join(" ".join(lines[:4]).split())
    assert "60.0 %" in text
    assert "not predicted" in text
