"""Steps that cannot be captured for a reason of torch's own, which has a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import opreplay
from opreplay.traces.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, of jvp

Step = Callable[[torch.Tensor], Any]
WITHOUT_FORMULA: list[tuple[Step, tuple[int, ...], str, str]] = [
    (lambda q: F.scaled_dot_product_attention(q, q, q), (2, 2, 4, 8), "attention", "SDPBackend.MATH"),
    (lambda x: torch.nn.LSTM(4, 4)(x)[0], (3, 2, 4), "mkldnn_rnn_layer", "mkldnn.flags(enabled=False)"),
    (lambda x: torch.cdist(x, x), (3, 4), "_cdist_forward", "leave it out"),
    (
        lambda x: F.grid_sample(x, torch.zeros(1, 4, 4, 2), align_corners=False),
        (1, 3, 8, 8),
        "grid_sampler_2d",
        "leave it out",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "shape", "op", "way"), WITHOUT_FORMULA)
def test_ops_without_a_forward_derivative_are_named(step: Step, shape: tuple[int, ...], op: str, way: str) -> None:
    x, tangent = torch.randn(shape), torch.randn(shape)
    with pytest.raises(UsageError) as raised:
        opreplay.capture(lambda: torch.func.jvp(step, (x,), (tangent,)))
    assert "but torch has none" in str(raised.value)
    assert op in str(raised.value)
    assert way in str(raised.value.hint)
    assert "--real" not in str(raised.value.hint), "it does not run on real tensors either"
    with pytest.raises(NotImplementedError):
        torch.func.jvp(step, (x,), (tangent,))
