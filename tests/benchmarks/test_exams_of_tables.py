"""The results of the exams are no worse than those that are committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_no_result_is_worse_than_the_committed_one(shared_ascend: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.exams", "--tables", str(shared_ascend)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
