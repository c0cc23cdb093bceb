# pyright: strict
"""Ops that compute inputs of grouped GEMMs (offsets, problem sizes, permutations) or move rows accordingly."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.experts.reference_vllm import moe_align_block_size
from opreplay.replay.ops.maths.quantize import largest
from opreplay.replay.ops.maths.routing import align, counts


def _sizes(number: Tensor, target: Tensor, n: int, k: int, swap: bool) -> None:
    """Write (rows, n, k) of each expert; `swap` exchanges rows and n."""
    fixed = torch.tensor([n, k], device=number.device, dtype=target.dtype).expand(number.shape[0], 2)
    rows = number.to(target.dtype).unsqueeze(1)
    parts = (fixed[:, :1], rows, fixed[:, 1:]) if swap else (rows, fixed)
    target.copy_(torch.cat(parts, 1))


def _offsets(number: Tensor, target: Tensor) -> None:
    edges = F.pad(number.cumsum(0), (1, 0))
    target.copy_(edges[: target.numel()])


def _scale_offsets(number: Tensor, target: Tensor | None, multiple: int = 128) -> None:
    if target is not None:
        _offsets((number + multiple - 1) // multiple * multiple, target)


@stands_for(
    "_C::get_cutlass_moe_mm_data",
    "sgl_kernel::prepare_moe_input",
    writes=(
        "expert_offsets",
        "blockscale_offsets",
        "problem_sizes1",
        "problem_sizes2",
        "input_permutation",
        "output_permutation",
    ),
)
def moe_mm_data(c: Call) -> None:
    """Write the data that grouped GEMMs need for topk_ids [T, k].

    These are the experts' offsets, their problem sizes (m, 2n, k) and (m, k, n), the token of each sorted row, and the
    sorted row of each (token, k). Sizes are never swapped here. The real kernels swap them if there are few rows.
    """
    number = counts(c.topk_ids, c.num_experts)
    _sizes(number, c.problem_sizes1, 2 * c.n if getattr(c, "is_gated", True) else c.n, c.k, False)
    _sizes(number, c.problem_sizes2, c.k, c.n, False)
    _offsets(number, c.expert_offsets)
    _scale_offsets(number, getattr(c, "blockscale_offsets", None))
    flat = c.topk_ids.flatten().to(torch.int64)
    known = (flat >= 0) & (flat < c.num_experts)
    order = torch.argsort(torch.where(known, flat, torch.full_like(flat, c.num_experts)), stable=True)
    c.input_permutation.copy_((order // c.topk_ids.shape[1]).reshape(c.input_permutation.shape))
    place = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    c.output_permutation.copy_(place.reshape(c.output_permutation.shape))


@stands_for("sgl_kernel::get_cutlass_w4a8_moe_mm_data")
def w4a8_moe_mm_data(c: Call) -> None:
    """Do the same as moe_mm_data, with sizes (2n, m, k) and (k, m, n).

    The reason is that this kernel multiplies weights by activations.
    """
    both = c.problem_sizes1, c.problem_sizes2
    moe_mm_data(c)
    for sizes in both:
        sizes.copy_(sizes[:, [1, 0, 2]])


@stands_for("_C::get_cutlass_moe_mm_problem_sizes")
def moe_mm_problem_sizes(c: Call) -> None:
    """Write only the problem sizes (m, 2n, k) and (m, k, n) of `moe_mm_data`."""
    force_swap_ab = getattr(c, "force_swap_ab", None)
    number = counts(c.topk_ids, c.num_experts)
    _sizes(number, c.problem_sizes1, 2 * c.n, c.k, bool(force_swap_ab))
    _sizes(number, c.problem_sizes2, c.k, c.n, bool(force_swap_ab))


@stands_for("_C::get_cutlass_moe_mm_problem_sizes_from_expert_offsets")
def problem_sizes_from_offsets(c: Call) -> None:
    """Write the problem sizes (m, 2n, k) and (m, k, n); m follows from offsets [E + 1]."""
    number = c.expert_first_token_offset.diff()
    _sizes(number, c.problem_sizes1, 2 * c.n, c.k, c.swap_ab)
    _sizes(number, c.problem_sizes2, c.k, c.n, c.swap_ab)


@stands_for("_C::get_cutlass_pplx_moe_mm_data", "_C::get_cutlass_batched_moe_mm_data")
def batched_moe_mm_data(c: Call) -> None:
    """Write the sizes and offsets of batched experts.

    Expert e has expert_num_tokens[e] rows, which start at row e · padded_m.
    """
    number = c.expert_num_tokens[: c.num_local_experts].to(torch.int64)
    _sizes(number, c.problem_sizes1, 2 * c.n, c.k, False)
    _sizes(number, c.problem_sizes2, c.k, c.n, False)
    c.expert_offsets.copy_(torch.arange(c.expert_offsets.numel(), device=number.device) * c.padded_m)


@stands_for("_moe_C::shuffle_rows")
def shuffle_rows(input_tensor: Tensor, dst2src_map: Tensor, output_tensor: Tensor) -> None:
    """Set output_tensor[i] = input_tensor[dst2src_map[i]]."""
    output_tensor.copy_(input_tensor[dst2src_map.to(torch.int64)])


@stands_for("sgl_kernel::apply_shuffle_mul_sum", writes=("output",))
def apply_shuffle_mul_sum(input: Tensor, output: Tensor, permutation: Tensor, factors: Tensor | None) -> None:
    """Write to `output` [T, H], for each token, the sum over k of `factors` [T, k] · the rows of `input` that
    `permutation` [T · k] lists.
    """
    tokens = output.shape[0]
    rows = cast("Tensor", input[permutation.flatten().to(torch.int64)].float().unflatten(0, (tokens, -1)))
    if factors is not None:
        rows = rows * factors.float().reshape(tokens, -1, 1)
    output.copy_(rows.sum(1))


@stands_for(
    "aiter::moe_align_block_size", writes=("sorted_token_ids", "experts_ids", "token_nums", "num_tokens_post_pad")
)
def aiter_moe_align_block_size(c: Call) -> None:
    """Do the same as vLLM's moe_align_block_size, and write token_nums.

    token_nums are the numbers of real rows (not padding) per block.
    """
    moe_align_block_size(c)
    length = c.token_nums.numel() * c.block_size
    order, _, _ = align(c.topk_ids, c.num_experts, c.block_size, c.topk_ids.numel(), length)
    c.token_nums.copy_((order.reshape(-1, c.block_size) < c.topk_ids.numel()).sum(1))


_LORA = ("sorted_token_ids", "experts_ids", "num_tokens_post_pad")


@stands_for("_moe_C::moe_lora_align_block_size", writes=(*_LORA, "expert_ids"))
def moe_lora_align_block_size(c: Call) -> None:
    """Apply moe_align_block_size to each adapter's tokens separately. The outputs have one row per adapter."""
    experts_ids = getattr(c, "experts_ids", None)
    owners = experts_ids if experts_ids is not None else getattr(c, "expert_ids", None)
    assert owners is not None
    for lora in range(c.max_loras):
        mine = c.token_lora_mapping == lora
        ids = torch.where(mine.unsqueeze(1), c.topk_ids, torch.full_like(c.topk_ids, -1))
        order, owner, total = align(ids, c.num_experts, c.block_size, c.topk_ids.numel(), c.max_num_tokens_padded)
        row = c.sorted_token_ids.view(-1, c.max_num_tokens_padded)[lora]
        row.copy_(order)
        blocks = F.pad(owner, (0, max(0, c.max_num_m_blocks - owner.numel())), value=-1)[: c.max_num_m_blocks]
        owners.view(-1, c.max_num_m_blocks)[lora].copy_(blocks)
        c.num_tokens_post_pad[lora : lora + 1].copy_(total)


