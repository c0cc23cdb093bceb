# pyright: strict
"""FLOPs of calls from torch's counter, with formulas for ops that it does not count or counts incorrectly.

torch 2.13 has three errors. It counts complex numbers as real numbers, and the weight gradient of a grouped convolution
once per group. It mistakes tokens for heads in `_flash_attention_forward` and `_efficient_attention_forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from opreplay.traces.times import flops


def _product(first: Tensor, second: Tensor, *_: Any, **__: Any) -> int:
    pairs = 2 if first.dtype is getattr(torch, "float4_e2m1fn_x2", None) else 1
    return pairs * flops.product_flops(first.shape, second.shape)


def _added_product(_added: Tensor, first: Tensor, second: Tensor, *_: Any, **__: Any) -> int:
    return flops.product_flops(first.shape, second.shape)


def _bilinear(first: Tensor, second: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    return flops.bilinear_flops(first.shape, weight.shape, second.shape)


def _trilinear(
    first: Tensor, second: Tensor, third: Tensor, *dims: Sequence[int], out_val: Any = None, **_: Any
) -> int:
    return flops.trilinear_flops((first.shape, second.shape, third.shape), dims[:3], dims[3])


def _times_rows(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of x [M, K] times the transpose of weight [N, K]."""
    return 2 * x.numel() * weight.shape[0]


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of attention over all pairs of queries and keys. Masked pairs count too, as torch counts on a
    GPU.
    """
    return flops.attention_flops(query.shape, key.shape, value.shape)


def _attention_backward(_grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return flops.attention_backward_flops(query.shape, key.shape, value.shape)


def _heads_last(formula: Callable[..., int], torchs: Callable[..., int], at: int, starts: int) -> Callable[..., int]:
    """Adapt `formula` to tensors [batch, tokens, heads, width].

    Three tensors follow each other from argument number `at`. Argument number `starts` is for sequences of different
    lengths. Calls that pass it use torch's own formula.
    """

    def count(*args: Any, **kwargs: Any) -> int:
        tensors = cast("list[Tensor]", args[at : at + 3])
        if len(tensors) < 3 or (len(args) > starts and args[starts] is not None) or tensors[0].dim() != 4:
            return torchs(*args, **kwargs)
        return formula(*(tensor.transpose(1, 2).shape for tensor in tensors))

    return count


def _convolution(at: int | None) -> Callable[..., int]:
    """Return the formula of a convolution. Argument number `at` says whether it is transposed; with None, it
    never is.
    """

    def count(x: Tensor, weight: Tensor, *rest: Any, out_val: Tensor, **_: Any) -> int:
        transposed = at is not None and bool(rest[at - 2])
        return flops.convolution_flops(x.shape, weight.shape, out_val.shape, transposed=transposed)

    return count


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, **kwargs: Any) -> int:
    transposed: bool = rest[4]
    wanted: Sequence[bool] = rest[7] if len(rest) > 7 else kwargs["output_mask"]
    return flops.convolution_backward_flops(grad.shape, x.shape, weight.shape, transposed=transposed, wanted=wanted)


def _recurrent(x: Tensor, weight: Tensor, hidden_weight: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a recurrent layer, which has two products per time step. x has shape [T, B, I]."""
    return 2 * prod(x.shape[:2]) * (weight.numel() + hidden_weight.numel())


def _recurrent_backward(x: Tensor, weight: Tensor, hidden_weight: Tensor, *_: Any, **__: Any) -> int:
    return 2 * _recurrent(x, weight, hidden_weight)


def _grouped(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of one product per group: x [M, K] or [G, M, K] times weight [G, K, N].

    If the weight has no group dimension, the groups divide other dimensions. For a 3-dimensional x, they divide the
    weight's columns. For a 2-dimensional x, they divide the weight's rows and the columns of x.
    """
    dealt = x.shape[0] if len(x.shape) == 3 and len(weight.shape) == 2 else 1
    return 2 * x.numel() * weight.shape[-1] // dealt


@cache
def formulas() -> dict[Any, Callable[..., int]]:
    """Map each overload packet to its formula, which is called with the op's arguments and `out_val`.

    The formulas are torch's own unless they are replaced here.
    """
    from torch.utils.flop_counter import flop_registry

    aten = torch.ops.aten
    by_op: dict[Any, Any] = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
        aten.convolution: _convolution(6),
        aten._convolution: _convolution(6),
        aten.convolution_overrideable: _convolution(6),
        aten.cudnn_convolution: _convolution(None),
        aten.miopen_convolution: _convolution(None),
        aten.mkldnn_convolution: _convolution(None),
        aten._slow_conv2d_forward: _convolution(None),
        aten.convolution_backward: _convolution_backward,
        aten.bilinear: _bilinear,
        aten._trilinear: _trilinear,
        aten.mv: _product,
        aten.dot: _product,
        aten.vdot: _product,
        aten._int_mm: _product,
        aten._scaled_mm: _product,
        aten.addmv: _added_product,
        aten.addbmm: _added_product,
        aten._addmm_activation: _added_product,
        aten._weight_int8pack_mm: _times_rows,
        aten._flash_attention_forward: _heads_last(
            flops.attention_flops, flop_registry[aten._flash_attention_forward], 0, 3
        ),
        aten._efficient_attention_forward: _heads_last(
            flops.attention_flops, flop_registry[aten._efficient_attention_forward], 0, 4
        ),
        aten._flash_attention_backward: _heads_last(
            flops.attention_backward_flops, flop_registry[aten._flash_attention_backward], 1, 6
        ),
        aten._efficient_attention_backward: _heads_last(
            flops.attention_backward_flops, flop_registry[aten._efficient_attention_backward], 1, 6
        ),
        **{getattr(aten, name): _grouped for name in ("_grouped_mm", "_scaled_grouped_mm") if hasattr(aten, name)},
        aten.mkldnn_rnn_layer: _recurrent,
        aten.mkldnn_rnn_layer_backward: _recurrent_backward,
    }
    for name, formula in (("_scaled_mm_v2", _product), ("_scaled_grouped_mm_v2", _grouped)):
        if hasattr(aten, name):
            by_op[getattr(aten, name)] = formula
    return {op: _counting_complex(formula) for op, formula in {**flop_registry, **by_op}.items()}


def _counting_complex(formula: Callable[..., int]) -> Callable[..., int]:
    """Wrap a formula. If an argument is complex, the result is multiplied by the operations per complex number."""

    def count(*args: Any, **kwargs: Any) -> int:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        return flops.complex_factor(str(tensor.dtype) for tensor in tensors) * formula(*args, **kwargs)

    counting: Any = count
    counting._get_raw = True  # torch's counter: hand over tensors, not their shapes
    return count
