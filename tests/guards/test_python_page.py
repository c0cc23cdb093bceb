"""docs/python.md is true: its examples run in the order of the page, and each public name is on it, at work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import opreplay

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
MOST_LINES = 5
"""To replay one event of a trace."""


def test_examples_run(tmp_path: Path) -> None:
    """In one process, each after those before it, in a folder of their own."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCKS))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert "replayed 3 of 3 ops" in done.stdout
    assert (tmp_path / "bundle" / "replay.py").is_file()


def test_every_public_name_is_at_work_on_the_page() -> None:
    code = "\n".join(BLOCKS)
    returned = {"Comparison", "Inspection", "Measurement", "OpenTrace", "Op", "PreparedCall", "Results", "Simulation"}
    returned |= {"Sweep", "Timeline"}
    raised = {"NotReplayable", "OpReplayError"}
    absent = [n for n in opreplay.__all__ if n not in returned | raised and f"opreplay.{n}" not in code]
    assert not absent, f"use them in an example of docs/python.md: {absent}"
    assert not [name for name in (*returned, *raised) if f"`{name}`" not in PAGE]


def test_one_op_takes_few_lines_and_no_other_module() -> None:
    (block,) = (text for text in BLOCKS if text.startswith("import opreplay\n\ntrace"))
    lines = [line for line in block.splitlines() if line]
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if "import" in line] == ["import opreplay"]
