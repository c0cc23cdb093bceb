"""What a user's function makes in several sizes, each captured and put on devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.ascend import load_device
from opreplay.replay.capture.sweep import sizes_of, swept, swept_file
from opreplay.traces.errors import UsageError

MAKE = """
import torch


def make(rows=16, width=64):
    return torch.nn.Linear(width, width), (torch.zeros(rows, width),)
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "sized_model.py").write_text(MAKE)
    return f"{tmp_path / 'sized_model.py'}:make"


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(opreplay, ["capture", *arguments])


def test_a_function_makes_a_step_of_each_size(target: str) -> None:
    done = run(target, "--vary", "rows=1k,4k", "width=256,512", "--soc", "910b3", "--format", "json")
    assert done.exit_code == 0, done.stderr
    rows = {(row["sizes"]["rows"], row["sizes"]["width"]): row for row in json.loads(done.stdout)["rows"]}
    assert rows.keys() == {(1024, 256), (1024, 512), (4096, 256), (4096, 512)}
    assert rows[4096, 512]["step_us"] > rows[1024, 512]["step_us"]
    # The input, the product and weight with bias, in float32.
    assert rows[4096, 512]["memory_bytes"] == 4 * (2 * 4096 * 512 + 512 * 512 + 512)
    assert all(row["low_us"] <= row["step_us"] <= row["high_us"] for row in rows.values())


def test_sizes_that_the_function_does_not_take_are_refused(target: str) -> None:
    with pytest.raises(UsageError, match="batch"):
        swept_file(target, {}, sizes_of(["batch=1,8"]), [load_device("910b3")], lambda plan: plan)


def test_a_config_has_batches_and_contexts_alone() -> None:
    with pytest.raises(UsageError, match="rows"):
        swept("hf:config.json", {}, sizes_of(["rows=1,8"]), [], lambda plan: plan)


@pytest.mark.parametrize("text", ["rows", "rows=", "rows=0", "rows=a", "1=2"])
def test_what_is_no_list_of_sizes_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="varies nothing"):
        sizes_of([text])
