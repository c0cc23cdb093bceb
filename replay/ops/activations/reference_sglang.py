# pyright: strict
"""SGLang's `sgl_kernel` activations."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.activations import gated, gelu_quick, gelu_tanh


def _declare_gated(name: str, activation: Callable[[Tensor], Tensor]) -> None:
    def write_out(out: Tensor, input: Tensor) -> None:
        out.copy_(gated(input, activation))

    stands_for(f"sgl_kernel::{name}")(write_out)


for _name, _activation in {"silu_and_mul": F.silu, "gelu_and_mul": F.gelu, "gelu_tanh_and_mul": gelu_tanh}.items():
    _declare_gated(_name, _activation)


@stands_for("sgl_kernel::gelu_quick")
def gelu_quick_out(out: Tensor, input: Tensor) -> None:
    """x · sigmoid(1.702 x)."""
    out.copy_(gelu_quick(input))
