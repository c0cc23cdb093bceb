"""Timelines for Perfetto: recorded and simulated side by side."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from tests.replay.timeline.machine import training


def test_recorded_and_simulated_side_by_side(shared_traces: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.json.gz"
    args = ["timeline", str(shared_traces / "h100_bert_small.json.gz"), "--soc", "910b3", "--format", "json"]
    result = CliRunner().invoke(opreplay, [*args, "--timeline", str(target)])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    events = json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
    titles = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert titles == {1: "recorded", 2: "simulated 910b3"}
    tasks = [e for e in events if e["ph"] == "X" and e["cat"] != "host"]
    assert len(tasks) == 2 * 61
    assert sum(e["dur"] for e in tasks if e["pid"] == 1) == pytest.approx(
        found["categories_us"]["computing"] + found["categories_us"]["copies"], rel=0.01
    )
    kernel = next(e for e in tasks if e["pid"] == 2 and e["cat"] == "kernel")
    assert {"op", "recorded_us", "families", "low_us", "high_us"} <= kernel["args"].keys()
    arrows = Counter((e["ph"], e["id"]) for e in events if e["ph"] in "sf")
    assert set(arrows.values()) == {1}
    assert {i for p, i in arrows if p == "s"} == {i for p, i in arrows if p == "f"}
    assert len(arrows) == 2 * 2 * 61


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    trace, target = training().write(tmp_path / "t.json"), tmp_path / "out.json"
    assert CliRunner().invoke(opreplay, ["timeline", trace, "--timeline", str(target)]).exit_code == 0
    assert json.loads(target.read_text())["traceEvents"]
    assert CliRunner().invoke(opreplay, ["timeline", trace, "--timeline", str(target)]).exit_code == 2
    assert CliRunner().invoke(opreplay, ["timeline", trace, "--timeline", str(target), "--force"]).exit_code == 0