@stands_for("sglang::moe_permute_prepare_out")
def moe_permute_prepare(c: Call) -> None:
    """Compute where each expert starts in the sorted ids, and the sorted position of each source position."""
    edges = torch.searchsorted(
        c.sorted_topk_ids.to(torch.int64).contiguous(), torch.arange(c.num_experts + 1, device=c.sorted_topk_ids.device)
    )
    c.expert_offsets.copy_(edges[: c.expert_offsets.numel()])
    place = torch.arange(c.reorder_ids.numel(), device=c.reorder_ids.device)
    c.src2dst.copy_(torch.empty_like(place).scatter_(0, c.reorder_ids.flatten().to(torch.int64), place))


@stands_for("sgl_kernel::ep_moe_pre_reorder", writes=("gateup_input",))
def ep_moe_pre_reorder(c: Call) -> None:
    """Copy rows of input [T, H], divided by the expert's or the token's scale, to gateup_input.

    Only rows for this rank's experts are copied. `src2dst` gives their places.
    """
    gateup_input = c.gateup_input
    ids = c.topk_ids.reshape(-1, c.topk)
    mine = ((ids >= c.start_expert_id) & (ids <= c.end_expert_id)).flatten()
    place = c.src2dst.flatten().to(torch.int64)[mine]
    token = torch.arange(ids.shape[0], device=ids.device).repeat_interleave(c.topk)[mine]
    rows = c.input.float()[token]
    if c.a1_scales is not None:
        scale = c.a1_scales.float().flatten()
        by_token = getattr(c, "use_per_token_if_dynamic", False) and scale.numel() == c.input.shape[0]
        rows = rows / (
            scale[token] if by_token else scale[(ids.flatten()[mine] - c.start_expert_id).clamp(max=scale.numel() - 1)]
        ).unsqueeze(1)
    if gateup_input.dtype.itemsize == 1:
        limit = largest(gateup_input.dtype)
        rows = rows.clamp(-limit, limit)
        gateup_input.view(torch.uint8)[place] = rows.to(gateup_input.dtype).view(torch.uint8)
    else:
        gateup_input[place] = rows.to(gateup_input.dtype)


