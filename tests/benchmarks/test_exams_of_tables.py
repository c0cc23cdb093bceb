"""The results of the exams are no worse than those that are committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.exams.ledger import EXAMS

pytestmark = pytest.mark.slow

DEAR = ("steps", "bounds")
"""Each captures dozens of models: as many seconds as all others together."""
OTHERS = tuple(name for name, exam in EXAMS.items() if not exam.is_slow and name not in DEAR)


@pytest.mark.parametrize("names", [*((name,) for name in DEAR), OTHERS], ids=[*DEAR, "others"])
def test_no_result_is_worse_than_the_committed_one(names: tuple[str, ...], shared_ascend: Path) -> None:
    """In a process of its own: tile programs that an exam imports become costs of their ops."""
    command = [sys.executable, "-m", "benchmarks.exams", "--tables", str(shared_ascend), "--only", *names]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
