"""The plan of a trace is kept between runs, says the same, and is not kept where it should not be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opreplay.replay.host import kept
from opreplay.traces.samples import sample_path
from tests.scenarios.conftest import Console

pytestmark = pytest.mark.slow

SAMPLE = sample_path("moe_block")
PLUGIN = """
from opreplay.replay import register_executor

@register_executor("mine::op")
def mine(x):
    return x
"""


def files() -> int:
    folder = kept.folder()
    return len(list(folder.glob("*"))) if folder is not None and folder.is_dir() else 0


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_the_second_run_says_the_same_and_imports_no_torch(command: str) -> None:
    code = "import sys; from opreplay.cli.main import opreplay; opreplay(standalone_mode=False); "
    code += "print('torch' in sys.modules, file=sys.stderr)"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, command, str(SAMPLE)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "80"},
        )
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert [run.stderr.split()[-1] for run in runs] == ["True", "False"]


def test_nothing_is_kept_without_leave(console: Console, tmp_path: Path) -> None:
    plain = console("simulate", SAMPLE, "--set", "no_cache=true", "--top", 3).stdout
    console("plan", SAMPLE, "--set", "no_cache=true", "--top", 3)
    assert files() == 0
    (tmp_path / "mine.py").write_text(PLUGIN)
    console("plan", SAMPLE, "--plugin", tmp_path / "mine.py", "--top", 3)  # users' code may decide on a plan
    assert files() == 0
    assert console("simulate", SAMPLE, "--top", 3).stdout == plain
    assert files() > 0
    assert console("simulate", SAMPLE, "--top", 3).stdout == plain


def test_another_seed_and_own_settings_are_not_taken_from_the_cache(console: Console) -> None:
    for arguments in ((), ("--set", "seed=1"), ("--set", "seed=2")):
        anew = console("simulate", SAMPLE, *arguments, "--set", "no_cache=true").stdout
        for _ in range(2):
            assert console("simulate", SAMPLE, *arguments).stdout == anew
