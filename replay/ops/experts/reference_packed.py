"""Experts' matrix products over sorted tokens: packed weights (Marlin, WNA16) and 8-bit grouped GEMMs (CUTLASS).

Sorted ids are vLLM's: flat positions t · k + slot, filled up with T · k. Packed layouts as `packed_weights` reads them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.activations import gate_by_name
from opreplay.replay.ops.maths.experts import by_expert, expert_scale
from opreplay.replay.ops.maths.packed_weights import decodable_kind, grouped_linear_packed, unpack
from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.quantize import scaled_linear


def runs(sorted_ids: Tensor, expert_ids: Tensor, total: Tensor, block: int, filler: int) -> list[tuple[int, Tensor]]:
    """(expert, flat ids) of each block that has ids below `filler`; blocks of expert −1 are left out.

    Raises ValueError when `total` says more ids than there are.
    """
    valid = int(total.flatten()[0])
    if not 0 <= valid <= sorted_ids.numel():
        raise ValueError(f"{valid} padded ids, but there are {sorted_ids.numel()} sorted ids")
    slots_by_expert: list[tuple[int, Tensor]] = []
    for number, expert in enumerate(expert_ids[: -(-valid // block)].tolist()):
        ids = sorted_ids[number * block : min((number + 1) * block, valid)].to(torch.int64)
        ids = ids[ids < filler]
        if expert < 0 or not ids.numel():
            continue
        if slots_by_expert and slots_by_expert[-1][0] == expert:
            slots_by_expert[-1] = (expert, torch.cat((slots_by_expert[-1][1], ids)))
        else:
            slots_by_expert.append((expert, ids))
    return slots_by_expert


def _of(table: Tensor | None, expert: int) -> Tensor | None:
    return None if table is None or not table.numel() else table[expert]


def _fake_marlin(a: Tensor, c_or_none: Tensor | None, size_m: int, size_n: int, top_k: int) -> Tensor:
    return a.new_empty((size_m * top_k, size_n), dtype=a.dtype if a.dtype.itemsize > 1 else torch.bfloat16)


@stands_for(
    "_moe_C::moe_wna16_marlin_gemm", "sgl_kernel::moe_wna16_marlin_gemm", writes=("c_or_none",), fake=_fake_marlin
)
def moe_wna16_marlin_gemm(
    a: Tensor,
    c_or_none: Tensor | None,
    b_q_weight: Tensor,
    b_scales: Tensor,
    sorted_token_ids: Tensor,
    expert_ids: Tensor,
    num_tokens_past_padded: Tensor,
    topk_weights: Tensor,
    moe_block_size: int,
    top_k: int,
    mul_topk_weights: bool,
    size_m: int,
    size_n: int,
    b_zeros_or_none: Tensor | None = None,
    b_bias_or_none: Tensor | None = None,
    global_scale: Tensor | None = None,
    b_type_id: int | None = None,
    b_q_type_id: int | None = None,
) -> Tensor:
    """a [M, K] → [M · top_k, N]: row t · k + slot is a[t] times its expert's weight, and times its routing weight."""
    identifier = b_type_id if b_type_id is not None else b_q_type_id
    kind = decodable_kind(identifier)
    out = a.new_zeros((size_m * top_k, size_n), dtype=a.dtype if a.dtype.itemsize > 1 else torch.bfloat16)
    wide = a.to(out.dtype)
    blocks = runs(sorted_token_ids, expert_ids, num_tokens_past_padded, moe_block_size, size_m * top_k)
    for expert, ids in blocks:
        rows = grouped_linear_packed(
            wide[ids // top_k],
            b_q_weight[expert],
            size_n,
            b_scales[expert],
            _of(b_zeros_or_none, expert),
            kind,
            _of(b_bias_or_none, expert),
            _of(global_scale, expert),
        )
        out[ids] = rows * topk_weights.flatten()[ids].unsqueeze(1).to(rows.dtype) if mul_topk_weights else rows
    if c_or_none is not None:
        c_or_none.reshape(-1)[: out.numel()].copy_(out.flatten())
    return out


@stands_for("_moe_C::moe_wna16_gemm", fake=lambda output: torch.empty_like(output))
def moe_wna16_gemm(
    input: Tensor,
    output: Tensor,
    b_qweight: Tensor,
    b_scales: Tensor,
    b_qzeros: Tensor | None,
    topk_weights: Tensor | None,
    sorted_token_ids: Tensor,
    expert_ids: Tensor,
    num_tokens_post_pad: Tensor,
    top_k: int,
    BLOCK_SIZE_M: int,
    bit: int,
) -> Tensor:
    """input [M, K], uint8 weights [E, N, K · bit / 8] with scales [E, N, K / group] → output [M, top_k, N]."""
    number, size_n = input.shape[0] * top_k, b_qweight.shape[1]
    rows = output.view(-1, size_n)
    rows.zero_()
    for expert, ids in runs(sorted_token_ids, expert_ids, num_tokens_post_pad, BLOCK_SIZE_M, number):
        values = unpack(b_qweight[expert], bit).float()
        group = values.shape[1] // b_scales.shape[-1]
        if b_qzeros is None:
            values -= 1 << (bit - 1)
        else:
            # Zeros are packed along N.
            zeros = unpack(b_qzeros[expert].t(), bit).t()[:size_n].float()
            values -= zeros.repeat_interleave(group, 1)
        weight = (values * b_scales[expert].float().repeat_interleave(group, 1)).to(input.dtype)
        product = linear(input[ids // top_k], weight)
        if topk_weights is not None:
            product = product * topk_weights.flatten()[ids].unsqueeze(1).to(product.dtype)
        rows[ids] = product.to(rows.dtype)
    return output.clone()


def _fake_hidden(hidden_states: Tensor) -> Tensor:
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


@stands_for("vllm::fused_marlin_moe", "sglang::fused_marlin_moe", fake=_fake_hidden)
def fused_marlin_moe(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    w1_scale: Tensor,
    w2_scale: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    w1_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
    w1_zeros: Tensor | None = None,
    w2_zeros: Tensor | None = None,
    global_scale1: Tensor | None = None,
    global_scale2: Tensor | None = None,
    expert_map: Tensor | None = None,
    activation: str | None = None,
    apply_router_weight_on_input: bool = False,
    quant_type_id: int | None = None,
    routed_scaling_factor: float | None = None,
) -> Tensor:
    """hidden_states [T, H] through both packed layers of its experts, w1 [E, H/16, ..], w2 [E, I/16, ..] → [T, H]."""
    kind = decodable_kind(quant_type_id)
    topk = topk_ids.shape[1]
    ids = topk_ids if expert_map is None else expert_map[topk_ids.to(torch.int64)]
    order, starts = by_expert(ids, w1.shape[0])
    gate = gate_by_name(activation or "silu")
    first, second = (bias1 if w1_bias is None else w1_bias), (bias2 if w2_bias is None else w2_bias)
    out = torch.zeros_like(hidden_states, dtype=torch.float32, memory_format=torch.contiguous_format)
    for expert in range(w1.shape[0]):
        flat = order[starts[expert] : starts[expert + 1]]
        if not flat.numel():
            continue
        factor = topk_weights.flatten()[flat].unsqueeze(1).to(hidden_states.dtype)
        rows = hidden_states[flat // topk]
        rows = rows * factor if apply_router_weight_on_input else rows
        inner = gate(
            grouped_linear_packed(
                rows,
                w1[expert],
                w1_scale.shape[-1],
                w1_scale[expert],
                _of(w1_zeros, expert),
                kind,
                _of(first, expert),
                _of(global_scale1, expert),
            )
        )
        result = grouped_linear_packed(
            inner,
            w2[expert],
            hidden_states.shape[1],
            w2_scale[expert],
            _of(w2_zeros, expert),
            kind,
            _of(second, expert),
            _of(global_scale2, expert),
        )
        out.index_add_(0, flat // topk, (result if apply_router_weight_on_input else result * factor).float())
    return (out if routed_scaling_factor is None else out * routed_scaling_factor).to(hidden_states.dtype)


def _bounds(offsets: Tensor, sizes: Tensor, columns: int, rows: int) -> list[tuple[int, int]]:
    """Where each expert's rows start and stop: offsets [E (+ 1)], sizes [E, 3] of m, n, k (or n, m, k).

    Raises ValueError for rows that are not there.
    """
    table = sizes.tolist()
    turned = all(size[0] == columns for size in table) and any(size[1] != columns for size in table)
    starts = offsets.tolist()
    bounds = [(starts[e], starts[e] + size[1 if turned else 0]) for e, size in enumerate(table)]
    if any(start < 0 or stop > rows or stop < start for start, stop in bounds):
        raise ValueError(f"problem sizes and offsets name rows outside [0, {rows}]")
    return bounds


def _scale_for(scales: Tensor, expert: int, experts: int, size_n: int, turned: bool) -> Tensor | None:
    """One expert's scales as `scaled_linear` wants them for a weight [N, K]; by blocks they lie as the weight does."""
    scale = expert_scale(scales, expert, experts)
    if scale is None or scale.numel() == 1:
        return scale
    if scale.numel() == size_n:
        return scale.reshape(-1, 1)
    return scale.t() if turned else scale


@stands_for(
    "_C::cutlass_blockwise_scaled_grouped_mm",
    "sgl_kernel::fp8_blockwise_scaled_grouped_mm",
    "sgl_kernel::es_fp8_blockwise_scaled_grouped_mm",
    writes=("output",),
)
def blockwise_grouped_mm(
    output: Tensor,
    a: Tensor,
    b: Tensor,
    scales_a: Tensor,
    scales_b: Tensor,
    problem_sizes: Tensor,
    expert_offsets: Tensor,
) -> None:
    """output rows of expert e = (scales_a · a) @ (scales_b[e] · b[e]); a scale a row, a block or one for all."""
    size_n, size_k = output.shape[1], a.shape[1]
    turned = b.shape[1:] != (size_n, size_k)
    weights = b.transpose(1, 2) if turned else b
    experts = weights.shape[0]
    by_row = scales_a.numel() > 1
    for expert, (start, stop) in enumerate(_bounds(expert_offsets, problem_sizes, size_n, a.shape[0])):
        if start == stop:
            continue
        scale_a = scales_a.reshape(a.shape[0], -1)[start:stop] if by_row else scales_a
        scale_b = _scale_for(scales_b, expert, experts, size_n, turned)
        output[start:stop] = scaled_linear(a[start:stop], weights[expert], scale_a, scale_b, None, output.dtype)


@stands_for("_C::persistent_masked_m_silu_mul_quant", "_C::silu_mul_fp8_quant_deep_gemm_cuda")
def masked_silu_mul_quant(
    input: Tensor, counts: Tensor, y_q: Tensor, y_s: Tensor, use_ue8m0: bool, group_size: int = 128
) -> None:
    """input [E, T, 2H]: the first counts[e] rows of each expert gated and quantised by groups; others keep theirs."""
    limit = torch.finfo(y_q.dtype).max
    gate, up = input.float().chunk(2, -1)
    value = F.silu(gate) * up
    peak = value.unflatten(-1, (-1, group_size)).abs().amax(-1).clamp(min=1e-10)
    scale = peak / limit
    scale = torch.exp2(torch.ceil(torch.log2(scale))) if use_ue8m0 else scale
    quantized = (value.unflatten(-1, (-1, group_size)) / scale.unsqueeze(-1)).clamp(-limit, limit).flatten(-2)
    real = torch.arange(input.shape[1], device=input.device) < counts.unsqueeze(1)
    stored = torch.where(real.unsqueeze(-1), quantized, y_q.float())
    y_q.copy_(stored)
    y_s.copy_(torch.where(real.unsqueeze(-1), scale, y_s.float()))
