"""Runs broken at random moments and continued; the benchmark does the same two hundred times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "faults.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's process limits")
def test_each_kind_of_fault_loses_nothing_but_the_op_in_flight() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--runs", "10", "--seed", "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split() == ["all", "10", "runs,", "0", "wrong"]
