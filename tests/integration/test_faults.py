"""Runs broken at random moments and continued; the benchmark does the same two hundred times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "faults.py"


KINDS = (
    "full disk",
    "kill the run",
    "power loss",
    "kill a batch",
)
"""Those on Ray need a cluster, which takes its time to start; `test_schedule_ray` has one. Crashes, hangs, ends of
workers and lanes and SIGTERM have tests of their own."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's process limits")
def test_faults_of_every_place_lose_nothing_but_the_op_in_flight() -> None:
    command = [sys.executable, SCRIPT, "--runs", str(len(KINDS)), "--seed", "3", "--kinds", ",".join(KINDS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split() == ["all", str(len(KINDS)), "runs,", "0", "wrong"]
