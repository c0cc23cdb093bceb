"""The README is true: its set-up commands exist, its console snippets run, and its output looks like theirs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^\$ opreplay (.+)$", README, re.MULTILINE)
FILES = re.findall(r"^`([\w.]+)`:\n\n```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SIMULATED = re.compile(
    r"^([0-9a-f]{6}) .*?(~?[\d.]+ [mµn]?s  \w[\w ]*?)  +aten::|^(\w+) .*% .* ([\d.]+ [mµn]?s)$", re.MULTILINE
)
"""The predictions that are printed: id, time and bound of an op, or name and time of a trace."""
COVERAGE = r"replayed \d+ of \d+ ops = [\d.]+ % of (device|host) time"


def test_set_up_is_two_commands() -> None:
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_demo_is_the_command_that_the_readme_shows() -> None:
    sample = re.search(r"^SAMPLE := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sample is not None
    assert f"run {sample[1]} --soc 910b3" in COMMANDS
    assert re.search(COVERAGE, README)


def shown_by(command: str) -> str:
    """What the README prints below a command."""
    return README.partition(f"$ opreplay {command}\n")[2].partition("\n```")[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command: str, tmp_path: Path) -> None:
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    arguments = shlex.split(command)
    if arguments[0] == "run":
        arguments += ["--top", "4", "--set", "op_time=5ms"]  # the same path through the program, in less time
    done = subprocess.run(
        [sys.executable, "-c", "from opreplay.cli.main import main; main()", *arguments],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if arguments[0] != "run":
        return
    assert re.search(COVERAGE, done.stdout)
    shown, printed = (
        {op or trace: of_op or of_trace for op, of_op, trace, of_trace in SIMULATED.findall(text)}
        for text in (shown_by(command), done.stdout)
    )
    both = shown.keys() & printed.keys()
    assert {op: shown[op] for op in both} == {op: printed[op] for op in both}
    assert both
