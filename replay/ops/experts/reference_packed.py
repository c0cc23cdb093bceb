"""Experts' matrix products over sorted tokens: packed weights (Marlin, WNA16) and 8-bit grouped GEMMs (CUTLASS).

Sorted ids are as in vLLM: flat positions t · k + slot, padded with T · k. Module `packed_weights` reads the packed
layouts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.activations import gate_by_name
from opreplay.replay.ops.maths.experts import by_expert, expert_scale
from opreplay.replay.ops.maths.packed_weights import decodable_kind, grouped_linear_packed, unpack
from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.quantize import scaled_linear


def runs(sorted_ids: Tensor, expert_ids: Tensor, total: Tensor, block: int, filler: int) -> list[tuple[int, Tensor]]:
    """Return (expert, flat ids) of each block that has ids other than padding.

    Padding ids are `filler` or larger. Blocks of expert −1 are skipped. Raises ValueError if `total` is larger than the
    number of ids.
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
def moe_wna16_marlin_gemm(c: Call) -> Tensor:
    """Return [M · top_k, N]: row t · top_k + slot is `a`[t] @ (the slot's expert weight) · (routing weight)."""
    b_type_id = getattr(c, "b_type_id", None)
    identifier = b_type_id if b_type_id is not None else getattr(c, "b_q_type_id", None)
    kind = decodable_kind(identifier)
    out = c.a.new_zeros((c.size_m * c.top_k, c.size_n), dtype=c.a.dtype if c.a.dtype.itemsize > 1 else torch.bfloat16)
    wide = c.a.to(out.dtype)
    blocks = runs(c.sorted_token_ids, c.expert_ids, c.num_tokens_past_padded, c.moe_block_size, c.size_m * c.top_k)
    for expert, ids in blocks:
        rows = grouped_linear_packed(
            wide[ids // c.top_k],
            c.b_q_weight[expert],
            c.size_n,
            c.b_scales[expert],
            _of(getattr(c, "b_zeros_or_none", None), expert),
            kind,
            _of(getattr(c, "b_bias_or_none", None), expert),
            _of(getattr(c, "global_scale", None), expert),
        )
        out[ids] = rows * c.topk_weights.flatten()[ids].unsqueeze(1).to(rows.dtype) if c.mul_topk_weights else rows
    if c.c_or_none is not None:
        c.c_or_none.reshape(-1)[: out.numel()].copy_(out.flatten())
    return out


@stands_for("_moe_C::moe_wna16_gemm", fake=lambda output: torch.empty_like(output))
def moe_wna16_gemm(c: Call) -> Tensor:
    """Return the product [M, top_k, N] of input [M, K] and the experts' packed weights.

    Weights are uint8 [E, N, K · bit / 8] with scales [E, N, K / group].
    """
    number, size_n = c.input.shape[0] * c.top_k, c.b_qweight.shape[1]
    rows = c.output.view(-1, size_n)
    rows.zero_()
    for expert, ids in runs(c.sorted_token_ids, c.expert_ids, c.num_tokens_post_pad, c.BLOCK_SIZE_M, number):
        values = unpack(c.b_qweight[expert], c.bit).float()
        group = values.shape[1] // c.b_scales.shape[-1]
        if c.b_qzeros is None:
            values -= 1 << (c.bit - 1)
        else:
            # Zeros are packed along N.
            zeros = unpack(c.b_qzeros[expert].t(), c.bit).t()[:size_n].float()
            values -= zeros.repeat_interleave(group, 1)
        weight = (values * c.b_scales[expert].float().repeat_interleave(group, 1)).to(c.input.dtype)
        product = linear(c.input[ids // c.top_k], weight)
        if c.topk_weights is not None:
            product = product * c.topk_weights.flatten()[ids].unsqueeze(1).to(product.dtype)
        rows[ids] = product.to(rows.dtype)
    return c.output.clone()


def _fake_hidden(hidden_states: Tensor) -> Tensor:
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


@stands_for("vllm::fused_marlin_moe", "sglang::fused_marlin_moe", fake=_fake_hidden)
def fused_marlin_moe(c: Call) -> Tensor:
    """Apply both layers of experts with packed weights to hidden_states [T, H].

    The result is [T, H]. The weights are w1 [E, H/16, ..] and w2 [E, I/16, ..].
    """
    hidden_states = c.hidden_states
    w1_bias = getattr(c, "w1_bias", None)
    w2_bias = getattr(c, "w2_bias", None)
    expert_map = getattr(c, "expert_map", None)
    apply_router_weight_on_input = getattr(c, "apply_router_weight_on_input", False)
    routed_scaling_factor = getattr(c, "routed_scaling_factor", None)
    kind = decodable_kind(getattr(c, "quant_type_id", None))
    topk = c.topk_ids.shape[1]
    ids = c.topk_ids if expert_map is None else expert_map[c.topk_ids.to(torch.int64)]
    order, starts = by_expert(ids, c.w1.shape[0])
    gate = gate_by_name(getattr(c, "activation", None) or "silu")
    first, second = (
        (getattr(c, "bias1", None) if w1_bias is None else w1_bias),
        (getattr(c, "bias2", None) if w2_bias is None else w2_bias),
    )
    out = torch.zeros_like(hidden_states, dtype=torch.float32, memory_format=torch.contiguous_format)
    for expert in range(c.w1.shape[0]):
        flat = order[starts[expert] : starts[expert + 1]]
        if not flat.numel():
            continue
        factor = c.topk_weights.flatten()[flat].unsqueeze(1).to(hidden_states.dtype)
        rows = hidden_states[flat // topk]
        rows = rows * factor if apply_router_weight_on_input else rows
        inner = gate(
            grouped_linear_packed(
                rows,
                c.w1[expert],
                c.w1_scale.shape[-1],
                c.w1_scale[expert],
                _of(getattr(c, "w1_zeros", None), expert),
                kind,
                _of(first, expert),
                _of(getattr(c, "global_scale1", None), expert),
            )
        )
        result = grouped_linear_packed(
            inner,
            c.w2[expert],
            hidden_states.shape[1],
            c.w2_scale[expert],
            _of(getattr(c, "w2_zeros", None), expert),
            kind,
            _of(second, expert),
            _of(getattr(c, "global_scale2", None), expert),
        )
        out.index_add_(0, flat // topk, (result if apply_router_weight_on_input else result * factor).float())
    return (out if routed_scaling_factor is None else out * routed_scaling_factor).to(hidden_states.dtype)


def _bounds(offsets: Tensor, sizes: Tensor, columns: int, rows: int) -> list[tuple[int, int]]:
    """Return (first row, end of the rows) of each expert.

    offsets is [E] or [E + 1]. sizes [E, 3] holds (m, n, k) or (n, m, k) of each expert. Raises ValueError for rows out
    of range.
    """
    table = sizes.tolist()
    turned = all(size[0] == columns for size in table) and any(size[1] != columns for size in table)
    starts = offsets.tolist()
    bounds = [(starts[e], starts[e] + size[1 if turned else 0]) for e, size in enumerate(table)]
    if any(start < 0 or stop > rows or stop < start for start, stop in bounds):
        raise ValueError(f"problem sizes and offsets name rows outside [0, {rows}]")
    return bounds


def _scale_for(scales: Tensor, expert: int, experts: int, size_n: int, turned: bool) -> Tensor | None:
    """Return one expert's scales as `scaled_linear` needs them for a weight [N, K].

    Block scales are stored in the weight's layout; `turned` means that this is the transpose.
    """
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
def blockwise_grouped_mm(c: Call) -> None:
    """Write (scales_a · a) @ (scales_b[e] · b[e]) to the rows of each expert e. There is one scale per row, per block
    or per tensor.
    """
    size_n, size_k = c.output.shape[1], c.a.shape[1]
    turned = c.b.shape[1:] != (size_n, size_k)
    weights = c.b.transpose(1, 2) if turned else c.b
    experts = weights.shape[0]
    by_row = c.scales_a.numel() > 1
    for expert, (start, stop) in enumerate(_bounds(c.expert_offsets, c.problem_sizes, size_n, c.a.shape[0])):
        if start == stop:
            continue
        scale_a = c.scales_a.reshape(c.a.shape[0], -1)[start:stop] if by_row else c.scales_a
        scale_b = _scale_for(c.scales_b, expert, experts, size_n, turned)
        c.output[start:stop] = scaled_linear(c.a[start:stop], weights[expert], scale_a, scale_b, None, c.output.dtype)


@stands_for("_C::persistent_masked_m_silu_mul_quant", "_C::silu_mul_fp8_quant_deep_gemm_cuda")
def masked_silu_mul_quant(c: Call) -> None:
    """Apply SwiGLU to the first counts[e] rows of each expert e in input [E, T, 2H], and quantise the results by
    groups.

    All other rows of the outputs keep their contents.
    """
    group_size = getattr(c, "group_size", 128)
    limit = torch.finfo(c.y_q.dtype).max
    gate, up = c.input.float().chunk(2, -1)
    value = F.silu(gate) * up
    peak = value.unflatten(-1, (-1, group_size)).abs().amax(-1).clamp(min=1e-10)
    scale = peak / limit
    scale = torch.exp2(torch.ceil(torch.log2(scale))) if c.use_ue8m0 else scale
    quantized = (value.unflatten(-1, (-1, group_size)) / scale.unsqueeze(-1)).clamp(-limit, limit).flatten(-2)
    real = torch.arange(c.input.shape[1], device=c.input.device) < c.counts.unsqueeze(1)
    stored = torch.where(real.unsqueeze(-1), quantized, c.y_q.float())
    c.y_q.copy_(stored)
    c.y_s.copy_(torch.where(real.unsqueeze(-1), scale, c.y_s.float()))
