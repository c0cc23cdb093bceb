"""Help and completion answer at once: no heavy import, and little time."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import pytest

HEAVY = {"torch", "pandas", "numpy", "msgspec", "orjson", "rich", "sphinx"}
"""None of them is needed to print help; torch and pandas alone would cost seconds."""

MOST_SECONDS = 0.15
IMPORT_SECONDS = 0.03
"""Of `import opreplay`, beyond what the interpreter takes to start."""
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


@pytest.mark.slow
def test_help_of_each_command_imports_neither_torch_nor_pandas() -> None:
    from opreplay.cli.main import COMMANDS

    for command in COMMANDS:
        assert not run_help(command, "--help") & {"torch", "pandas"}, command


@pytest.mark.slow
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


def test_import_of_opreplay_brings_in_nothing_heavy() -> None:
    code = "import opreplay, opreplay as again, json, sys; dir(opreplay); print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("opreplay")} == {"opreplay"}


def test_reading_a_trace_brings_in_neither_torch_nor_pandas() -> None:
    code = (
        "import sys, opreplay\n"
        "from opreplay.traces.samples import sample_path\n"
        "opreplay.read_trace(sample_path('transformer_infer')), opreplay.__version__, opreplay.CustomInit\n"
        "opreplay.RunOptions(), opreplay.NotReplayable\n"
        "assert not {'torch', 'pandas'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_looking_into_a_trace_loads_no_torch() -> None:
    """Opening one, its recorded ops as a data frame, inspecting and explaining it; a kept plan needs none either."""
    code = (
        "import sys, opreplay\n"
        "from opreplay.traces.samples import sample_path\n"
        "SAMPLE = sample_path('transformer_infer')\n"
        "trace = opreplay.open(SAMPLE, include='aten::*norm*')\n"
        "assert len(opreplay.inspect(SAMPLE).kernels.frame().columns) == 6\n"
        "assert len(opreplay.timeline(SAMPLE).frame('critical_path'))\n"
        "assert len(trace.frame())\n"
        "assert 'torch' not in sys.modules\n"
        "assert len(trace.frame('plan'))\n"
        "print('torch' in sys.modules)\n"
    )
    told = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        for _ in range(2)
    ]
    assert told == ["True", "False"]


@pytest.mark.slow
def test_import_of_opreplay_is_quick() -> None:
    def spent(code: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    differences = [spent("import opreplay") - spent("pass") for _ in range(7)]
    assert statistics.median(differences) < IMPORT_SECONDS * SLACK, differences
