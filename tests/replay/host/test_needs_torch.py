"""Without torch, what only reads works, and what needs torch exits with the command that installs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opreplay.replay.host.needs_torch import INSTALL_TORCH
from opreplay.traces.samples import sample_path

SAMPLE = str(sample_path("moe_block"))
WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder

class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "torch" else super().find_spec(name, path, target)

sys.meta_path = [WithoutTorch if finder is PathFinder else finder for finder in sys.meta_path]
"""
COMMAND = WITHOUT_TORCH + "from opreplay.cli.start import main; main()"
PYTHON = (
    WITHOUT_TORCH
    + """
import opreplay
opreplay.step(sys.argv[1])
opreplay.step(sys.argv[1], soc="910b3")
uses = (
    lambda: opreplay.open(sys.argv[1])["#1"],
    lambda: opreplay.capture,
    lambda: opreplay.op("aten::mm(f32[2,2], f32[2,2])"),
    lambda: opreplay.open([sys.argv[1], sys.argv[1]]).frame(),
    lambda: opreplay.run(sys.argv[1]),
    lambda: opreplay.benchmark(len, ()),
)
for use in uses:
    try:
        use()
    except opreplay.OpReplayError as error:
        print(type(error).__name__, error.hint)
"""
)


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("plan", SAMPLE), ("check", "aten::mm"), ("list", "initializers")])
def test_a_command_that_needs_torch_says_how_to_install_it(arguments: tuple[str, ...]) -> None:
    done = run(COMMAND, *arguments)
    assert (done.returncode, done.stdout) == (4, "")
    assert INSTALL_TORCH in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_step_is_explained_without_torch() -> None:
    assert run(COMMAND, "timeline", SAMPLE, "--advise").returncode == 0


@pytest.mark.slow
def test_the_library_says_how_to_install_it() -> None:
    lines = run(PYTHON, SAMPLE).stdout.splitlines()
    assert len(lines) == 6
    assert all(line.startswith(f"EnvironmentRefused {INSTALL_TORCH}") for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_a_torch_that_does_not_load_is_named(tmp_path: Path, error: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f'raise {error}("libcudart.so.12: cannot open")')
    done = run("from opreplay.cli.start import main; main()", "plan", SAMPLE, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (4, "")
    assert "libcudart.so.12" in done.stderr
    assert "Traceback" not in done.stderr
