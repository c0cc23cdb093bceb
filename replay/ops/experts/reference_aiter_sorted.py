# pyright: strict
"""aiter's fused experts over sorted lists (`fmoe*`), its routers, other RoPE ops, and latent attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.experts.reference_aiter import ACTIVATIONS, blocks_by_expert, ck_moe_stage1
from opreplay.replay.ops.experts.reference_vllm import write_grouped
from opreplay.replay.ops.maths.activations import gate_by_name
from opreplay.replay.ops.maths.experts import expert_scale
from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.quantize import dequantize
from opreplay.replay.ops.maths.routing import choose
from opreplay.replay.ops.products.reference_aiter_gemm import dequantized


def block_of(sorted_ids: Tensor, expert_ids: Tensor) -> int:
    """Return the number of ids per block, derived from the number of blocks.

    It is 32 if that matches, otherwise a power of two.
    """
    number, blocks = sorted_ids.numel(), max(expert_ids.numel(), 1)
    if -(-number // 32) == blocks:
        return 32
    return max(1, 1 << (max(1, -(-number // blocks)) - 1).bit_length())


def _experts(
    c: Call,
    activation: int,
    *,
    gated: bool,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
    input_scale: Tensor | None = None,
    weigh_input: bool = False,
) -> None:
    """Add the results of the selected experts' two layers to out [T, H]. gate is [E, I or 2I, H]; down is [E, H, I]."""
    ids, owners, dtype = c.sorted_token_ids, c.sorted_expert_ids, c.out.dtype
    hidden = dequantized(c.input, _rows_first(input_scale, c.input), dtype)
    act = gate_by_name(ACTIVATIONS[activation]) if gated else {0: F.silu, 1: F.gelu}[activation]
    experts, tokens = c.gate.shape[0], c.input.shape[0]
    for expert, token, _, place in blocks_by_expert(
        ids, owners, c.num_valid_ids, block_of(ids, owners), tokens, c.topk
    ):
        first = dequantize(c.gate[expert], expert_scale(scales[0], expert, experts), dtype)
        second = dequantize(c.down[expert], expert_scale(scales[1], expert, experts), dtype)
        factor = c.sorted_weights[place].unsqueeze(1).to(dtype)
        rows = hidden[token] * factor if weigh_input else hidden[token]
        result = linear(act(linear(rows, first)), second)
        c.out.index_add_(0, token, (result if weigh_input else result * factor).to(dtype))


@stands_for("aiter::fmoe", writes=("out",))
def fmoe(c: Call) -> None:
    """Compute unquantised experts.

    A gate of [E, I, H] has no up part and uses GELU. A gate of [E, 2I, H] uses SwiGLU.
    """
    gated = c.gate.shape[1] == 2 * c.down.shape[2]
    _experts(c, 0 if gated else 1, gated=gated)


@stands_for("aiter::fmoe_g1u1", "aiter::fmoe_fp8_blockscale_g1u1", "aiter::fmoe_g1u1_a16", writes=("out",))
def fmoe_g1u1(c: Call) -> None:
    """Compute quantised experts with gate and up in one tensor [E, 2I, H]. Smoothing scales are ignored."""
    activation, scale = getattr(c, "activation", 0), getattr(c, "input_scale", None)
    _experts(c, activation or 0, gated=True, scales=(c.fc1_scale, c.fc2_scale), input_scale=scale)


@stands_for("aiter::fmoe_g1u1_tkw1", writes=("out",))
def fmoe_g1u1_tkw1(c: Call) -> None:
    """Same as fmoe_g1u1, with the routing weights multiplied into the first layer's input."""
    scales = (c.fc1_scale, c.fc2_scale)
    _experts(c, c.activation or 0, gated=True, scales=scales, input_scale=c.input_scale, weigh_input=True)


@stands_for("aiter::fmoe_int8_g1u0", "aiter::fmoe_int8_g1u0_a16", writes=("out",))
def fmoe_int8_g1u0(c: Call) -> None:
    """Compute quantised experts without gating; the first layer's weights are [E, I, H]."""
    activation, scale = getattr(c, "activation", 1), getattr(c, "input_scale", None)
    _experts(c, activation or 0, gated=False, scales=(c.fc1_scale, c.fc2_scale), input_scale=scale)


def _rows_first(scale: Tensor | None, input: Tensor) -> Tensor | None:
    """Return the input scales with the rows first: one per row [T, 1] or per block [T, H/128].

    They may be stored with the tokens last.
    """
    if scale is None or scale.numel() == 1 or input.dtype.itemsize > 1:
        return None if input.dtype.itemsize > 1 else scale
    tokens = input.shape[0]
    if scale.dim() == 2 and scale.shape[0] != tokens == scale.shape[1]:
        return scale.t()
    return scale.reshape(scale.numel(), 1)[:tokens] if scale.dim() != 2 else scale[:tokens]


@stands_for("aiter::moe_stage1_g1u1", writes=("out",))
def moe_stage1_g1u1(c: Call) -> None:
    """Compute stage 1 as `aiter::ck_moe_stage1` does; out is [T, k, I]."""
    ck_moe_stage1(
        with_changes(
            c,
            hidden_states=c.input,
            topk=c.out.shape[1],
            a1_scale=_rows_first(c.a1_scale, c.input),
            activation=c.activation or 0,
        )
    )


def _like_both(topk_weights: Tensor, topk_ids: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(topk_weights), torch.empty_like(topk_ids)


@stands_for("aiter::moe_fused_gate", writes=("topk_weights", "topk_ids"), fake=_like_both)
def moe_fused_gate(c: Call) -> tuple[Tensor, Tensor]:
    """Write and return the result of DeepSeek-V3's router. Raises ValueError for shared experts after the
    routed ones.
    """
    if c.n_share_experts_fusion:
        raise ValueError("moe_fused_gate with shared experts is not implemented")
    scores = c.input.float().sigmoid()
    write_grouped(
        scores,
        c.topk_weights,
        c.topk_ids,
        c.num_expert_group,
        c.topk_group,
        True,
        c.routed_scaling_factor,
        c.bias.float(),
    )
    return c.topk_weights.clone(), c.topk_ids.clone()


@stands_for("aiter::topk_softplus", "aiter::topk_gating_fwd", writes=("topk_weights", "topk_indices"))
def topk_gating(c: Call) -> None:
    """Write the weights and ids of the top-k experts by score.

    The score is √softplus by default, or softmax or sigmoid. A bias affects only the selection.
    """
    logits = c.gating_output.float()
    scores = {"softmax": lambda: logits.softmax(-1), "sigmoid": logits.sigmoid}.get(
        getattr(c, "score_func", "sqrtsoftplus") or "sqrtsoftplus", lambda: F.softplus(logits).sqrt()
    )()
    bias = c.correction_bias.float() if c.correction_bias.numel() else None
    weights, ids = choose(scores, c.topk_weights.shape[-1], renormalize=c.need_renorm, bias=bias)
    c.topk_weights.copy_(weights * c.routed_scaling_factor)
    c.topk_indices.copy_(ids)
