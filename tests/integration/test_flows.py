"""Flows of torch_ir and msmodeling as written here: they run, and take fewer lines than in those projects' guides."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import opreplay
from opreplay.cli.main import opreplay as command
from opreplay.replay import plugins

pytestmark = pytest.mark.slow

FLOWS = Path(__file__).parents[2] / "docs" / "examples" / "flows.py"
OTHER_GUIDES = (22, 5, 9, 9)
"""Lines of code of the same flows in the guides of torch_ir (5; 3.3 without its imports) and msmodeling (4.2 twice)."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    plugins.clear_registrations()


def priced(call: str) -> dict[str, float]:
    given = [
        "op",
        call,
        "--plugin",
        str(FLOWS),
        "--soc",
        "910b3",
        "--no-measure",
        "--set",
        "no_cache=true",
        "--format",
        "json",
    ]
    done = CliRunner().invoke(command, given)
    assert done.exit_code == 0, done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    return case["simulated_us"]


def test_the_flows_run() -> None:
    assert priced("custom::fused_gate(f32[4,8], f32[4,8])")["910b3"] == pytest.approx(1000.064)
    assert priced("custom::largest(f32[4,8], k=2)")["910b3"] > 0
    values, places = opreplay.op("custom::largest(f32[4,8], k=2)")()
    assert values.shape == places.shape == (4, 2)
    assert opreplay.op("custom::fused_gate(f32[3], f32[3])")().dtype == torch.float32


def test_they_take_fewer_lines_than_in_the_other_guides() -> None:
    parts = re.split(r"\n\n\n(?=@)", FLOWS.read_text())
    head, gate, largest, estimate, work = ([line for line in part.splitlines() if line.strip()] for part in parts)
    assert head == ["import torch", "import opreplay"]
    ours = (2 + len(gate), len(largest), 1 + len(estimate), 1 + len(work))
    assert all(mine < theirs for mine, theirs in zip(ours, OTHER_GUIDES, strict=True)), ours
