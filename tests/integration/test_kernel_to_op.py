"""The examples of docs/kernel-to-op.md: the C++ extension is built, and both ops are as their checks say."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from opreplay.replay.session.checking import check

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
REQUIRED = ("schema", "shape inference", "correctness", "dtypes", "gradient", "bad input")


@pytest.fixture
def with_ninja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build folder of the test's own, and the tools that the environment of the tests has."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if shutil.which("ninja") is None or shutil.which("g++") is None:
        pytest.skip("building a C++ extension needs ninja and g++")
    build = tmp_path / "build"
    build.mkdir()
    monkeypatch.setenv("GATE_BUILD", str(build))


def test_the_cpp_op_is_built_and_passes(with_ninja: None, tmp_path: Path) -> None:
    plugin = EXAMPLES / "gate.py"
    found = check(
        "gate::silu_mul", against=f"{plugin}:reference", shapes=["24x40"], plugins=[str(plugin)], points=REQUIRED
    )
    assert not found.failed(REQUIRED), found.failed(REQUIRED)
    assert list((tmp_path / "build").glob("gate*.so"))
    assert {one.verdict for one in found.point("dtypes").cases} >= {"pass", "refused"}
    assert "not implemented for" in found.point("dtypes").of("refused")[0].detail


def test_the_python_op_breaks_where_its_fake_does(tmp_path: Path) -> None:
    text = (EXAMPLES / "scale.py").read_text()
    plugin = tmp_path / "scale.py"
    plugin.write_text(text.replace("dtype=torch.result_type(x, y)", "dtype=torch.float32"))
    found = check("scale::shift", against=f"{plugin}:reference", shapes=["6x8"], plugins=[str(plugin)], points=["fake"])
    (failed,) = found.failed()
    assert "the fake kernel returns torch.float32, the op torch.float64" in failed.cases[0].detail


def test_the_page_shows_what_is_there() -> None:
    page = (EXAMPLES.parent / "kernel-to-op.md").read_text()
    lines = (EXAMPLES / "scale.py").read_text().splitlines()
    assert lines[10].startswith("@torch.library.custom_op")
    for name in ("scale.py", "gate.cpp", "gate.py"):
        assert f"literalinclude}} examples/{name}" in page
    assert "at::Tensor silu_mul" in (EXAMPLES / "gate.cpp").read_text()
    assert "@torch.library.register_fake" in (EXAMPLES / "gate.py").read_text()
