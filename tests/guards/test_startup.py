"""Help and completion answer at once: no heavy import, and little time."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

HEAVY = {"torch", "pandas", "numpy", "msgspec", "orjson", "rich", "sphinx"}
"""None of them is needed to print help; torch and pandas alone would cost seconds."""

MOST_SECONDS = 0.15
SLACK = 4
"""The bar is for an idle machine; a busy CI machine may take this many times as long."""


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
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - start)
        assert "Usage:" in done.stdout
    assert statistics.median(seconds) < MOST_SECONDS * SLACK, seconds
