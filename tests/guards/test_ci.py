"""CI runs the tests through the Makefile, refuses skips that it could avoid, and finds strangers in the wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import tomllib


def script(root: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, root / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def check_wheel(root: Path) -> ModuleType:
    return script(root, "check_wheel")


@pytest.fixture(scope="module")
def skips(root: Path) -> ModuleType:
    return script(root, "skips")


def test_ci_is_executable_and_calls_make_test(root: Path) -> None:
    run = root / ".ci" / "run"
    assert os.access(run, os.X_OK)
    assert "make test" in run.read_text()
    assert "set -euo pipefail" in run.read_text()


def test_plain_pytest_imports_the_benchmarks_as_python_m_pytest_does(root: Path) -> None:
    """Guides name `pytest PATH`, which unlike `python -m pytest` does not put the current folder on `sys.path`."""
    options = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert options["pythonpath"] == ["."]


def test_reports_of_pytest_name_the_skipped_tests(skips: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_whole.py").write_text(
        "import pytest\npytest.skip('no CUDA device on this machine', allow_module_level=True)\n"
    )
    (tmp_path / "test_parts.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_needs(n): pytest.importorskip('no_such_module', reason='no_such is not installed')\n"
        "def test_passes(): pass\n"
        "@pytest.mark.xfail(reason='known')\n"
        "def test_fails(): assert False\n"
    )
    report = tmp_path / "report.xml"
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", f"--junitxml={report}", "."]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = skips.skipped(report.read_text())
    assert sorted(found) == [
        "test_parts::test_needs[1]: no_such is not installed",
        "test_parts::test_needs[2]: no_such is not installed",
        "test_whole: no CUDA device on this machine",
    ]
    assert sorted(skips.refused(found, shared=True, python=(3, 11))) == sorted(found)[:2]


@pytest.mark.parametrize(
    ("reason", "shared", "python", "accepted"),
    [
        ("no fish on this machine", True, (3, 11), True),
        ("transformers is not installed (extra hf)", True, (3, 11), False),
        ("no /x/shared/traces: public data that does not ship with the repository", True, (3, 11), False),
        ("no /x/shared/traces: public data that does not ship with the repository", False, (3, 11), True),
        ("needs ../shared/ascend", True, (3, 11), False),
        ("needs ../shared/ascend", False, (3, 11), True),
        ("Triton is not installed here", True, (3, 11), False),
        ("Triton is not installed here", True, (3, 10, 4), True),
    ],
)
def test_ci_accepts_skips_that_lie_in_the_machine(
    skips: ModuleType, reason: str, shared: bool, python: tuple[int, ...], accepted: bool
) -> None:
    test = f"tests.test_it::test_this: {reason}"
    assert skips.refused([test], shared=shared, python=python) == ([] if accepted else [test])


def test_a_sound_wheel_passes_and_one_with_strangers_or_without_a_module_does_not(check_wheel: ModuleType) -> None:
    compiled = "opreplay/traces/reading/native/_events.cpython-311-x86_64-linux-gnu.so"
    sound = [*sorted(check_wheel.wanted()), "opreplay-0.1.0.dist-info/licenses/LICENSE", compiled]
    assert {"opreplay/__init__.py", "opreplay/cli/main.py", "opreplay/replay/ascend/devices/910b3.toml"} <= {*sound}
    assert check_wheel.problems(sound) == []
    assert check_wheel.problems([*sound, "traces/model.py"]) == ["unexpected traces"]
    assert check_wheel.problems(sound[1:]) == [f"no {sound[0]}"]
    assert check_wheel.problems(sound[:-1]) == ["no compiled trace reader"]
    assert check_wheel.problems(sound[:-1], compiled=False) == []


def test_every_direct_dependency_is_pinned(root: Path) -> None:
    name = re.compile(r"[A-Za-z0-9_-]+")
    pinned = {
        name.match(line)[0].lower()  # type: ignore[index]
        for line in (root / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    project = (root / "pyproject.toml").read_text()
    lists = re.findall(r"^(?:dependencies|torch|test|lint|docs) = \[(.*?)\]$", project, re.MULTILINE | re.DOTALL)
    wanted = {found.lower() for block in lists for found in re.findall(r'"([A-Za-z0-9_-]+)', block)}
    assert wanted
    assert wanted <= pinned, f"pin in constraints.txt: {sorted(wanted - pinned)}"


def test_workflows_say_what_they_may(root: Path) -> None:
    """The default of a repository may be to write to all of it."""
    workflows = sorted((root / ".github" / "workflows").glob("*.yml"))
    assert workflows
    for workflow in workflows:
        text = workflow.read_text()
        assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE), workflow
        assert all(
            re.search(r"@[0-9a-f]{40}", line) for line in text.splitlines() if "uses: " in line and "./" not in line
        )


def test_the_image_installs_each_package_from_one_index_by_digest(root: Path) -> None:
    text = (root / "Dockerfile").read_text()
    assert "extra-index-url" not in text
    assert text.count("--index-url") == 1
    assert "--require-hashes -r /tmp/requirements.lock" in text


def test_the_lock_has_what_is_needed_by_digest(root: Path) -> None:
    """All direct dependencies but torch, in the versions of constraints.txt."""
    entries = re.split(r"\n(?=[a-z])", (root / "requirements.lock").read_text())[1:]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    locked = {match[1] for entry in entries if (match := re.match(r"([\w.-]+==[\w.]+)", entry))}
    needed = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    constraints = (root / "constraints.txt").read_text().splitlines()
    for requirement in needed:
        name = re.match(r"[\w-]+", requirement)[0]
        if name not in ("torch", "tomli"):
            pinned = [line.partition(";")[0].strip() for line in constraints if line.startswith(f"{name}==")]
            assert pinned
            assert pinned[0] in locked, name
