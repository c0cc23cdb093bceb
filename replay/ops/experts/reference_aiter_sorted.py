# pyright: strict
"""aiter's fused experts over sorted lists (`fmoe*`), its routers, RoPE's other forms, and latent attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

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
    """Ids a block, from how many blocks there are for them: a power of two, 32 where it fits."""
    number, blocks = sorted_ids.numel(), max(expert_ids.numel(), 1)
    if -(-number // 32) == blocks:
        return 32
    return max(1, 1 << (max(1, -(-number // blocks)) - 1).bit_length())


def _experts(
    out: Tensor,
    input: Tensor,
    gate: Tensor,
    down: Tensor,
    lists: tuple[Tensor, Tensor, Tensor, Tensor],
    topk: int,
    scales: tuple[Tensor | None, Tensor | None, Tensor | None],
    activation: int,
    gated: bool,
    *,
    weigh_input: bool,
) -> None:
    """out [T, H] += Σ of the chosen experts' two layers: gate [E, I or 2I, H], down [E, H, I]."""
    ids, weights, owners, valid = lists
    hidden = dequantized(input, scales[0], out.dtype)
    act = gate_by_name(ACTIVATIONS[activation]) if gated else {0: F.silu, 1: F.gelu}[activation]
    experts = gate.shape[0]
    tokens = input.shape[0]
    for expert, token, _, place in blocks_by_expert(ids, owners, valid, block_of(ids, owners), tokens, topk):
        first = dequantize(gate[expert], expert_scale(scales[1], expert, experts), out.dtype)
        second = dequantize(down[expert], expert_scale(scales[2], expert, experts), out.dtype)
        factor = weights[place].unsqueeze(1).to(out.dtype)
        rows = hidden[token] * factor if weigh_input else hidden[token]
        result = linear(act(linear(rows, first)), second)
        out.index_add_(0, token, (result if weigh_input else result * factor).to(out.dtype))


@stands_for("aiter::fmoe", writes=("out",))
def fmoe(
    out: Tensor,
    input: Tensor,
    gate: Tensor,
    down: Tensor,
    sorted_token_ids: Tensor,
    sorted_weights: Tensor,
    sorted_expert_ids: Tensor,
    num_valid_ids: Tensor,
    topk: int,
) -> None:
    """Experts without quantisation; gate [E, I, H] alone is activated by GELU, [E, 2I, H] is SwiGLU."""
    lists = (sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids)
    gated = gate.shape[1] == 2 * down.shape[2]
    _experts(out, input, gate, down, lists, topk, (None, None, None), 0 if gated else 1, gated, weigh_input=False)


@stands_for("aiter::fmoe_g1u1", "aiter::fmoe_fp8_blockscale_g1u1", "aiter::fmoe_g1u1_a16", writes=("out",))
def fmoe_g1u1(
    out: Tensor,
    input: Tensor,
    gate: Tensor,
    down: Tensor,
    sorted_token_ids: Tensor,
    sorted_weights: Tensor,
    sorted_expert_ids: Tensor,
    num_valid_ids: Tensor,
    topk: int,
    fc1_scale: Tensor,
    fc2_scale: Tensor,
    activation: int | None = 0,
    input_scale: Tensor | None = None,
) -> None:
    """Quantised experts, gate and up together [E, 2I, H]; smoothing scales are left out."""
    lists = (sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids)
    scales = (_rows_first(input_scale, input), fc1_scale, fc2_scale)
    _experts(out, input, gate, down, lists, topk, scales, activation or 0, True, weigh_input=False)


@stands_for("aiter::fmoe_g1u1_tkw1", writes=("out",))
def fmoe_g1u1_tkw1(
    out: Tensor,
    input: Tensor,
    gate: Tensor,
    down: Tensor,
    sorted_token_ids: Tensor,
    sorted_weights: Tensor,
    sorted_expert_ids: Tensor,
    num_valid_ids: Tensor,
    topk: int,
    input_scale: Tensor,
    fc1_scale: Tensor,
    fc2_scale: Tensor,
    activation: int | None,
) -> None:
    """As fmoe_g1u1, the routing weights multiplied into the first layer's input."""
    lists = (sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids)
    scales = (_rows_first(input_scale, input), fc1_scale, fc2_scale)
    _experts(out, input, gate, down, lists, topk, scales, activation or 0, True, weigh_input=True)