@stands_for("sgl_kernel::ep_moe_silu_and_mul", writes=("down_input",))
def ep_moe_silu_and_mul(c: Call) -> None:
    """Write silu(first half) · second half for the rows of this rank's experts, divided by the expert's scale."""
    down_input = c.down_input
    ids = c.reorder_topk_ids.to(torch.int64)
    mine = (ids >= c.start_expert_id) & (ids <= c.end_expert_id)
    gate, up = c.gateup_output.float().chunk(2, -1)
    value = F.silu(gate) * up
    if c.scales is not None:
        value = value / c.scales.float()[(ids - c.start_expert_id).clamp(0, c.scales.numel() - 1)].unsqueeze(1)
    if down_input.dtype.itemsize == 1:
        value = value.clamp(-largest(down_input.dtype), largest(down_input.dtype))
    down_input.copy_(torch.where(mine.unsqueeze(1), value, down_input.float()))


@stands_for("sgl_kernel::ep_moe_post_reorder", writes=("output",))
def ep_moe_post_reorder(c: Call) -> None:
    """Write Σ over k of weight · down_output[src2dst] to output [T, H]. Only this rank's experts are summed."""
    ids = c.topk_ids.reshape(-1, c.topk)
    mine = (ids >= c.start_expert_id) & (ids <= c.end_expert_id)
    place = c.src2dst.reshape(-1, c.topk).to(torch.int64).clamp(0, c.down_output.shape[0] - 1)
    rows = c.down_output[place].float()
    c.output.copy_((rows * c.topk_weights.float().masked_fill(~mine, 0.0).unsqueeze(-1)).sum(1))
