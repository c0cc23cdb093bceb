"""CI runs what it says: the tests through the Makefile, and a check of the wheel that finds strangers in it."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def check_wheel(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_wheel", root / ".ci" / "check_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ci_is_executable_and_calls_make_test(root: Path) -> None:
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()
    assert "set -euo pipefail" in script.read_text()


def test_a_sound_wheel_passes_and_a_bare_folder_in_it_does_not(check_wheel: ModuleType) -> None:
    sound = [f"opreplay/{name}" for name in check_wheel.REQUIRED[1:]] + ["opreplay-0.1.0.dist-info/licenses/LICENSE"]
    assert check_wheel.problems(sound) == []
    assert check_wheel.problems([*sound, "traces/model.py"]) == ["unexpected top-level entry traces"]
    assert check_wheel.problems(sound[1:]) == [f"no file {check_wheel.REQUIRED[1]}"]


def test_every_direct_dependency_is_pinned(root: Path) -> None:
    name = re.compile(r"[A-Za-z0-9_-]+")
    pinned = {
        name.match(line)[0].lower()  # type: ignore[index]
        for line in (root / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    project = (root / "pyproject.toml").read_text()
    lists = re.findall(r"^(?:dependencies|fast|test|lint|docs) = \[(.*?)\]$", project, re.MULTILINE | re.DOTALL)
    wanted = {found.lower() for block in lists for found in re.findall(r'"([A-Za-z0-9_-]+)', block)}
    assert wanted
    assert wanted <= pinned, f"pin in constraints.txt: {sorted(wanted - pinned)}"
