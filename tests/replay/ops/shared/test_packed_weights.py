"""Products with packed weights, and grouped GEMMs, against weights that are unpacked by plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from opreplay.replay.ops.maths.packed_weights import kind_of

Call = Callable[..., Any]
U4B8, U8B128, FE4M3, FE2M1, U4 = (
    4 << 8 | 8 << 17,
    8 << 8 | 128 << 17,
    4 | 3 << 8 | 1 << 16,
    2 | 1 << 8 | 1 << 16,
    4 << 8,
)
K, N, GROUP = 64, 128, 32
A = torch.randn(5, K)


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Unsigned numbers [.., n] into int32 words, lowest bits first."""
    out = torch.zeros((*numbers.shape[:-1], numbers.shape[-1] * bits // 32), dtype=torch.int64)
    for i in range(32 // bits):
        out |= numbers[..., i :: 32 // bits].to(torch.int64) << (i * bits)
    return torch.where(out >= 1 << 31, out - (1 << 32), out).to(torch.int32)


def spread(scale: Tensor, rows: int = K) -> Tensor:
    return scale.double().repeat_interleave(rows // scale.shape[0], 0)


def marlin(numbers: Tensor, bits: int) -> Tensor:
    return pack(numbers.reshape(-1), bits).reshape(numbers.shape[-2] // 16, -1)


NUMBERS = {4: torch.randint(0, 16, (K, N)), 8: torch.randint(0, 256, (K, N))}
SCALES = torch.rand(K // GROUP, N) + 0.5
REST = {"workspace": torch.zeros(8, dtype=torch.int32), "size_m": 5, "size_n": N, "size_k": K}
NEW = {
    "c_or_none": None,
    "b_bias_or_none": None,
    "a_scales": None,
    "global_scale": None,
    "b_zeros_or_none": None,
    "g_idx_or_none": None,
    "perm_or_none": None,
    "is_k_full": True,
    "use_atomic_add": False,
    "use_fp32_reduce": True,
    "is_zp_float": False,
}


@pytest.mark.parametrize(("bits", "kind"), [(4, U4B8), (8, U8B128)])
@pytest.mark.parametrize("name", ["_C::marlin_gemm", "_C::gptq_marlin_gemm"])
def test_marlin_of_integers(call: Call, close: Call, name: str, bits: int, kind: int) -> None:
    weight = (NUMBERS[bits].double() - (1 << (bits - 1))) * spread(SCALES)
    bias = torch.randn(N)
    given = NEW | {"b_bias_or_none": bias}
    found = call(name, a=A, b_q_weight=marlin(NUMBERS[bits], bits), b_scales=SCALES, b_type_id=kind, **REST, **given)
    close(found, A.double() @ weight + bias, 100)


def test_marlin_with_zero_points_and_a_kind_of_float(call: Call, close: Call) -> None:
    zeros = torch.randint(0, 16, (K // GROUP, N))
    given = NEW | {"b_zeros_or_none": pack(zeros, 4)}
    found = call(
        "_C::marlin_gemm", a=A, b_q_weight=marlin(NUMBERS[4], 4), b_scales=SCALES, b_type_id=U4, **REST, **given
    )
    close(found, A.double() @ ((NUMBERS[4].double() - spread(zeros)) * spread(SCALES)), 100)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat((table, -table))[NUMBERS[4]].double()
    found = call(
        "_C::marlin_gemm",
        a=A,
        b_q_weight=marlin(NUMBERS[4], 4),
        b_scales=SCALES,
        b_type_id=FE2M1,
        **REST,
        **NEW | {"global_scale": torch.tensor([2.0])},
    )
    close(found, 2 * A.double() @ (values * spread(SCALES)), 100)
    assert kind_of(FE4M3) == (4, 3, True, 0)


def test_older_names_of_marlin(call: Call, close: Call) -> None:
    weight = (NUMBERS[8].double() - 128) * spread(SCALES)
    common = {"a": A, "b_q_weight": marlin(NUMBERS[8], 8), "b_scales": SCALES}
    close(call("_C::fp8_marlin_gemm", **common, num_bits=8, **REST), A.double() @ weight, 100)
    old = {key: value for key, value in NEW.items() if key.startswith(("is_", "use_"))}
    empty = torch.empty(0)
    found = call(
        "_C::gptq_marlin_gemm",
        "since_20250307",
        **common,
        b_zeros=empty,
        g_idx=empty,
        perm=empty,
        b_q_type=U8B128,
        has_zp=False,
        **REST,
        **old,
    )
    close(found, A.double() @ weight, 100)
    found = call(
        "sgl_kernel::gptq_marlin_gemm",
        **common,
        c_or_none=None,
        global_scale_or_none=None,
        b_zeros_or_none=None,
        g_idx_or_none=None,
        perm_or_none=None,
        b_q_type_id=U8B128,
        **REST,
        **old,
    )
    close(found, A.double() @ weight, 100)
    common = {"input": A, "weight": marlin(NUMBERS[8], 8), "weight_scale": SCALES, "workspace": REST["workspace"]}
    more = {
        "weight_zp": empty,
        "g_idx": empty,
        "g_idx_sort_indices": empty,
        "output_size_per_partition": N,
        "input_size_per_partition": K,
        "use_atomic_add": False,
        "use_fp32_reduce": True,
        "is_zp_float": False,
    }
    close(call("sglang::unified_apply_gptq_marlin_gemm", **common, **more), A.double() @ weight, 100)
    close(
        call("sglang::unified_apply_gptq_marlin_gemm_with_wtype", **common, **more, wtype_id=U8B128, is_k_full=True),
        A.double() @ weight,
        100,
    )
    floats = torch.randn(K, N).to(torch.float8_e4m3fn)
    given = common | {"weight": floats.view(torch.int32), "size_n": N, "size_k": K, "bias": None}
    close(call("sglang::apply_fp8_marlin_linear", **given), A.double() @ (floats.double() * spread(SCALES)), 100)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    given = given | {"weight": marlin(NUMBERS[4], 4), "weight_global_scale": torch.tensor([2.0])}
    values = torch.cat((table, -table))[NUMBERS[4]].double()
    close(call("sglang::apply_fp4_marlin_linear", **given), 2 * A.double() @ (values * spread(SCALES)), 100)


def test_qqq_and_allspark(call: Call, close: Call) -> None:
    a = torch.randint(-5, 5, (5, K), dtype=torch.int8)
    tokens, channels = torch.rand(5, 1), torch.rand(1, N)
    found = call(
        "_C::marlin_qqq_gemm",
        a=a,
        b_q_weight=marlin(NUMBERS[4], 4),
        s_tok=tokens * 0.01,
        s_ch=channels,
        s_group=torch.empty(0),
        **REST,
    )
    close(found, a.double() @ (NUMBERS[4].double() - 8) * tokens.double() * 0.01 * channels.double())
    scale = torch.rand(N)
    found = call(
        "_C::allspark_w8a16_gemm",
        a=A,
        b_qweight=NUMBERS[8].to(torch.uint8),
        b_scales=scale,
        b_qzeros=None,
        n=N,
        group_size=-1,
        sm_count=1,
        sm_version=80,
        CUBLAS_M_THRESHOLD=1,
        has_zp=False,
        n32k16_reorder=True,
    )
    close(found, A.double() @ ((NUMBERS[8].double() - 128) * scale.double()), 100)


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq(call: Call, close: Call, bits: int) -> None:
    zeros = torch.randint(0, 1 << (bits - 1), (K // GROUP, N))
    packed = pack(NUMBERS[bits].t(), bits).t().contiguous()
    given = {
        "a": A,
        "b_q_weight": packed,
        "b_gptq_qzeros": pack(zeros, bits),
        "b_gptq_scales": SCALES,
        "b_g_idx": torch.empty(0, dtype=torch.int32),
        "bit": bits,
    }
    wanted = A.double() @ ((NUMBERS[bits].double() - spread(zeros)) * spread(SCALES))
    close(call("_C::gptq_gemm", **given, use_exllama=True, use_v2_format=True), wanted, 200)
    older = wanted - A.double() @ spread(SCALES)
    close(call("_C::gptq_gemm", "since_20240911", **given, use_exllama=False), older, 200)
    close(call("sgl_kernel::gptq_gemm", **given, use_shuffle=False), older, 200)
    order = torch.randperm(K).to(torch.int32)
    for name in ("_C::gptq_shuffle", "sgl_kernel::gptq_shuffle"):
        shuffled = packed.clone()
        call(name, q_weight=shuffled, q_perm=order, bit=bits)
        assert torch.equal(shuffled, pack(NUMBERS[bits][order.long()].t(), bits).t())


def test_repacking_moves_the_words(call: Call) -> None:
    words = pack(NUMBERS[4].t(), 4).t().contiguous()
    sizes = {"size_k": K, "size_n": N, "num_bits": 4}
    found = [
        call("_C::gptq_marlin_repack", b_q_weight=words, perm=torch.empty(0), is_a_8bit=False, **sizes),
        call("_C::awq_marlin_repack", b_q_weight=words, is_a_8bit=False, **sizes),
        call("sgl_kernel::gptq_marlin_repack", b_q_weight=words, perm=torch.empty(0), **sizes),
        call("sgl_kernel::awq_marlin_repack", b_q_weight=words, **sizes),
    ]
    for repacked in found:
        assert repacked.shape == (K // 16, N * 2)
        assert torch.equal(repacked.flatten().sort().values, words.flatten().sort().values)
    prepacked = call("_C::machete_prepack_B", B=words, a_type=torch.float16, b_type=U4B8, group_scales_type=None)
    assert torch.equal(prepacked, words)
    assert prepacked.stride() == (1, K // 8)


def test_machete(call: Call, close: Call) -> None:
    words = pack(NUMBERS[4].reshape(-1), 4).reshape(K // 8, N)
    zeros, channel, token = torch.randn(K // GROUP, N), torch.rand(N), torch.rand(5)
    found = call(
        "_C::machete_mm",
        A=A,
        B=words,
        b_type=U4B8,
        out_type=None,
        group_scales=SCALES,
        group_zeros=zeros,
        group_size=GROUP,
        channel_scales=channel,
        token_scales=token,
        schedule=None,
    )
    weight = (NUMBERS[4].double() - 8) * spread(SCALES) + spread(zeros)
    close(found, A.double() @ weight * channel.double() * token.double().unsqueeze(1), 200)


EXPERTS, TOPK, TOKENS = 3, 2, 4
IDS = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2]])
ROUTING = torch.rand(TOKENS, TOPK)


def aligned(call: Call, block: int = 4) -> dict[str, Tensor]:
    sorted_ids = torch.zeros(TOKENS * TOPK + EXPERTS * (block - 1), dtype=torch.int32)
    owners, total = torch.zeros(5, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    call(
        "_moe_C::moe_align_block_size",
        topk_ids=IDS,
        num_experts=EXPERTS,
        block_size=block,
        sorted_token_ids=sorted_ids,
        experts_ids=owners,
        num_tokens_post_pad=total,
        maybe_expert_map=None,
    )
    return {"sorted_token_ids": sorted_ids, "expert_ids": owners, "total": total}


def test_experts_with_packed_weights(call: Call, close: Call) -> None:
    x = torch.randn(TOKENS, K)
    numbers = torch.randint(0, 16, (EXPERTS, K, N))
    scales = torch.rand(EXPERTS, K // GROUP, N)
    weights = (numbers.double() - 8) * scales.double().repeat_interleave(GROUP, 1)
    lists = aligned(call)
    wanted = torch.stack(
        [(x[t].double() @ weights[IDS[t, s]]) * ROUTING[t, s].double() for t in range(TOKENS) for s in range(TOPK)]
    )
    packed = torch.stack([marlin(numbers[e], 4) for e in range(EXPERTS)])
    common = {
        "a": x,
        "c_or_none": None,
        "b_q_weight": packed,
        "b_bias_or_none": None,
        "b_scales": scales,
        "global_scale": None,
        "b_zeros_or_none": None,
        "g_idx_or_none": None,
        "perm_or_none": None,
        "workspace": torch.zeros(1, dtype=torch.int32),
        "sorted_token_ids": lists["sorted_token_ids"],
        "expert_ids": lists["expert_ids"],
        "num_tokens_past_padded": lists["total"],
        "topk_weights": ROUTING,
        "moe_block_size": 4,
        "top_k": TOPK,
        "mul_topk_weights": True,
        "size_m": TOKENS,
        "size_n": N,
        "size_k": K,
        "use_atomic_add": False,
        "use_fp32_reduce": True,
        "is_zp_float": False,
    }
    found = call(
        "_moe_C::moe_wna16_marlin_gemm",
        a_scales=None,
        global_scale=None,
        b_type_id=U4B8,
        is_full_k=True,
        thread_k=1,
        thread_n=1,
        blocks_per_sm=1,
        **{key: value for key, value in common.items() if key != "global_scale"},
    )
    close(found, wanted, 200)
    found = call(
        "sgl_kernel::moe_wna16_marlin_gemm",
        b_q_type_id=U4B8,
        is_ep=False,
        is_k_full=True,
        **{("global_scale_or_none" if key == "global_scale" else key): v for key, v in common.items()},
    )
    close(found, wanted, 200)
    rows = numbers.transpose(1, 2).to(torch.uint8)
    out = torch.empty(TOKENS, TOPK, N)
    found = call(
        "_moe_C::moe_wna16_gemm",
        input=x,
        output=out,
        b_qweight=rows[..., ::2] | rows[..., 1::2] << 4,
        b_scales=scales.transpose(1, 2).contiguous(),
        b_qzeros=None,
        topk_weights=ROUTING,
        sorted_token_ids=lists["sorted_token_ids"],
        expert_ids=lists["expert_ids"],
        num_tokens_post_pad=lists["total"],
        top_k=TOPK,
        BLOCK_SIZE_M=4,
        BLOCK_SIZE_N=1,
        BLOCK_SIZE_K=1,
        bit=4,
    )
    close(out.flatten(0, 1), wanted, 200)
    assert torch.equal(found, out)


@pytest.mark.parametrize("name", ["vllm::fused_marlin_moe", "sglang::fused_marlin_moe"])
def test_both_layers_of_packed_experts(call: Call, close: Call, name: str) -> None:
    x, inner = torch.randn(TOKENS, K), 32
    first, second = torch.randint(0, 256, (EXPERTS, K, 2 * inner)), torch.randint(0, 256, (EXPERTS, inner, K))
    s1, s2 = torch.rand(EXPERTS, 1, 2 * inner) * 0.01, torch.rand(EXPERTS, 1, K) * 0.01
    w1, w2 = ((n.double() - 128) * s.double() for n, s in ((first, s1), (second, s2)))
    wanted = torch.zeros(TOKENS, K, dtype=torch.float64)
    for t in range(TOKENS):
        for s in range(TOPK):
            gate, up = (x[t].double() @ w1[IDS[t, s]]).chunk(2)
            wanted[t] += ROUTING[t, s].double() * ((torch.nn.functional.silu(gate) * up) @ w2[IDS[t, s]])
    given = {"bias1": None, "bias2": None, "quant_type_id": U8B128} if name.startswith("vllm") else {}
    found = call(
        name,
        hidden_states=x,
        w1=torch.stack([marlin(e, 8) for e in first]),
        w2=torch.stack([marlin(e, 8) for e in second]),
        w1_scale=s1,
        w2_scale=s2,
        gating_output=torch.randn(TOKENS, EXPERTS),
        topk_weights=ROUTING,
        topk_ids=IDS,
        **given,
    )
    close(found, wanted, 100)


def test_grouped_gemms(call: Call, close: Call) -> None:
    fp8 = torch.float8_e4m3fn
    a, b = torch.randn(6, 256).to(fp8), torch.randn(EXPERTS, 128, 256).to(fp8)
    offsets = torch.tensor([0, 2, 2], dtype=torch.int32)
    sizes = torch.tensor([[2, 128, 256], [0, 128, 256], [4, 128, 256]], dtype=torch.int32)
    owner = torch.tensor([0, 0, 2, 2, 2, 2])
    stride = torch.zeros(EXPERTS, dtype=torch.int64)
    by_row, by_column = torch.rand(6, 1), torch.rand(EXPERTS, 128, 1)
    wanted = torch.stack(
        [
            (b[e].double() * by_column[e].double()) @ (a[i].double() * by_row[i].double())
            for i, e in enumerate(owner.tolist())
        ]
    )
    out = torch.zeros(6, 128)
    call(
        "_C::cutlass_moe_mm",
        out_tensors=out,
        a_tensors=a,
        b_tensors=b,
        a_scales=by_row,
        b_scales=by_column,
        expert_offsets=offsets,
        problem_sizes=sizes,
        a_strides=stride,
        b_strides=stride,
        c_strides=stride,
        per_act_token=True,
        per_out_ch=True,
    )
    close(out, wanted, 100)
    blocks_a, blocks_b = torch.rand(6, 2), torch.rand(EXPERTS, 2, 1)
    spread_b = blocks_b.double().transpose(1, 2).repeat_interleave(128, 2)
    wanted = torch.stack(
        [
            (b[e].double() * spread_b[e]) @ (a[i].double() * blocks_a[i].double().repeat_interleave(128))
            for i, e in enumerate(owner.tolist())
        ]
    )
    common = {
        "output": out,
        "a": a,
        "b": b.transpose(1, 2),
        "scales_a": blocks_a,
        "scales_b": blocks_b,
        "problem_sizes": sizes,
        "expert_offsets": offsets,
    }
    call("_C::cutlass_blockwise_scaled_grouped_mm", **common)
    close(out, wanted, 100)
    spare = dict.fromkeys(
        (
            "a_ptrs",
            "b_ptrs",
            "out_ptrs",
            "a_scales_ptrs",
            "b_scales_ptrs",
            "stride_a",
            "stride_b",
            "stride_c",
            "layout_sfa",
            "layout_sfb",
            "workspace",
        ),
        stride,
    )
    out.zero_()
    call("sgl_kernel::fp8_blockwise_scaled_grouped_mm", **common, **spare)
    close(out, wanted, 100)
