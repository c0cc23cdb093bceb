"""Norms before RoPE, quantisation and experts under the names of serving frameworks against plain formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

Call = Callable[..., Any]
FP8 = torch.float8_e4m3fn
T, H, D = 5, 3, 8
POSITIONS = torch.tensor([4, 0, 7, 1, 2])
ANGLES = torch.randn(10, D // 2)
TABLE = torch.cat((ANGLES.cos(), ANGLES.sin()), -1)


def rope(x: Tensor, *, neox: bool = True, positions: Tensor = POSITIONS, angles: Tensor = ANGLES) -> Tensor:
    """[T, H, D] as complex numbers turned by the angle of each position."""
    x = x.double().reshape(positions.numel(), -1, 2 * angles.shape[-1])
    pairs = x.unflatten(-1, (2, -1)).transpose(-1, -2) if neox else x.unflatten(-1, (-1, 2))
    turn = torch.polar(torch.ones(positions.numel(), angles.shape[-1]).double(), angles[positions].double())
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn.unsqueeze(1))
    return (turned.transpose(-1, -2) if neox else turned).flatten(-2)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()


def test_norm_then_rope(call: Call, close: Call) -> None:
    qw, kw = torch.rand(D), torch.rand(D)
    qkv = torch.randn(T, (H + 2) * D)
    q, k, v = qkv.split((H * D, D, D), -1)
    base = 10000.0 ** (-torch.arange(0, D, 2).float() / D)
    angles = torch.arange(10).float().unsqueeze(1) * base
    for name in ("sgl_kernel::fused_qk_norm_rope", "sglang::fused_qk_norm_rope_out"):
        packed = qkv.clone()
        call(
            name,
            qkv=packed,
            num_heads_q=H,
            num_heads_k=1,
            num_heads_v=1,
            head_dim=D,
            eps=1e-6,
            q_weight=qw,
            k_weight=kw,
            base=10000.0,
            is_neox=True,
            position_ids=POSITIONS,
            factor=1.0,
            low=0.0,
            high=0.0,
            attention_factor=1.0,
            rotary_dim=D,
        )
        close(packed[:, : H * D], rope(rms(q.reshape(T, H, D), qw), angles=angles).reshape(T, -1))
        assert torch.equal(packed[:, -D:], v)
    one, two = q.reshape(T, H, D).clone(), k.reshape(T, 1, D).clone()
    call(
        "sglang::fused_inplace_qknorm_rope",
        q=one,
        k=two,
        q_weight=qw,
        k_weight=kw,
        cos_sin_cache=TABLE,
        positions=POSITIONS,
        is_neox=True,
    )
    wanted = rope(rms(q.reshape(T, H, D), qw)), rope(rms(k.reshape(T, 1, D), kw))
    close(one, wanted[0])
    close(two, wanted[1])
    common = {
        "input": qkv,
        "q_weight": qw,
        "k_weight": kw,
        "q_hidden_size": H * D,
        "kv_hidden_size": D,
        "head_dim": D,
        "eps": 1e-6,
    }
    for name in ("qkv_rmsnorm_rope", "qkv_rmsnorm_rope_simt"):
        found = call(f"vllm::{name}", cos_sin_cache=TABLE, positions=POSITIONS, **common)
        close(found[0], wanted[0].reshape(T, -1))
        assert torch.equal(found[2], v)
    full = [t[POSITIONS].repeat(1, 2) for t in (ANGLES.cos(), ANGLES.sin())]
    found = call("vllm::qkv_rmsnorm_rope", "since_20260117", cos=full[0], sin=full[1], **common)
    close(found[1], wanted[1].reshape(T, -1))
    a, b = call(
        "vllm::fused_mla_dual_rms_norm",
        x1=q,
        x1_weight=torch.ones(H * D),
        x2=k,
        x2_weight=kw,
        x1_epsilon=1e-6,
        x2_epsilon=1e-6,
    )
    close(a, rms(q, torch.ones(H * D)))
    close(b, rms(k, kw))
    data, scale, normed = call(
        "vllm::fused_mla_dual_rms_norm_per_token_quant",
        q=q,
        q_weight=torch.ones(H * D),
        kv=k,
        kv_weight=kw,
        q_epsilon=1e-6,
        kv_epsilon=1e-6,
    )
    assert (data.double() * scale.double() - rms(q, torch.ones(H * D))).abs().max() < 0.2
    close(normed, rms(k, kw))


X = torch.randn(4, 256)


def gate(x: Tensor) -> Tensor:
    first, second = x.double().chunk(2, -1)
    return F.silu(first) * second


def near(data: Tensor, scale: Tensor, wanted: Tensor) -> None:
    wide = scale.double().repeat_interleave(data.shape[-1] // scale.shape[-1], -1)
    assert (data.double() * wide - wanted).abs().max() < 0.07 * wanted.abs().max()


def test_activations(call: Call, close: Call) -> None:
    out = torch.empty(4, 128)
    for name in ("sglang::_run_activation_inplace", "sglang::_run_activation_with_rounding_inplace"):
        call(name, op_name="silu", input=X, out=out)
        close(out, gate(X))
    call("sglang::_run_unary_activation_inplace", op_name="relu2", input=X[:, :128], out=out)
    close(out, F.relu(X[:, :128].double()) ** 2)
    call(
        "sglang::_run_activation_filtered_inplace",
        op_name="",
        input=X,
        out=out.zero_(),
        expert_ids=torch.tensor([1, -1]),
        expert_step=2,
    )
    close(out[:2], gate(X)[:2])
    assert not out[2:].any()


def test_quantisation_by_groups(call: Call) -> None:
    data, scale = torch.empty(4, 256).to(FP8), torch.empty(4, 2)
    limits = {"eps": 1e-10, "group_size": 128}
    calls: list[tuple[str, dict[str, Any]]] = [
        (
            "sgl_kernel::sgl_per_token_group_quant_8bit_v2",
            {"fp8_min": -448.0, "fp8_max": 448.0, "scale_ue8m0": False, "fuse_silu_and_mul": False} | limits,
        ),
        ("sglang::per_token_group_quant_8bit_v2", {"min_8bit": -448.0, "max_8bit": 448.0} | limits),
        ("sglang::per_token_group_quant_8bit", {"fp8_min": -448.0, "fp8_max": 448.0} | limits),
        ("sglang::per_token_group_quant", {"group_size": 128}),
    ]
    for name, given in calls:
        call(name, input=X, output_q=data, output_s=scale, **given)
        near(data, scale, X.double())
    half, one = torch.empty(4, 128).to(FP8), torch.empty(4, 1)
    call("sglang::per_token_group_quant", input=X, output_q=half, output_s=one, group_size=128, fuse_silu_and_mul=True)
    near(half, one, gate(X))
    call("_C::silu_and_mul_per_block_quant", out=half, input=X, scales=one, group_size=128)
    near(half, one, gate(X))
    batch, rows = torch.randn(2, 3, 256), torch.tensor([2, 0])
    wide, sizes = torch.zeros(2, 3, 256).to(FP8), torch.zeros(2, 3, 2)
    call("sglang::per_token_group_quant", input=batch, output_q=wide, output_s=sizes, group_size=128, masked_m=rows)
    near(wide[0, :2], sizes[0, :2], batch[0, :2].double())
    assert not wide[1].float().any()
    near(*call("vllm::triton_per_token_group_quant_fp8", x=X, group_size=128), X.double())


def test_quantisation_by_rows_and_whole(call: Call, close: Call) -> None:
    data, row, one = torch.empty(4, 256).to(FP8), torch.empty(4, 1), torch.empty(1)
    call("sglang::per_token_quant_fp8", input=X, output_q=data, output_s=row)
    near(data, row, X.double())
    call("sglang::per_tensor_quant_fp8", input=X, output_q=data, output_s=one)
    near(data, one.expand(4, 1), X.double())
    call("sglang::per_tensor_quant_fp8", input=X, output_q=data, output_s=one.fill_(0.1), is_static=True)
    near(data, one.expand(4, 1), X.double())
    call("sglang::per_tensor_absmax_fp8", input=X, output_s=one)
    close(one, (X.abs().max() / 448).double().reshape(1))
    found = call(
        "vllm::quantize",
        in_tensor=X,
        input_scale=torch.tensor(0.05),
        input_scale_reciprocal=torch.tensor(20.0),
        input_offset=torch.tensor(1.0),
    )
    assert (found.double() - (X.double() / 0.05 + 1)).abs().max() <= 0.51
    close(call("vllm::muls_add", x=X, y=X, scale=3.0), X.double() * 4)
    gamma, beta = torch.rand(256), torch.randn(256)
    close(
        call("sglang::layernorm", input=X, gamma=gamma, beta=beta),
        F.layer_norm(X.double(), (256,), gamma.double(), beta.double(), 1e-6),
    )


def test_hadamard(call: Call, close: Call) -> None:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < 16:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    x = torch.randn(3, 16)
    for name in ("sgl_kernel::fast_hadamard_transform", "sglang::hadamard_transform", "torchao::hadamard_transform"):
        close(call(name, x=x, scale=0.5), x.double() @ matrix / 2)
    target = x.clone()
    close(call("_C::hadacore_transform", x=target, inplace=True), x.double() @ matrix / 4)
    close(target, x.double() @ matrix / 4)


@pytest.mark.parametrize(
    "name",
    [
        "vllm::rocm_aiter_ck_moe",
        "vllm::rocm_aiter_ck_moe_2stages",
        "vllm::rocm_aiter_asm_moe",
        "vllm::rocm_aiter_asm_moe_tkw1",
        "sglang::rocm_aiter_asm_moe_tkw1",
    ],
)
def test_older_entries_of_aiters_experts(call: Call, close: Call, name: str) -> None:
    x, w1, w2 = torch.randn(4, 16), torch.randn(3, 12, 16), torch.randn(3, 16, 6)
    ids, route = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2]]), torch.rand(4, 2)
    wanted = torch.stack(
        [
            sum(
                route[t, s].double() * (gate(x[t].double() @ w1[ids[t, s]].double().t()) @ w2[ids[t, s]].double().t())
                for s in range(2)
            )
            for t in range(4)
        ]
    )
    close(call(name, hidden_states=x, w1=w1, w2=w2, topk_weights=route, topk_ids=ids), wanted, 100)
