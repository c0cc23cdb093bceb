"""Fixtures that every test may use, and the rule that GPU tests are skipped, with the reason, where there is no GPU."""

from __future__ import annotations

import atexit
import functools
import gc
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.forked_children import forked_children

__all__ = ["forked_children"]

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """--update-golden."""
    parser.addoption("--update-golden", action="store_true", help="Write the files of tests/golden, then compare.")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """(file, text, tolerance=0.0): fails where the file holds another text; with --update-golden it is written first.

    Words that are numbers may differ by `tolerance`, relatively or absolutely.
    """

    def same(word: str, expected: str, tolerance: float) -> bool:
        try:
            return word == expected or math.isclose(float(word), float(expected), rel_tol=tolerance, abs_tol=tolerance)
        except ValueError:
            return False

    def compare(path: Path, text: str, tolerance: float = 0.0) -> None:
        if request.config.getoption("update_golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no {path}: write it with --update-golden"
        expected = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines := text.splitlines()):
            words, known = line.split(), expected[number].split() if number < len(expected) else []
            if tolerance and len(words) == len(known) and all(map(same, words, known, [tolerance] * len(words))):
                lines[number] = expected[number]
        assert lines == expected

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
    """Let tests begin without tile programs of test modules: they are costs of their ops from then on."""
    if "opreplay.replay.ascend.custom.programs" in sys.modules:
        sys.modules["opreplay.replay.ascend.custom.programs"].PROGRAMS.clear()


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> None:
    """Tests find as few objects as in a small process: those of collected tests and of tests before are set aside.

    The garbage collector and `forget_cached_tensors` visit all objects, so more objects make each test slower.
    """
    if "opreplay.replay.capture.record" in sys.modules:
        sys.modules["opreplay.replay.capture.record"].forget_cached_tensors()  # which must have seen what is frozen
        gc.collect()
        gc.freeze()
