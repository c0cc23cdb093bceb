"""Written calls of custom ops whose fake kernel is missing or wrong: they are measured all the same."""

from collections.abc import Iterator

import pytest
import torch

from opreplay.replay.resolve.written.sweep import RESULTS_UNKNOWN, is_refused, over_sizes, plan_of_calls

NAMESPACE = "custom_ops_as_written"


@torch.library.custom_op(f"{NAMESPACE}::ranks", mutates_args=())
def ranks(scores: torch.Tensor, k: int) -> torch.Tensor:
    return scores.topk(k).indices.clone()


@torch.library.custom_op(f"{NAMESPACE}::wrong_fake", mutates_args=())
def wrong_fake(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@wrong_fake.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("this fake kernel is not done")


@pytest.fixture(scope="module")
def in_cpp_style() -> Iterator[None]:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define("halves(Tensor x) -> Tensor")
    library.impl("halves", lambda x: x[: len(x) // 2].clone(), "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize(
    ("call", "word"),
    [("ranks(f32[16,64], 4)", "no fake kernel"), ("wrong_fake(f32[8])", "not done"), ("halves(f32[8])", "no fake")],
)
def test_an_op_without_a_sound_fake_kernel_is_not_refused(in_cpp_style: None, call: str, word: str) -> None:
    plan, (id_,) = plan_of_calls(over_sizes([f"{NAMESPACE}::{call}"], []))
    (op,) = plan.ops
    assert (op.id, op.reason, op.outputs) == (id_, None, None)
    assert not is_refused(op)
    notes = [note.what for note in op.assumptions if note.what.startswith(RESULTS_UNKNOWN)]
    assert len(notes) == 1
    assert word in notes[0]


def test_a_call_that_torchs_own_check_refuses_is_refused() -> None:
    plan, _ = plan_of_calls(over_sizes(["aten::mm(f32[3,4], f32[5,6])"], []))
    assert is_refused(plan.ops[0])
