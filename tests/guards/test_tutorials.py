"""Each tutorial is true: its files are written, its commands run in order in an empty folder, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted((DOCS / "tutorials").glob("*.md")), DOCS / "measure.md"]
_BLOCK = re.compile(r"^(?:`(?P<file>[\w.]+)`:\n\n)?```(?P<kind>\w+)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)


def test_there_is_one_for_each_kind_of_user() -> None:
    assert [page.stem for page in PAGES] == ["kernel-developer", "performance-engineer", "porting-team", "measure"]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_its_commands_run(page: Path, tmp_path: Path) -> None:
    environment = {
        # Each command would compile opreplay anew where nothing may be written.
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
        "OPREPLAY_SHARED_DEVICE": "1",
    }
    (tmp_path / ".git").mkdir()  # options of a folder above are no part of the page
    ran = 0
    for block in _BLOCK.finditer(page.read_text()):
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["body"])
            continue
        assert block["kind"] == "console", "a file has its name above it"
        for command in re.findall(r"^\$ (.+)$", block["body"], re.MULTILINE):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            assert "Traceback" not in done.stderr, command
            ran += 1
    assert ran >= 5
