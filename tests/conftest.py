"""Fixtures that every test may use, and the rule that GPU tests are skipped, with the reason, where there is no GPU."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of NumPy: threads that wait for each other on busy processors
os.environ.setdefault("OPREPLAY_SHARED_DEVICE", "1")  # tests that run at the same time need not wait for each other

# No test reads or fills the user's cache; each one begins with an empty one (`own_cache`).
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="opreplay-tests-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

# The same examples in every run, so that a red run is the change's fault; `make fuzz` looks for new ones.
# How long drawing takes says something of the machine's load, nothing of the code.
_SLOW = (HealthCheck.too_slow,)
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("fuzz", derandomize=False, deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


SLOW = (
    "benchmarks/",
    "cli/assistant/test_mcp.py",
    "cli/commands/test_batch.py",
    "cli/commands/test_check.py",
    "cli/commands/test_export.py",
    "cli/commands/test_history.py",
    "cli/commands/test_op.py",
    "cli/commands/test_tile.py",
    "cli/terminal/test_signals.py",
    "cli/test_growth.py",
    "guards/test_action.py",
    "guards/test_docstring_names.py",
    "guards/test_living_flags.py",
    "guards/test_python_page.py",
    "guards/test_readme.py",
    "guards/test_tutorials.py",
    "initializers/test_strict.py",
    "integration/",
    "replay/arguments/test_supplied.py",
    "replay/ascend/simulate/test_streaming.py",
    "replay/capture/calls/test_without_mode.py",
    "replay/capture/test_check.py",
    "replay/capture/test_models.py",
    "replay/capture/test_record.py",
    "replay/check/test_defects.py",
    "replay/check/test_isolated.py",
    "replay/check/test_kinds.py",
    "replay/check/test_variants.py",
    "replay/execute/processes/",
    "replay/export/test_bundle.py",
    "replay/export/test_scaffold.py",
    "replay/ops/costs/test_own_faults.py",
    "replay/ops/costs/test_reads_and_writes.py",
    "replay/report/test_nothing_after_the_recording.py",
    "replay/resolve/guess/test_results.py",
    "replay/resolve/meta/test_check.py",
    "replay/resolve/user/test_python_functions.py",
    "replay/resolve/user/test_torch_ir.py",
    "replay/session/test_own_ops.py",
    "replay/testing/test_pytest_plugin.py",
    "replay/tile/emit/test_triton.py",
    "replay/tile/test_faults.py",
    "replay/tile/test_loops.py",
    "replay/tile/test_programs.py",
    "replay/timeline/test_captured.py",
    "scenarios/test_batch_findings.py",
    "scenarios/test_captured_jobs.py",
    "scenarios/test_captured_steps.py",
    "scenarios/test_check_values.py",
    "scenarios/test_compare_sides.py",
    "scenarios/test_extreme_inputs.py",
    "scenarios/test_first_screen.py",
    "scenarios/test_history_of_nights.py",
    "scenarios/test_invented_sizes.py",
    "scenarios/test_kept_plans.py",
    "scenarios/test_one_step.py",
    "scenarios/test_own_",
    "scenarios/test_planted_modules.py",
    "scenarios/test_tile_programs.py",
    "scenarios/test_totals_without_refuted.py",
    "scenarios/test_user_findings.py",
    "scenarios/test_wrong_conclusions.py",
    "traces/reading/native/",
)
"""Files below tests/ that end processes, start many, or walk through tutorials or every op: most of the time of all.
`make test` leaves them, and single tests marked `slow` in other files, to `make test-all`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of `SLOW`."""
    for item in items:
        if item.path.relative_to(ROOT / "tests").as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    """--update-golden."""
    parser.addoption("--update-golden", action="store_true", help="Write the files of tests/golden, then compare.")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """(file, text): fails where the file holds another text; with --update-golden it is written first."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("update_golden"):
            path.write_text(text, encoding="utf-8")
        assert text.splitlines() == (path.read_text(encoding="utf-8") if path.exists() else "").splitlines()

    return compare


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache folder for each test: what one test keeps decides on no other."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Folder with public traces of other projects, beside the checkout; they are not part of the repository."""
    return _beside_checkout("traces")


@pytest.fixture(scope="session")
def shared_ascend() -> Path:
    """Folder with public measurements of Ascend devices, beside the checkout."""
    return _beside_checkout("ascend")


def _beside_checkout(name: str) -> Path:
    folder = ROOT.parent / "shared" / name
    if not folder.is_dir():
        pytest.skip(f"no {folder}: public data that does not ship with the repository")
    return folder


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where torch finds no CUDA device."""
    if item.get_closest_marker("gpu") and not _cuda_is_available():
        pytest.skip("no CUDA device on this machine")


@functools.cache
def _cuda_is_available() -> bool:
    import torch  # late: most tests need no torch, and importing it takes seconds

    return torch.cuda.is_available()


def pytest_collection_finish() -> None:
    """Tile programs that test modules import are costs of their ops from then on: tests begin without any."""
    if "opreplay.replay.ascend.custom.programs" in sys.modules:
        sys.modules["opreplay.replay.ascend.custom.programs"].PROGRAMS.clear()
