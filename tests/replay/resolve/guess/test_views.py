"""Traces with sizes and types alone: views, conversions, reductions and windows follow from what is read next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.resolve.guess.values import Context
from opreplay.replay.resolve.guess.views import VIEW_RULES
from opreplay.traces.model import TensorMeta
from tests.replay.resolve.guess.test_results import stripped

X, IMAGE = torch.randn(4, 6, 8), torch.randn(2, 3, 224, 224)

CASES: tuple[tuple[str, Callable[[], object], dict[str, Any]], ...] = (
    ("aten::view", lambda: X.view(24, 8) * 2, {"size": (24, 8)}),
    ("aten::permute", lambda: X.permute(2, 0, 1) * 2, {"dims": (2, 0, 1)}),
    ("aten::transpose", lambda: X.transpose(0, 2) * 2, {"dim0": 0, "dim1": 2}),
    ("aten::expand", lambda: X.expand(3, 4, 6, 8) * 2, {"size": (3, 4, 6, 8)}),
    ("aten::unsqueeze", lambda: X.unsqueeze(1) * 2, {"dim": 1}),
    ("aten::squeeze", lambda: X[:, :1].clone().squeeze(1) * 2, {"dim": 1}),
    ("aten::select", lambda: X.select(1, 0) * 2, {"dim": 1}),
    ("aten::slice", lambda: X[:, :, :3] * 2, {"dim": 2, "end": 3}),
    ("aten::narrow", lambda: X.narrow(1, 0, 5) * 2, {"dim": 1, "length": 5}),
    ("aten::to", lambda: X.to(torch.float64), {"dtype": "torch.float64"}),
    ("aten::zeros", lambda: torch.zeros(3, dtype=torch.int64), {"dtype": "torch.int64"}),
    ("aten::sum", lambda: X.sum((0, 2), keepdim=True) * 2, {"dim": (0, 2), "keepdim": True}),
    ("aten::mean", lambda: X.mean(1) * 2, {"dim": (1,), "keepdim": False}),
    ("aten::argmax", lambda: X.argmax(0) + 1, {"dim": 0}),
    ("aten::arange", lambda: torch.arange(7) * 2, {"end": 7}),
    ("aten::cat", lambda: torch.cat([X, X], 2) * 2, {"dim": 2}),
    (
        "aten::conv2d",
        lambda: F.conv2d(IMAGE, torch.randn(8, 3, 1, 1), stride=2).relu(),
        {"stride": (2, 2), "padding": (0, 0)},
    ),
    (
        "aten::conv2d",
        lambda: F.conv2d(IMAGE, torch.randn(8, 3, 11, 11), stride=4, padding=2).relu(),
        {"stride": (4, 4), "padding": (2, 2)},
    ),
    ("aten::max_pool2d", lambda: F.max_pool2d(IMAGE, 3, 3).relu(), {"kernel_size": (3, 3), "stride": (3, 3)}),
)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{name}-{at}" for at, (name, _, _) in enumerate(CASES)])
def test_what_is_made_is_what_is_read_next(case: int, tmp_path: Path) -> None:
    name, step, expected = CASES[case]

    def without_gradients() -> None:
        with torch.no_grad():
            step()

    plan = stripped(without_gradients, tmp_path)
    found = [{arg.name: arg.value for arg in op.args} for op in plan.ops if op.name == name]
    rank = {"dim": 3, "dim0": 3, "dim1": 3}
    ours = [
        {key: one[key] % rank[key] if key in rank and isinstance(one[key], int) else one[key] for key in expected}
        for one in found
        if all(key in one for key in expected)
    ]
    assert expected in ours, found


def test_a_convolution_of_the_first_layer_has_no_gradient_of_its_input(tmp_path: Path) -> None:
    """With what autograd does next: one parameter's gradient without a bias, two with one."""
    first, second = torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.Conv2d(4, 5, 3)
    image = torch.randn(1, 3, 12, 12)
    plan = stripped(lambda: second(first(image)).sum().backward(), tmp_path)
    masks = {
        op.args[2].tensors[0].shape[0]: {arg.name: arg.value for arg in op.args}  # type: ignore[union-attr]
        for op in plan.ops
        if op.name == "aten::convolution_backward"
    }
    assert masks[4]["output_mask"] == (False, True, False)
    assert masks[5]["output_mask"] == (True, True, True)


def test_settings_of_inference_and_distances(tmp_path: Path) -> None:
    """`_cdist`'s p was a dropout's; a model in a trace without gradients was taken to be trained."""
    norm = torch.nn.BatchNorm2d(3).eval()

    def step() -> None:
        with torch.no_grad():
            torch.cdist(torch.randn(5, 3), torch.randn(7, 3))
            F.dropout(norm(torch.randn(2, 3, 4, 4)), 0.1, training=False)
            F.dropout(torch.randn(3, 3), 0.1, training=True)

    found = {}
    for op in stripped(step, tmp_path).ops:
        meta = next((meta for arg in op.args[:1] for meta in arg.tensors), None)
        found[op.name, meta and meta.shape] = {arg.name: arg.value for arg in op.args}
    assert next(args for (name, _), args in found.items() if name == "aten::_cdist_forward")["p"] == 2.0
    assert found["aten::batch_norm", (2, 3, 4, 4)]["training"] is False
    assert found["aten::dropout", (2, 3, 4, 4)]["train"] is False
    assert found["aten::dropout", (3, 3)]["train"] is True


@pytest.mark.parametrize("size", [(4, 6), (6, 4), (3, 4, 6), (4,), (2, 6), (24,), (9, 9)])
def test_a_strided_view_never_reaches_beyond_its_memory(size: tuple[int, ...]) -> None:
    known = Call(
        {
            "self": ReplayArg(name="self", type="Tensor", tensors=(TensorMeta(shape=(4, 6), dtype="float32"),)),
            "size": ReplayArg(name="size", type="int[]", value=size),
        }
    )
    guess = VIEW_RULES["as_strided", "stride"](known, Context())
    assert guess is not None
    torch.empty(4, 6).as_strided(size, guess.value)
