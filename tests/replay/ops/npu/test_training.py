"""torch_npu's gradients of attention against autograd, merging of parts, quantised products and MoE routing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

Call = Callable[..., Any]
B, N, KV, S, D = 2, 4, 2, 6, 8


def attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
    """BNSD in float64 with grouped heads."""
    k, v = (x.repeat_interleave(N // KV, 1) for x in (k, v))
    scores = q @ k.mT * 0.4
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ v


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["BNSD", "BSH", "TND"])
@pytest.mark.parametrize("sparse_mode", [0, 2, 3])
def test_gradients_of_fusion_attention(call: Call, close: Call, layout: str, sparse_mode: int) -> None:
    q, k, v, dy = (torch.randn(B, n, S, D) for n in (N, KV, KV, N))
    hidden = torch.ones(S, S, dtype=torch.bool).triu(1)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    attention(*leaves, hidden).backward(dy.double())

    def laid(x: Tensor) -> Tensor:
        if layout == "BNSD":
            return x
        rows = x.transpose(1, 2)
        return rows.flatten(2).contiguous() if layout == "BSH" else rows.flatten(0, 1).contiguous()

    given: dict[str, Any] = {
        "query": laid(q),
        "key": laid(k),
        "value": laid(v),
        "head_num": N,
        "input_layout": layout,
        "atten_mask": hidden if sparse_mode == 0 else None,
        "sparse_mode": sparse_mode,
    }
    if layout == "TND":
        given |= {"actual_seq_qlen": [S, 2 * S], "actual_seq_kvlen": [S, 2 * S]}
    out, top, total, *_ = call("npu::npu_fusion_attention", scale=0.4, **given)
    saved = {"softmax_max": top, "softmax_sum": total, "attention_in": out, "dy": laid(dy), "scale_value": 0.4}
    for name, overload in (
        ("npu_fusion_attention_grad", "since_20231227"),
        ("npu_fusion_attention_grad", "default"),
        ("npu_flash_attention_grad", "default"),
    ):
        found = call(f"npu::{name}", overload, **given, **saved)
        for one, leaf in zip(found[:3], leaves, strict=True):
            assert leaf.grad is not None
            close(one, laid(leaf.grad), 10)


def test_newer_and_older_names_of_fusion_attention(call: Call, close: Call) -> None:
    q, k, v = (torch.randn(B, N, S, D) for _ in range(3))
    given = {"query": q, "key": k, "value": v, "head_num": N, "input_layout": "BNSD", "scale": 0.4}
    wanted = (q.double() @ k.double().mT * 0.4).softmax(-1) @ v.double()
    for name in ("npu::npu_fusion_attention_v2", "npu::npu_flash_attention"):
        close(call(name, **given)[0], wanted)
    with pytest.raises(ValueError, match="query_rope"):
        call("npu::npu_fusion_attention_v2", **given, query_rope=q)


def test_parts_of_an_attention_are_merged(call: Call, close: Call) -> None:
    q, k, v = torch.randn(N, S, D), torch.randn(N, 10, D), torch.randn(N, 10, D)
    scores = q.double() @ k.double().mT
    whole = scores.softmax(-1) @ v.double()
    outs, sums, stats = [], [], []
    for part in (slice(0, 3), slice(3, 10)):
        own = scores[..., part]
        outs.append((own.softmax(-1) @ v[:, part].double()).float())
        sums.append(own.logsumexp(-1).float())
        top = own.amax(-1)
        stats.append((top.float(), torch.exp(own - top.unsqueeze(-1)).sum(-1).float()))
    merged, total = call(
        "npu::npu_attention_update",
        lse=[s.flatten() for s in sums],
        local_out=[o.reshape(-1, D) for o in outs],
        update_type=1,
    )
    close(merged, whole.reshape(-1, D))
    close(total, scores.logsumexp(-1).flatten())

    def sbh(x: Tensor) -> Tensor:
        return x.permute(1, 0, 2).reshape(S, 1, N * D)

    eight = [tuple(s.reshape(1, N, S, 1).expand(-1, -1, -1, 8).contiguous() for s in pair) for pair in stats]
    out, top, total = call(
        "npu::npu_ring_attention_update",
        prev_attn_out=sbh(outs[0]),
        prev_softmax_max=eight[0][0],
        prev_softmax_sum=eight[0][1],
        cur_attn_out=sbh(outs[1]),
        cur_softmax_max=eight[1][0],
        cur_softmax_sum=eight[1][1],
        input_layout="SBH",
    )
    close(out, sbh(whole))
    close(top + total.log(), scores.logsumexp(-1).reshape(1, N, S, 1).expand(-1, -1, -1, 8))


X = torch.randn(6, 16)
Q = torch.randint(-100, 100, (6, 16), dtype=torch.int8)


def test_weights_that_are_dequantised(call: Call, close: Call) -> None:
    weight = torch.randint(-8, 8, (16, 24))
    scale, offset = torch.rand(2, 24), torch.randn(2, 24)
    spread = [t.double().repeat_interleave(8, 0) for t in (scale, offset)]
    wanted = X.double() @ ((weight + spread[1]) * spread[0])
    given = {"x": X, "antiquant_scale": scale, "antiquant_offset": offset, "antiquant_group_size": 8}
    close(call("npu::npu_weight_quant_batchmatmul", weight=weight.to(torch.int8), **given), wanted, 20)
    packed = call("npu::npu_convert_weight_to_int4pack", weight=weight.to(torch.int32))
    assert packed.shape == (16, 3)
    close(call("npu::npu_weight_quant_batchmatmul", weight=packed, **given), wanted, 20)
    found = call("npu::npu_anti_quant", x=Q, scale=torch.rand(16), offset=None, dst_dtype=15)
    assert found.dtype == torch.bfloat16


@pytest.mark.parametrize("ns", ["npu", "_C_ascend"])
def test_dequantise_gate_quantise(call: Call, ns: str) -> None:
    sums, scale, row = torch.randint(-999, 999, (6, 16), dtype=torch.int32), torch.rand(2, 16) / 99, torch.rand(6)
    found, sizes = call(
        f"{ns}::npu_dequant_swiglu_quant",
        x=sums,
        weight_scale=scale,
        activation_scale=row,
        group_index=torch.tensor([2, 4]),
        activate_left=True,
        quant_mode=1,
    )
    values = sums.double() * scale.double()[[0, 0, 1, 1, 1, 1]] * row.double().unsqueeze(1)
    left, right = values.chunk(2, -1)
    wanted = F.silu(left) * right
    assert (found.double() * sizes.double().unsqueeze(1) - wanted).abs().max() < 0.02 * wanted.abs().max()
    if ns == "npu":
        left, right = X.double().chunk(2, -1)
        found, sizes = call("npu::npu_swiglu_quant", x=X, quant_mode=1)
        wanted = left * F.silu(right)
        assert (found.double() * sizes.double().unsqueeze(1) - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_grouped_products(call: Call, close: Call) -> None:
    weight, scale, row = torch.randint(-99, 99, (3, 16, 8), dtype=torch.int8), torch.rand(3, 8), torch.rand(6)
    owner = torch.tensor([0, 0, 2, 2, 2, 2])
    ends, counts = torch.tensor([2, 2, 6]), torch.tensor([2, 0, 4])
    product = torch.stack([Q[i].double() @ weight[e].double() * scale[e] * row[i] for i, e in enumerate(owner)])
    left, right = product.chunk(2, -1)
    wanted = F.silu(left) * right
    given = {"x": Q, "x_scale": row}
    found = [
        call("npu::npu_grouped_matmul_swiglu_quant", weight=weight, weight_scale=scale, group_list=ends, **given)[:2],
        call("_C_ascend::grouped_matmul_swiglu_quant", weight=weight, weight_scale=scale, group_list=ends, **given)[:2],
        call(
            "npu::npu_grouped_matmul_swiglu_quant_v2",
            weight=[weight],
            weight_scale=[scale],
            group_list=counts,
            group_list_type=1,
            **given,
        ),
    ]
    for data, sizes in found:
        assert (data.double() * sizes.double().unsqueeze(1) - wanted).abs().max() < 0.02 * wanted.abs().max()
    floats = torch.randn(3, 16, 8)
    rows = torch.stack([X[i].double() @ floats[e].double() for i, e in enumerate(owner)])
    out = call(
        "_C_ascend::moe_grouped_matmul",
        x=X,
        weight=floats,
        group_list=counts,
        split_item=2,
        group_type=0,
        group_list_type=1,
    )
    close(out[0], rows)
    grads, base = torch.randn(6, 8), torch.randn(3, 16, 8)
    added = base.double()
    for i, e in enumerate(owner.tolist()):
        added[e] += torch.outer(X[i].double(), grads[i].double())
    close(call("npu::npu_grouped_matmul_add", self=base, x=X, weight=grads, group_list=ends), added)
    close(call("npu::npu_grouped_matmul_add_", self=base, x=X, weight=grads, group_list=ends), added)


def test_feed_forward(call: Call, close: Call) -> None:
    w1, w2, b1 = torch.randn(16, 12), torch.randn(6, 16), torch.randn(12)
    found = call("npu::npu_ffn", x=X, weight1=w1, weight2=w2, activation="swiglu", bias1=b1)
    left, right = (X.double() @ w1.double() + b1).chunk(2, -1)
    close(found, (F.silu(left) * right) @ w2.double(), 10)
    w1, w2 = torch.randn(2, 16, 5), torch.randn(2, 5, 3)
    found = call("npu::npu_ffn", x=X, weight1=w1, weight2=w2, activation="relu", expert_tokens=[2, 4])
    wanted = torch.cat(
        [
            F.relu(X[:2].double() @ w1[0].double()) @ w2[0].double(),
            F.relu(X[2:].double() @ w1[1].double()) @ w2[1].double(),
        ]
    )
    close(found, wanted, 10)


def test_gatings(call: Call, close: Call) -> None:
    given = {
        "x": X,
        "k": 2,
        "k_group": 1,
        "group_count": 1,
        "group_select_mode": 0,
        "renorm": 0,
        "norm_type": 1,
        "out_flag": True,
        "routed_scaling_factor": 2.5,
        "eps": 1e-20,
    }
    weights, ids, scores = call("_C_ascend::moe_gating_top_k", **given, bias_opt=None)
    share = X.double().sigmoid().topk(2)
    close(weights, 2.5 * share.values / share.values.sum(-1, keepdim=True))
    assert ids.tolist() == share.indices.tolist()
    close(scores, X.double().sigmoid())
    weights, _, softmax = call("npu::npu_moe_gating_top_k_softmax_v2", x=X, k=3, renorm=1, output_softmax=True)
    close(weights, X.double().topk(3).values.softmax(-1))
    close(softmax, X.double().softmax(-1))
    assert call("npu::npu_moe_gating_top_k_softmax_v2", x=X, k=3)[2].numel() == 0
