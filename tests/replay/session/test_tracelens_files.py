"""Test files written for TraceLens run with only their imports changed.

TraceLens's own file of pull request 607, test_event_replay.py, is read where it lies beside the checkout; PROGRAM has
tests of the same shape, so that the imports are changed and the tests run everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.forked_children import python_module

SEEDS = Path(__file__).parents[3].parent / "shared" / "seeds"
THEIR_TESTS = 11
IMPORT = re.compile(r"^(\s*from\s+)TraceLens(\.\w+)*(\s+import\b)", re.MULTILINE)

PROGRAM = """
import copy

import pytest
import torch

from TraceLens.EventReplay.custom_inits import CustomInit
from TraceLens.EventReplay.event_replay import EventReplayer
from TraceLens.EventReplay.utils import TensorCfg, benchmark_func

ADD = {
    "name": "aten::addmm",
    "args": {
        "Input Dims": [[3], [5, 7], [7, 3], [], []],
        "Input type": ["float", "float", "float", "Scalar", "Scalar"],
        "Input Strides": [[1], [7, 1], [3, 1], [], []],
        "Concrete Inputs": ["", "", "", "1", "1"],
    },
}


class Constant(CustomInit):
    op_patterns = ["aten::addmm"]
    number = 2.0

    def initialize(self, replayer, **kwargs):
        for tensor in replayer.args[:3]:
            tensor.fill_(kwargs.get("number", self.number))


class Other(Constant):
    number = 3.0


class Near(Constant):
    op_patterns = ["addmm", "aten::addm", "aten::addmm_"]


@pytest.fixture(autouse=True)
def registry():
    saved = EventReplayer._custom_init_registry
    EventReplayer._custom_init_registry = []
    yield
    EventReplayer._custom_init_registry = saved


def test_lazy_with_auto_init():
    EventReplayer.register_custom_init(Constant())
    replayer = EventReplayer(ADD, device="cpu", lazy=True, auto_init=True)
    assert torch.equal(replayer.replay(), torch.full((5, 3), 2.0 + 7 * 4))
    assert torch.equal(replayer.args[1], torch.full((5, 7), 2.0))


def test_repro_info_leaves_the_ir_alone():
    replayer = EventReplayer(ADD, device="cpu", lazy=True)
    before = copy.deepcopy(replayer.event_replay_IR)
    assert replayer.get_repro_info() == replayer.get_repro_info()
    tensors = [a["value"] for a in replayer.event_replay_IR["list_pos_args"] if a["arg_type"].startswith("Tensor")]
    assert all(isinstance(tensor, TensorCfg) for tensor in tensors) and len(tensors) == 3
    assert replayer.event_replay_IR == before


def test_first_match():
    EventReplayer._custom_init_registry = [Near(), Other(), Constant()]
    assert EventReplayer(ADD, device="cpu").replay()[0, 0] == 3 + 7 * 9
    EventReplayer._custom_init_registry.reverse()
    assert EventReplayer(ADD, device="cpu").replay()[0, 0] == 2 + 7 * 4


def test_options_and_no_auto_init():
    EventReplayer.register_custom_init(Constant)
    assert EventReplayer(ADD, device="cpu", init_kwargs={"number": 1.0}).replay()[0, 0] == 8
    assert EventReplayer(ADD, device="cpu", auto_init=False).replay().std() > 0
    assert [patterns for _, patterns in EventReplayer.list_custom_inits()] == [["aten::addmm"]]


def test_benchmark():
    replayer = EventReplayer(ADD, device="cpu")
    assert benchmark_func(replayer.replay, "cpu", warmup=1, avg_steps=3)["mean_us"] > 0
"""


def run_with_changed_imports(source: str, folder: Path) -> dict[str, int]:
    """Run a file of tests with opreplay in place of TraceLens; return how many passed, failed, ..."""
    file = folder / "test_event_replay.py"
    file.write_text(IMPORT.sub(r"\1opreplay.tracelens\3", source), encoding="utf-8")
    given = ("-q", "-p", "no:cacheprovider", "-p", "no:opreplay", file.name)
    done = python_module("pytest", *given, cwd=folder, timeout=300)
    counts = re.findall(r"(\d+) (passed|failed|errors?|skipped)", done.stdout.strip().rpartition("\n")[2])
    return {kind: int(count) for count, kind in counts} or {done.stdout + done.stderr: 1}


@pytest.mark.slow
def test_tests_written_for_tracelens_pass(tmp_path: Path) -> None:
    assert run_with_changed_imports(PROGRAM, tmp_path) == {"passed": 5}


@pytest.mark.slow
def test_a_failing_test_is_seen(tmp_path: Path) -> None:
    broken = PROGRAM.replace("2.0 + 7 * 4", "2.0")
    assert run_with_changed_imports(broken, tmp_path) == {"passed": 4, "failed": 1}


def test_tracelens_own_tests_pass(tmp_path: Path) -> None:
    files = sorted(SEEDS.rglob("test_event_replay.py")) if SEEDS.is_dir() else []
    if not files:
        pytest.skip("TraceLens's test_event_replay.py is not beside the checkout, in ../shared/seeds")
    assert run_with_changed_imports(files[0].read_text(encoding="utf-8"), tmp_path) == {"passed": THEIR_TESTS}
