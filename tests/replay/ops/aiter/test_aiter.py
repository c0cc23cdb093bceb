"""aiter: norms with quantisation, experts over sorted lists and latent attention against plain formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Call = Callable[..., Any]
FP8 = torch.float8_e4m3fn


X, RES = torch.randn(4, 256), torch.randn(4, 256)
GAMMA, BETA, SMOOTH = torch.rand(256), torch.randn(256), torch.rand(256)


def rms(x: Tensor, gamma: Tensor = GAMMA) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * gamma


def near(data: Tensor, scale: Tensor, wanted: Tensor, tolerance: float = 0.01) -> None:
    """Quantised data times its scale (a row's, or a group's) is what was wanted."""
    times = data.numel() // scale.numel()
    wide = scale.double().reshape(data.shape[0], -1).repeat_interleave(times, 1)
    assert (data.double() * wide - wanted).abs().max() < tolerance * wanted.abs().max()


def test_norms_with_quantisation(call: Call) -> None:
    total = X.double() + RES.double()
    data, scale, kept = torch.empty(4, 256, dtype=torch.int8), torch.empty(4, 1), torch.empty(4, 256)
    ln = F.layer_norm(X.double(), (256,), GAMMA.double(), BETA.double())
    common = {"out": data, "input": X, "xscale": SMOOTH, "yscale": scale, "weight": GAMMA}
    call("aiter::layernorm2d_fwd_with_smoothquant", **common, bias=BETA, epsilon=1e-5)
    near(data, scale, ln * SMOOTH)
    added = {"residual_in": RES, "residual_out": kept}
    for name in ("layernorm2d_fwd_with_add_smoothquant", "layernorm2d_with_add_smoothquant_asm"):
        call(f"aiter::{name}", **common, **added, bias=BETA, epsilon=1e-5)
        near(data, scale, F.layer_norm(total, (256,), GAMMA.double(), BETA.double()) * SMOOTH)
    call("aiter::rmsnorm2d_fwd_with_smoothquant", **common, epsilon=1e-6)
    near(data, scale, rms(X.double()) * SMOOTH)
    call("aiter::rmsnorm2d_fwd_with_add_smoothquant", **common, **added, epsilon=1e-6)
    near(data, scale, rms(total) * SMOOTH)
    call("aiter::smoothquant_fwd", out=data, input=X, x_scale=SMOOTH, y_scale=scale)
    near(data, scale, X.double() * SMOOTH)
    call("aiter::smooth_per_token_scaled_quant", out=data, input=X, scales=scale, smooth_scale=SMOOTH)
    near(data, scale, X.double() * SMOOTH)
    ids, table = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2]]), torch.rand(3, 256)
    wide, sizes = torch.empty(2, 4, 256, dtype=torch.int8), torch.empty(2, 4, 1)
    call("aiter::moe_smoothquant_fwd", out=wide, input=X, x_scale=table, topk_ids=ids, y_scale=sizes)
    near(wide[1], sizes[1], X.double() * table[ids[:, 1]])
    fp8, groups = torch.empty(4, 256).to(FP8), torch.empty(4, 2)
    call(
        "aiter::add_rmsnorm_quant", out=fp8, input=X, **added, scale=groups, weight=GAMMA, epsilon=1e-6, group_size=128
    )
    near(fp8, groups, rms(total), 0.07)
    call("aiter::add_rmsnorm_quant", out=fp8, input=X, **added, scale=scale, weight=GAMMA, epsilon=1e-6)
    near(fp8, scale, rms(total), 0.07)
    call("aiter::dynamic_per_group_scaled_quant", out=fp8, input=X, scales=groups, group_size=128)
    near(fp8, groups, X.double(), 0.07)
    half, one = torch.empty(4, 128).to(FP8), torch.empty(4, 1)
    call("aiter::silu_and_mul_quant", out=half, input=X, scale=one, group_size=128)
    gate, up = X.double().chunk(2, -1)
    near(half, one, F.silu(gate) * up, 0.07)


TOKENS, HIDDEN, INNER, EXPERTS, TOPK = 4, 16, 8, 3, 2
IDS = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2]], dtype=torch.int32)
ROUTE = torch.rand(TOKENS, TOPK)


def sorted_lists(call: Call) -> dict[str, Tensor]:
    length = TOKENS * TOPK + EXPERTS * 32 - TOPK
    found = {
        "sorted_token_ids": torch.empty(length, dtype=torch.int32),
        "sorted_weights": torch.empty(length),
        "sorted_expert_ids": torch.empty(-(-length // 32), dtype=torch.int32),
        "num_valid_ids": torch.empty(2, dtype=torch.int32),
    }
    call(
        "aiter::moe_sorting_fwd",
        topk_ids=IDS,
        topk_weights=ROUTE,
        **found,
        moe_buf=torch.zeros(TOKENS, HIDDEN),
        num_experts=EXPERTS,
        unit_size=32,
    )
    return found


def experts(
    x: Tensor, first: Tensor, second: Tensor, act: Callable[[Tensor], Tensor], *, inside: bool = False
) -> Tensor:
    out = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    for t in range(TOKENS):
        for s in range(TOPK):
            weight, e = ROUTE[t, s].double(), int(IDS[t, s])
            row = x[t].double() * (weight if inside else 1)
            result = act(first[e].double() @ row) @ second[e].double().t()
            out[t] += result if inside else result * weight
    return out


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def test_experts_over_sorted_lists(call: Call, close: Call) -> None:
    x = torch.randn(TOKENS, HIDDEN)
    w1, w2 = torch.randn(EXPERTS, 2 * INNER, HIDDEN), torch.randn(EXPERTS, HIDDEN, INNER)
    lists = sorted_lists(call)
    out = torch.zeros(TOKENS, HIDDEN)
    call("aiter::fmoe", out=out, input=x, gate=w1, down=w2, **lists, topk=TOPK)
    close(out, experts(x, w1, w2, swiglu), 100)
    q1, q2 = w1.to(FP8), w2.to(FP8)
    s1, s2 = torch.rand(EXPERTS, 2 * INNER, 1) + 0.5, torch.rand(EXPERTS, HIDDEN, 1) + 0.5
    qx, sx = x.to(FP8), torch.rand(TOKENS, 1) + 0.5
    common = {"input": qx, "gate": q1, "down": q2, **lists, "topk": TOPK, "fc1_scale": s1, "fc2_scale": s2}
    wide = (qx.double() * sx, q1.double() * s1, q2.double() * s2)
    for name, inside in (
        ("aiter::fmoe_g1u1", False),
        ("aiter::fmoe_fp8_blockscale_g1u1", False),
        ("aiter::fmoe_g1u1_tkw1", True),
    ):
        call(name, out=out.zero_(), input_scale=sx, **common)
        close(out, experts(*wide, swiglu, inside=inside), 200)
    spare = {"fc1_smooth_scale": torch.ones(1), "fc2_smooth_scale": torch.ones(1)}
    call("aiter::fmoe_g1u1_a16", out=out.zero_(), **common | {"input": x}, **spare)
    close(out, experts(x, *wide[1:], swiglu), 200)
    plain = common | {"gate": q1[:, :INNER], "fc1_scale": s1[:, :INNER]}
    call(
        "aiter::fmoe_int8_g1u0", out=out.zero_(), input_scale=sx, **plain, fc2_smooth_scale=torch.ones(1), activation=1
    )
    close(out, experts(wide[0], wide[1][:, :INNER], wide[2], F.gelu), 200)
    call("aiter::fmoe_int8_g1u0_a16", out=out.zero_(), **plain | {"input": x}, **spare, activation=0)
    close(out, experts(x, wide[1][:, :INNER], wide[2], F.silu), 200)
    stage = torch.zeros(TOKENS, TOPK, INNER)
    given = {name: lists[name] for name in ("sorted_token_ids", "sorted_expert_ids", "num_valid_ids")}
    call(
        "aiter::moe_stage1_g1u1",
        input=x,
        w1=w1,
        w2=w2,
        out=stage,
        inter_dim=INNER,
        kernelName=None,
        block_m=32,
        **given,
    )
    close(stage[1, 0], swiglu(x[1].double() @ w1[2].double().t()), 100)
    total = torch.empty(TOKENS, INNER)
    call("aiter::_moe_sum", input=stage, output=total)
    close(total, stage.double().sum(1))


def test_latent_attention(call: Call, close: Call) -> None:
    q, pages = torch.randn(2, 3, 12), torch.randn(9, 1, 1, 12)
    out = torch.empty(2, 3, 8)
    call(
        "vllm::rocm_aiter_mla_decode_fwd",
        q=q,
        kv_buffer=pages,
        o=out,
        qo_indptr=torch.tensor([0, 1, 2]),
        max_seqlen_qo=1,
        kv_indptr=torch.tensor([0, 4, 9]),
        kv_indices=torch.arange(9),
        sm_scale=0.3,
    )
    for i, part in enumerate((slice(0, 4), slice(4, 9))):
        keys = pages[part, 0, 0].double()
        close(out[i], (q[i].double() @ keys.t() * 0.3).softmax(-1) @ keys[:, :8])
