"""Help and completion answer at once: no heavy import, and little time."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

HEAVY = {"torch", "pandas", "numpy", "msgspec", "orjson", "rich", "sphinx"}
"""None of them is needed to print help; torch and pandas alone would cost seconds."""

MOST_SECONDS = 0.15
SLACK = 2
"""The bar is for an idle machine; where others share the caches the same work takes longer."""


def run_help(*arguments: str) -> set[str]:
    code = (
        "import json, sys\n"
        "from opreplay.cli.main import opreplay\n"
        "try:\n"
        f"    opreplay({list(arguments)!r})\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "print('\\n' + json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_help_imports_nothing_heavy() -> None:
    assert not run_help("--help") & HEAVY


def test_help_of_each_command_imports_neither_torch_nor_pandas() -> None:
    from opreplay.cli.main import COMMANDS

    for command in COMMANDS:
        assert not run_help(command, "--help") & {"torch", "pandas"}, command


def test_help_is_quick() -> None:
    command = [sys.executable, "-c", "from opreplay.cli.main import main; main()", "--help"]
    seconds = []
    for _ in range(5):
        before = os.times()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        after = os.times()
        # Of the processor, not of the wall: other tests run at the same time.
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
        assert "Usage:" in done.stdout
    assert statistics.median(seconds) < MOST_SECONDS * SLACK, seconds
