"""Offsets, problem sizes and permutations of grouped GEMMs against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[..., Any]
IDS = torch.tensor([[0, 2], [2, 1], [0, 2]])
EXPERTS, TOPK = 4, 2
COUNTS = [2, 1, 3, 0]


def i32(*shape: int) -> Tensor:
    return torch.full(shape, -7, dtype=torch.int32)


def test_data_of_grouped_gemms(call: Call) -> None:
    for name in (
        "_C::get_cutlass_moe_mm_data",
        "sgl_kernel::prepare_moe_input",
        "sgl_kernel::get_cutlass_w4a8_moe_mm_data",
    ):
        offsets, first, second, source, target = i32(EXPERTS + 1), i32(EXPERTS, 3), i32(EXPERTS, 3), i32(6), i32(6)
        more = {} if "w4a8" in name else {"blockscale_offsets": None}
        more |= {"is_gated": True} if name.startswith("_C") else {}
        call(
            name,
            topk_ids=IDS,
            expert_offsets=offsets,
            problem_sizes1=first,
            problem_sizes2=second,
            input_permutation=source,
            output_permutation=target,
            num_experts=EXPERTS,
            n=8,
            k=16,
            **more,
        )
        assert offsets.tolist() == [0, 2, 3, 6, 6]
        # Weights come first where they are the kernel's left operand.
        assert first.tolist() == [[16, c, 16] if "w4a8" in name else [c, 16, 16] for c in COUNTS]
        assert second.tolist() == [[16, c, 8] if "w4a8" in name else [c, 16, 8] for c in COUNTS]
        assert source.tolist() == [0, 2, 1, 0, 1, 2]
        sorted_ids = IDS.flatten().sort(stable=True).values
        assert sorted_ids[target.long()].tolist() == IDS.flatten().tolist()


def test_problem_sizes_alone(call: Call) -> None:
    first, second = i32(EXPERTS, 3), i32(EXPERTS, 3)
    call(
        "_C::get_cutlass_moe_mm_problem_sizes",
        topk_ids=IDS,
        problem_sizes1=first,
        problem_sizes2=second,
        num_experts=EXPERTS,
        n=8,
        k=16,
        blockscale_offsets=None,
        force_swap_ab=True,
    )
    assert first.tolist() == [[16, c, 16] for c in COUNTS]
    call(
        "_C::get_cutlass_moe_mm_problem_sizes_from_expert_offsets",
        expert_first_token_offset=torch.tensor([0, 2, 3, 6, 6]),
        problem_sizes1=first,
        problem_sizes2=second,
        n=8,
        k=16,
        swap_ab=False,
    )
    assert second.tolist() == [[c, 16, 8] for c in COUNTS]
    for name in ("_C::get_cutlass_pplx_moe_mm_data", "_C::get_cutlass_batched_moe_mm_data"):
        offsets = i32(EXPERTS)
        call(
            name,
            expert_offsets=offsets,
            problem_sizes1=first,
            problem_sizes2=second,
            expert_num_tokens=torch.tensor(COUNTS),
            num_local_experts=EXPERTS,
            padded_m=5,
            n=8,
            k=16,
        )
        assert offsets.tolist() == [0, 5, 10, 15]
        assert first.tolist() == [[c, 16, 16] for c in COUNTS]


def test_rows_are_moved(call: Call, close: Call) -> None:
    x, order = torch.randn(4, 8), torch.tensor([2, 0, 3, 3, 1])
    out = torch.empty(5, 8)
    call("_moe_C::shuffle_rows", input_tensor=x, dst2src_map=order, output_tensor=out)
    assert torch.equal(out, x[order])
    out.zero_()
    call("sgl_kernel::shuffle_rows", input=x, dst2src_map=order, output=out)
    assert torch.equal(out, x[order])
    rows, back, factors = torch.randn(6, 8), torch.randperm(6), torch.rand(3, 2)
    out = torch.empty(3, 8)
    call("sgl_kernel::apply_shuffle_mul_sum", input=rows, output=out, permutation=back, factors=factors)
    close(out, (rows[back].double().reshape(3, 2, 8) * factors.double().unsqueeze(-1)).sum(1))


def test_permuting_with_scratch(call: Call) -> None:
    x = torch.randn(3, 8)
    out, first, inverse, order = torch.empty(6, 8), torch.zeros(EXPERTS + 1, dtype=torch.int64), i32(3, 2), i32(6)
    spare = {
        "sort_workspace": i32(4),
        "permuted_experts_id": i32(6),
        "sorted_row_idx": i32(6),
        "topk_ids_for_sort": i32(6),
    }
    call(
        "_moe_C::moe_permute_with_scratch",
        input=x,
        topk_ids=IDS,
        token_expert_indices=i32(3, 2),
        expert_map=None,
        n_expert=EXPERTS,
        n_local_expert=EXPERTS,
        topk=TOPK,
        permuted_input=out,
        expert_first_token_offset=first,
        inv_permuted_idx=inverse,
        permuted_idx=order,
        **spare,
    )
    assert first.tolist() == [0, 2, 3, 6, 6]
    assert torch.equal(out, x[[0, 2, 1, 0, 1, 2]])


def test_alignment_under_older_names_and_by_adapter(call: Call) -> None:
    def buffers() -> dict[str, Tensor]:
        return {"sorted_token_ids": i32(18), "experts_ids": i32(5), "num_tokens_post_pad": i32(1)}

    common = {"topk_ids": IDS, "num_experts": EXPERTS, "block_size": 4}
    wanted = [0, 4, 6, 6, 3, 6, 6, 6, 1, 2, 5, 6]
    for name in ("_moe_C::sgl_moe_align_block_size", "_C::moe_align_block_size"):
        found = buffers()
        call(name, **common, **found)
        assert found["sorted_token_ids"][:12].tolist() == wanted
        assert found["experts_ids"].tolist() == [0, 1, 2, -1, -1]
        assert found["num_tokens_post_pad"].tolist() == [12]
    found, rows = buffers(), i32(5)
    call("aiter::moe_align_block_size", **common, token_nums=rows, **found)
    assert rows.tolist() == [2, 1, 3, 0, 0]
    sorted_ids, owners, total = i32(2 * 18), i32(2 * 5), i32(2)
    call(
        "_moe_C::moe_lora_align_block_size",
        **common,
        token_lora_mapping=torch.tensor([1, 0, 1]),
        max_loras=2,
        max_num_tokens_padded=18,
        max_num_m_blocks=5,
        sorted_token_ids=sorted_ids,
        experts_ids=owners,
        num_tokens_post_pad=total,
        adapter_enabled=i32(2),
        lora_ids=i32(2),
        maybe_expert_map=None,
    )
    assert total.tolist() == [8, 8]
    assert owners.reshape(2, 5).tolist() == [[1, 2, -1, -1, -1], [0, 2, -1, -1, -1]]
    assert sorted_ids.reshape(2, 18)[1, :8].tolist() == [0, 4, 6, 6, 1, 5, 6, 6]


def test_preparing_a_permutation(call: Call) -> None:
    flat = IDS.flatten()
    ids, order = flat.sort(stable=True)
    offsets, target = i32(EXPERTS + 1), i32(6)
    call(
        "sglang::moe_permute_prepare_out",
        sorted_topk_ids=ids,
        reorder_ids=order,
        expert_offsets=offsets,
        src2dst=target,
        num_experts=EXPERTS,
        use_int64_offset=False,
        is_ep=False,
    )
    assert offsets.tolist() == [0, 2, 3, 6, 6]
    assert torch.equal(ids[target.long()], flat)


def test_expert_parallel_rows(call: Call, close: Call) -> None:
    x, places = torch.randn(3, 8), torch.tensor([0, 3, 4, 2, 1, 5])
    inputs = torch.zeros(6, 8)
    call(
        "sgl_kernel::ep_moe_pre_reorder",
        input=x,
        gateup_input=inputs,
        src2dst=places,
        topk_ids=IDS,
        a1_scales=torch.full((3,), 2.0),
        start_expert_id=0,
        end_expert_id=1,
        topk=TOPK,
        use_per_token_if_dynamic=False,
    )
    wanted = torch.zeros(6, 8)
    for flat, expert in enumerate(IDS.flatten().tolist()):
        if expert <= 1:
            wanted[places[flat]] = x[flat // TOPK] / 2
    assert torch.equal(inputs, wanted)
    gated, ids = torch.randn(6, 8), torch.tensor([0, 0, 1, 2, 2, 2])
    down = torch.zeros(6, 4)
    call(
        "sgl_kernel::ep_moe_silu_and_mul",
        gateup_output=gated,
        down_input=down,
        reorder_topk_ids=ids,
        scales=torch.ones(2),
        start_expert_id=0,
        end_expert_id=1,
    )
    gate, up = gated.double().chunk(2, -1)
    close(down, torch.nn.functional.silu(gate) * up * (ids < 2).unsqueeze(1))
    rows, weights, out = torch.randn(6, 8), torch.rand(3, 2), torch.empty(3, 8)
    call(
        "sgl_kernel::ep_moe_post_reorder",
        down_output=rows,
        output=out,
        src2dst=places,
        topk_ids=IDS,
        topk_weights=weights,
        start_expert_id=0,
        end_expert_id=1,
        topk=TOPK,
    )
    total = torch.zeros(3, 8, dtype=torch.float64)
    for flat, expert in enumerate(IDS.flatten().tolist()):
        if expert <= 1:
            total[flat // TOPK] += weights.flatten()[flat].double() * rows[places[flat]].double()
    close(out, total)
