"""Calls are recorded as they run where nobody watches, though torch's C++ takes another way under a dispatch mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.capture_models import calls_compared
from opreplay.replay.capture.capture import capture_made, check_made
from opreplay.replay.ir.captured import CaptureOptions
from opreplay.replay.ir.model import ReplayPlan

pytestmark = pytest.mark.slow

INDEX = torch.tensor([3, 0, 3, 1])


def values() -> Tensor:
    return torch.arange(48.0).reshape(6, 8).div(48).requires_grad_()


def backward(result: Tensor) -> Tensor:
    result.sum().backward()
    return result


def attended(x: Tensor) -> Tensor:
    heads = x.reshape(1, 2, 3, 8)
    return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=torch.zeros(3, 3, requires_grad=True))


def written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = y[:, 1] * 2
    return backward(y * y[:, :1])


def clipped(x: Tensor) -> Tensor:
    backward(x.exp())
    return torch.nn.utils.clip_grad_norm_([x], 1.0)


def recomputed(x: Tensor) -> Tensor:
    return backward(checkpoint(lambda y: (y.detach() * y).exp(), x, use_reentrant=False))


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        normed = nn.BatchNorm1d(3)(F.linear(x, torch.ones(3, 8)))
    return backward(normed.float())


def set_from_lists(x: Tensor) -> Tensor:
    y = x.detach().clone()
    y[0, 0], y[[1, 2]] = 3, 2.0
    return y[[0, 2]] + torch.as_tensor([1.0] * 8) + torch.tensor(1.0)


def told(x: Tensor) -> Tensor:
    message = f"{x.sum()}"
    return x * bool(message)


def two_branches(x: Tensor) -> Tensor:
    """Their gradients are one tensor, which a third one is added to while another node waits for it."""
    y, weights = x.exp(), [torch.eye(8).requires_grad_() for _ in range(2)]
    parts = [F.linear(F.layer_norm(y, (8,)), weight) for weight in weights]
    return backward((parts[0] + parts[1] + y).square())


def normed_across(x: Tensor) -> Tensor:
    return backward(F.batch_norm(x.view(2, 3, 8).mT, None, None, training=True).relu())


def known_places(x: Tensor) -> Tensor:
    """Sizes that follow from values which no input decides."""
    counts = torch.tensor([1, 2])
    far = torch.arange(6) > counts.max()
    rows = x.detach()[far][: counts.tolist()[1]]
    return rows + torch.tensor([count.sum() for count in torch.repeat_interleave(counts, counts)])[:1]


STEPS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "reshape": (lambda x: x[:, :4].reshape(6, 2, 2), "aten::_reshape_alias"),
    "flatten": (lambda x: x.view(2, 3, 8)[:, :2].transpose(1, 2).transpose(1, 2).flatten(0, 0), "aten::slice"),
    "flatten of a part": (lambda x: x.view(6, 2, 4)[:, :, :2].unsqueeze(1).flatten(0, 1), "aten::_reshape_alias"),
    "reshape that copies": (lambda x: x.t().reshape(-1), "aten::clone"),
    "linear of three dimensions": (
        lambda x: F.linear(x.view(2, 3, 8).transpose(0, 1), torch.ones(5, 8), torch.ones(5)),
        "aten::add_",
    ),
    "attention with a mask": (attended, "aten::add_"),
    "one_hot": (lambda x: x[:4, :5] + F.one_hot(INDEX, 5), "aten::scatter_"),
    "index": (lambda x: backward(x[INDEX]), "aten::_index_put_impl_"),
    "gather": (lambda x: backward(x.gather(0, INDEX.view(1, 4))), "aten::scatter_add_"),
    "index_select": (lambda x: backward(x.index_select(0, INDEX)), "aten::index_add_"),
    "largest of each row": (lambda x: backward(x.max(1).values), "aten::scatter_"),
    "largest two": (lambda x: backward(x.topk(2).values), "aten::scatter_"),
    "mean of what is scattered": (
        lambda x: backward(x.scatter_reduce(0, INDEX.view(1, 4), torch.ones(1, 4), "mean")),
        "aten::scatter_add",
    ),
    "numbers of Python": (lambda x: x[:2, 0] * torch.tensor([0.5, 2.0]), "aten::detach_"),
    "numbers that stay attached": (set_from_lists, "aten::lift_fresh"),
    "a value in a message": (told, "aten::_local_scalar_dense"),
    "branches that share a gradient": (two_branches, "aten::add"),
    "batch norm of columns": (normed_across, "aten::native_batch_norm_backward"),
    "known places": (known_places, "aten::repeat_interleave"),
    "a dimension of one element": (lambda x: x.view(1, 6, 8).mT.view(1, 8, 2, 3).relu(), "aten::relu"),
    "gradient of a norm": (
        lambda x: backward(F.layer_norm(x, (8,)).t().reshape(4, 12)),
        "aten::native_layer_norm_backward",
    ),
    "written to a part": (written, "aten::as_strided"),
    "gradients clipped": (clipped, "aten::_foreach_norm"),
    "recomputed": (recomputed, "aten::exp"),
    "batch norm of 16 bits": (under_autocast, "aten::native_batch_norm_backward"),
    "cross entropy": (lambda x: backward(F.binary_cross_entropy_with_logits(x, torch.zeros(6, 8))), "aten::sub_"),
}


def names(plan: ReplayPlan) -> set[str]:
    return {op.name for op in plan.ops}


@pytest.mark.parametrize("name", STEPS)
def test_a_captured_call_is_the_profiled_one(name: str) -> None:
    function, expected = STEPS[name]

    def make() -> Any:
        return function, (values(),)

    plan = capture_made(make, source=name)
    assert expected in names(plan)
    found = calls_compared(plan, make)
    assert (found.equal, found.missing, found.added) == (found.profiled, (), ())
    assert check_made(make, plan).equal


def test_what_a_user_writes_stays() -> None:
    class Scattered(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            zeros = torch.zeros_like(gradient)
            return zeros.scatter(0, INDEX.view(1, 4), 1.0) + zeros

    plan = capture_made(lambda: (lambda x: backward(Scattered.apply(x)), (values(),)), source="own")  # type: ignore[arg-type]
    assert "aten::scatter" in names(plan)


def test_inference_mode_is_taken_apart() -> None:
    def step(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return F.linear(x.reshape(2, 3, 8), torch.ones(5, 8), torch.ones(5))

    plan = capture_made(lambda: (step, (torch.ones(6, 8),)), source="inference")
    assert "aten::addmm" in names(plan)
    assert not names(plan) & {"aten::linear", "aten::reshape"}


def test_distributed_tensors_take_their_own_way() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    def make() -> Any:
        mesh = init_device_mesh("cpu", (2,))
        return parallelize_module(nn.Linear(8, 4), mesh, ColwiseParallel()), (torch.ones(3, 2, 8).transpose(0, 1),)

    plan = capture_made(make, source="sharded", options=CaptureOptions(world_size=2))
    assert "aten::add" in names(plan)  # as of a DTensor without a mode


def test_nothing_stays_behind() -> None:
    capture_made(lambda: (lambda x: x[:, :4].reshape(6, 2, 2), (values(),)), source="here")
    with torch.profiler.profile() as found:
        values()[:, :4].reshape(6, 2, 2)
    assert "aten::_reshape_alias" in {event.name for event in found.events() or ()}
    assert torch.library.get_kernel("aten::reshape", "AutogradCPU")