@stands_for("aiter::fmoe_int8_g1u0", "aiter::fmoe_int8_g1u0_a16", writes=("out",))
def fmoe_int8_g1u0(
    out: Tensor,
    input: Tensor,
    gate: Tensor,
    down: Tensor,
    sorted_token_ids: Tensor,
    sorted_weights: Tensor,
    sorted_expert_ids: Tensor,
    num_valid_ids: Tensor,
    topk: int,
    fc1_scale: Tensor,
    fc2_scale: Tensor,
    activation: int | None = 1,
    input_scale: Tensor | None = None,
) -> None:
    """Quantised experts without a gate [E, I, H]."""
    lists = (sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids)
    scales = (_rows_first(input_scale, input), fc1_scale, fc2_scale)
    _experts(out, input, gate, down, lists, topk, scales, activation or 0, False, weigh_input=False)


def _rows_first(scale: Tensor | None, input: Tensor) -> Tensor | None:
    """A scale a row [T, 1], or by blocks [T, H/128]; it may come with the tokens last."""
    if scale is None or scale.numel() == 1 or input.dtype.itemsize > 1:
        return None if input.dtype.itemsize > 1 else scale
    tokens = input.shape[0]
    if scale.dim() == 2 and scale.shape[0] != tokens == scale.shape[1]:
        return scale.t()
    return scale.reshape(scale.numel(), 1)[:tokens] if scale.dim() != 2 else scale[:tokens]


@stands_for("aiter::moe_stage1_g1u1", writes=("out",))
def moe_stage1_g1u1(
    input: Tensor,
    w1: Tensor,
    sorted_token_ids: Tensor,
    sorted_expert_ids: Tensor,
    num_valid_ids: Tensor,
    out: Tensor,
    block_m: int,
    activation: int | None,
    a1_scale: Tensor | None,
    w1_scale: Tensor | None,
    sorted_weights: Tensor | None,
) -> None:
    """As `aiter::ck_moe_stage1`; out [T, k, I]."""
    ck_moe_stage1(
        input,
        w1,
        sorted_token_ids,
        sorted_expert_ids,
        num_valid_ids,
        out,
        out.shape[1],
        w1_scale,
        _rows_first(a1_scale, input),
        block_m,
        sorted_weights,
        activation or 0,
    )


def _like_both(topk_weights: Tensor, topk_ids: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(topk_weights), torch.empty_like(topk_ids)


@stands_for(
    "aiter::moe_fused_gate",
    writes=("topk_weights", "topk_ids"),
    fake=_like_both,
)
def moe_fused_gate(
    input: Tensor,
    bias: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_expert_group: int,
    topk_group: int,
    n_share_experts_fusion: int,
    routed_scaling_factor: float,
) -> tuple[Tensor, Tensor]:
    """DeepSeek-V3's choice, written and returned. Raises ValueError for shared experts behind the routed ones."""
    if n_share_experts_fusion:
        raise ValueError("moe_fused_gate with shared experts is not implemented")
    scores = input.float().sigmoid()
    write_grouped(
        scores, topk_weights, topk_ids, num_expert_group, topk_group, True, routed_scaling_factor, bias.float()
    )
    return topk_weights.clone(), topk_ids.clone()


@stands_for("aiter::topk_softplus", "aiter::topk_gating_fwd", writes=("topk_weights", "topk_indices"))
def topk_gating(
    topk_weights: Tensor,
    topk_indices: Tensor,
    gating_output: Tensor,
    correction_bias: Tensor,
    need_renorm: bool,
    routed_scaling_factor: float,
    score_func: str = "sqrtsoftplus",
) -> None:
    """The k best of a score of each logit (√softplus unless told softmax or sigmoid), a bias for the choice only."""
    logits = gating_output.float()
    scores = {"softmax": lambda: logits.softmax(-1), "sigmoid": logits.sigmoid}.get(
        score_func or "sqrtsoftplus", lambda: F.softplus(logits).sqrt()
    )()
    bias = correction_bias.float() if correction_bias.numel() else None
    weights, ids = choose(scores, topk_weights.shape[-1], renormalize=need_renorm, bias=bias)
    topk_weights.copy_(weights * routed_scaling_factor)
    topk_indices.copy_(ids)
