"""Norms, activations, rotary embedding, quantisation and GEMMs against plain float64 formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Op = Callable[[str], Any]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def close(found: Tensor, wanted: Tensor) -> None:
    tolerance = TOLERANCE.get(found.dtype, 1e-5)
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def norm(x: Tensor, weight: Tensor, epsilon: float = 1e-6, shift: float = 0.0) -> Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * (weight.double() + shift)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "extra", "shift"),
    [
        ("_C::rms_norm", (), 0.0),
        ("aiter::rmsnorm", (), 0.0),
        ("aiter::rms_norm_cu", (), 0.0),
        ("sgl_kernel::rmsnorm", (False,), 0.0),
        ("sgl_kernel::gemma_rmsnorm", (False,), 1.0),
    ],
)
def test_norms_that_write(op: Op, name: str, extra: tuple[Any, ...], shift: float, dtype: torch.dtype) -> None:
    x, weight = torch.randn(6, 32).to(dtype), torch.rand(32).to(dtype)
    out = torch.empty_like(x)
    op(name)(out, x, weight, 1e-6, *extra)
    close(out, norm(x, weight, shift=shift))


@pytest.mark.parametrize("name", ["aiter::rms_norm", "aiter::rmsnorm2d_fwd", "vllm::rocm_aiter_rms_norm"])
def test_norms_that_return(op: Op, name: str) -> None:
    x, weight = torch.randn(6, 40)[:, :32], torch.rand(32)
    close(op(name)(x, weight, 1e-6), norm(x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_with_a_residual(op: Op, dtype: torch.dtype) -> None:
    x, residual, weight = (torch.randn(6, 32).to(dtype), torch.randn(6, 32).to(dtype), torch.rand(32).to(dtype))
    total = x + residual
    wanted = norm(total, weight)
    for name, extra in (("_C::fused_add_rms_norm", ()), ("sgl_kernel::fused_add_rmsnorm", (False,))):
        written, sums = x.clone(), residual.clone()
        op(name)(written, sums, weight, 1e-6, *extra)
        close(written, wanted)
        assert torch.equal(sums, total)
    for name in ("aiter::add_rmsnorm", "aiter::rmsnorm2d_fwd_with_add", "aiter::rmsnorm2d_fwd_with_add_ck"):
        out, sums = torch.empty_like(x), torch.empty_like(x)
        op(name)(out, x, residual, sums, weight, 1e-6)
        close(out, wanted)
        assert torch.equal(sums, total)
    normed, sums = op("vllm::rocm_aiter_rmsnorm2d_fwd_with_add")(x, residual, weight, 1e-6)
    close(normed, wanted)
    normed, rstd, sums = op("npu::npu_add_rms_norm")(x, residual, weight, 1e-6)
    close(normed, wanted)
    close(rstd, (total.double().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt())
    assert torch.equal(sums, total)


def test_npu_rms_norm_backward_is_the_gradient(op: Op) -> None:
    x, weight, dy = torch.randn(3, 4, 16), torch.rand(16), torch.randn(3, 4, 16)
    leaf, gamma = x.double().requires_grad_(), weight.double().requires_grad_()
    (leaf / (leaf.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * gamma).backward(dy.double())
    _, rstd = op("npu::npu_rms_norm")(x, weight, 1e-6)
    dx, dgamma = op("npu::npu_rms_norm_backward")(dy, x, weight, rstd)
    assert leaf.grad is not None
    assert gamma.grad is not None
    close(dx, leaf.grad)
    close(dgamma, gamma.grad)


def test_layer_and_group_norms(op: Op) -> None:
    x, weight, bias = torch.randn(2, 6, 4), torch.rand(4), torch.rand(4)
    centred = x.double() - x.double().mean(-1, keepdim=True)
    wanted = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias
    close(op("aiter::layernorm2d_fwd")(x, weight, bias), wanted)
    grouped = x.double().reshape(2, 3, 8)
    grouped = grouped - grouped.mean(-1, keepdim=True)
    grouped = (grouped / (grouped.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()).reshape(2, 6, 4)
    found = op("aiter::_groupnorm_run")(x, 3, torch.ones(6), torch.zeros(6), 1e-5)
    close(found, grouped)


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("namespace", ["_C", "aiter", "sgl_kernel"])
def test_gated_activations_take_the_first_half_as_gate(op: Op, namespace: str) -> None:
    x = torch.randn(5, 12)
    gate, up = x.double()[:, :6], x.double()[:, 6:]
    wanted = {"silu": gate * sigmoid(gate), "gelu": gelu(gate), "gelu_tanh": gelu_tanh(gate)}
    for name, value in wanted.items():
        out = torch.empty(5, 6)
        op(f"{namespace}::{name}_and_mul")(out, x)
        close(out, value * up)


def test_other_activations(op: Op) -> None:
    x, out, half = torch.randn(5, 12), torch.empty(5, 12), torch.empty(5, 6)
    d = x.double()
    op("_C::mul_and_silu")(half, x)
    close(half, d[:, :6] * d[:, 6:] * sigmoid(d[:, 6:]))
    op("_C::swigluoai_and_mul")(half, x)
    gate, up = d[:, ::2].clamp(max=7), d[:, 1::2].clamp(-7, 7)
    close(half, (up + 1) * gate * sigmoid(1.702 * gate))
    op("_C::fatrelu_and_mul")(half, x, 0.5)
    close(half, torch.where(d[:, :6] > 0.5, d[:, :6], torch.zeros(5, 6).double()) * d[:, 6:])
    for name, wanted in {
        "gelu_new": gelu_tanh(d),
        "gelu_fast": gelu_tanh(d),
        "gelu_quick": d * sigmoid(1.702 * d),
    }.items():
        op(f"_C::{name}")(out, x)
        close(out, wanted)
    close(op("npu::npu_swiglu")(x), d[:, :6] * sigmoid(d[:, :6]) * d[:, 6:])
    leaf, dy = x.clone().requires_grad_(), torch.randn(5, 6)
    (torch.nn.functional.silu(leaf[:, :6]) * leaf[:, 6:]).backward(dy)
    assert leaf.grad is not None
    close(op("npu::npu_swiglu_backward")(dy, x), leaf.grad)


def rotate_complex(x: Tensor, positions: Tensor, angles: Tensor, neox: bool) -> Tensor:
    """x [T, H, D], the first 2·n elements of each head turned as n complex numbers by angles [max, n]."""
    n = angles.shape[1]
    x, turn = x.double(), torch.polar(torch.ones_like(angles), angles)[positions].unsqueeze(1)
    first, second = (x[..., :n], x[..., n : 2 * n]) if neox else (x[..., : 2 * n : 2], x[..., 1 : 2 * n : 2])
    turned = torch.complex(first, second) * turn
    out = x.clone()
    if neox:
        out[..., :n], out[..., n : 2 * n] = turned.real, turned.imag
    else:
        out[..., : 2 * n : 2], out[..., 1 : 2 * n : 2] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rot", [8, 4])
def test_rotary_embeddings(op: Op, neox: bool, rot: int) -> None:
    angles = torch.rand(20, rot // 2).double() * 6
    cache = torch.cat((angles.cos(), angles.sin()), 1).float()
    positions = torch.randint(0, 20, (7,))
    storage = torch.randn(7, 50)
    q, k = storage[:, :32], storage[:, 32:48]  # strided, as vLLM's slices of one projection are
    wanted = [rotate_complex(x.reshape(7, -1, 8), positions, angles, neox) for x in (q, k)]
    for name in ("_C::rotary_embedding", "sgl_kernel::rotary_embedding"):
        fresh = storage.clone()
        op(name)(positions, fresh[:, :32], fresh[:, 32:48], 8, cache, neox)
        close(fresh[:, :32].reshape(7, 4, 8), wanted[0])
        close(fresh[:, 32:48].reshape(7, 2, 8), wanted[1])
        assert torch.equal(fresh[:, 48:], storage[:, 48:])
    back = wanted[0].float().reshape(7, 32)
    op("_C::rotary_embedding")(positions, back, None, 8, cache, neox, 0, True)
    close(back, q)
    turned = torch.empty(7, 4, 8), torch.empty(7, 2, 8)
    op("sgl_kernel::apply_rope_pos_ids_cos_sin_cache")(
        q.reshape(7, 4, 8), k.reshape(7, 2, 8), *turned, cache, positions, not neox, False, None, None, None, None
    )
    for found, value in zip(turned, wanted, strict=True):
        close(found, value)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("front", [True, False])
def test_aiter_and_npu_rope(op: Op, neox: bool, front: bool) -> None:
    angles = torch.rand(20, 4).double() * 6
    x, positions = torch.randn(7, 1, 4, 8), torch.randint(0, 20, (7, 1))
    whole = torch.cat((angles, angles), 1) if neox else angles.repeat_interleave(2, 1)
    table = (angles if front else whole).float().reshape(20, 1, 1, -1)
    out = torch.empty_like(x)
    op("aiter::rope_cached_positions_fwd_impl")(
        out, x, table.cos(), table.sin(), positions, 0 if neox else 1, front, False
    )
    wanted = rotate_complex(x.squeeze(1), positions.squeeze(1), angles, neox)
    close(out.squeeze(1), wanted)
    full = whole.float()[positions.squeeze(1)].reshape(7, 1, 1, 8)
    found = op("npu::npu_rotary_mul")(x, full.cos(), full.sin(), "half" if neox else "interleave")
    close(found.squeeze(1), wanted)


FP8 = torch.float8_e4m3fn


def test_fp8_quantisation(op: Op) -> None:
    x, scale = torch.randn(6, 256) * 3, torch.tensor([0.05])
    out = torch.empty(6, 256, dtype=FP8)
    op("_C::static_scaled_fp8_quant")(out, x, scale)
    assert torch.equal(out.view(torch.uint8), (x / 0.05).clamp(-448, 448).to(FP8).view(torch.uint8))
    found = torch.empty(1)
    op("_C::dynamic_scaled_fp8_quant")(out, x, found)
    close(found, x.abs().max().reshape(1) / 448)
    rows = torch.empty(6, 1)
    op("_C::dynamic_per_token_scaled_fp8_quant")(out, x, rows, None)
    close(rows, x.abs().amax(1, keepdim=True) / 448)
    assert ((out.float() * rows - x).abs() <= x.abs() / 16 + 1e-3).all()
    groups = torch.empty(2, 6).t()  # column-major, as DeepGEMM wants it
    op("_C::per_token_group_fp8_quant")(x, out, groups, 128, 1e-10, -448.0, 448.0, False)
    close(groups, x.reshape(6, 2, 128).abs().amax(-1) / 448)
    op("_C::per_token_group_fp8_quant")(x, out, groups, 128, 1e-10, -448.0, 448.0, True)
    assert torch.equal(groups.log2(), groups.log2().round())


def test_int8_quantisation(op: Op) -> None:
    x = torch.randn(6, 64)
    out, rows = torch.empty(6, 64, dtype=torch.int8), torch.empty(6, 1)
    op("_C::dynamic_scaled_int8_quant")(out, x, rows, None)
    close(rows, x.abs().amax(1, keepdim=True) / 127)
    assert (out * rows - x).abs().max() <= rows.max() / 2 + 1e-6
    azp = torch.empty(6, 1, dtype=torch.int32)
    op("_C::dynamic_scaled_int8_quant")(out, x, rows, azp)
    assert ((out.float() - azp) * rows - x).abs().max() <= rows.max()
    quantized, scale = op("npu::npu_dynamic_quant")(x)
    assert scale.shape == (6,)
    assert torch.equal(quantized, (x / scale.unsqueeze(1)).round().to(torch.int8))


def test_scaled_products(op: Op) -> None:
    a, weight = torch.randn(5, 256).to(FP8), torch.randn(200, 256).to(FP8)
    rows, columns = torch.rand(5, 1), torch.rand(200, 1)
    bias = torch.randn(200)
    wanted = (a.double() * rows) @ (weight.double() * columns).t() + bias
    out = torch.empty(5, 200, dtype=torch.bfloat16)
    op("_C::cutlass_scaled_mm")(out, a, weight.t(), rows, columns.t(), bias)
    close(out, wanted)
    close(op("aiter::gemm_a8w8")(a, weight, rows, columns, bias, torch.bfloat16), wanted)
    close(op("sgl_kernel::fp8_scaled_mm")(a, weight.t(), rows, columns, torch.bfloat16, bias), wanted)
    a_blocks, w_blocks = torch.rand(5, 2), torch.rand(2, 2)
    spread = w_blocks.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)
    wanted = (a.double() * a_blocks.repeat_interleave(128, 1)) @ (weight.double() * spread).t()
    close(op("aiter::gemm_a8w8_blockscale")(a, weight, a_blocks, w_blocks), wanted)
    close(op("sgl_kernel::fp8_blockwise_scaled_mm")(a, weight.t(), a_blocks, w_blocks.t(), torch.bfloat16), wanted)


def test_plain_products(op: Op) -> None:
    x, weight, bias = torch.randn(3, 16), torch.randn(8, 16), torch.randn(8)
    wanted = x.double() @ weight.double().t()
    close(op("vllm::rocm_unquantized_gemm")(x, weight, bias), wanted + bias)
    close(op("aiter::gemm_a16w16")(x, weight, None, torch.float32), wanted)
    close(op("_rocm_C::wvSplitK")(weight, x, None, 80), wanted)
    half = op("aiter::gemm_a16w16")(x.bfloat16(), weight.bfloat16(), None, torch.bfloat16)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), wanted, rtol=0.05, atol=0.1)


def test_awq_weights_unpack_in_the_library_order(op: Op) -> None:
    numbers = torch.randint(0, 16, (32, 16), dtype=torch.int32)
    order = [0, 4, 1, 5, 2, 6, 3, 7]

    def pack(x: Tensor) -> Tensor:
        groups = x.reshape(x.shape[0], -1, 8).long()
        return sum(groups[..., i] << (4 * order[i]) for i in range(8)).to(torch.int32)  # type: ignore[union-attr]

    zeros, scales = torch.randint(0, 16, (2, 16), dtype=torch.int32), torch.rand(2, 16)
    wanted = (numbers - zeros.repeat_interleave(16, 0)) * scales.repeat_interleave(16, 0)
    close(op("_C::awq_dequantize")(pack(numbers), scales, pack(zeros), 0, 0, 0), wanted)
    x = torch.randn(3, 32)
    close(op("_C::awq_gemm")(x, pack(numbers), scales, pack(zeros), 8), x.double() @ wanted.double())


def test_npu_dropout_mask_is_packed_and_undone_by_the_backward(op: Op) -> None:
    x = torch.ones(32, 4096)
    out, mask = op("npu::_npu_dropout")(x, 0.25)
    assert mask.shape == (16384,)  # as an Ascend trace records for 131,072 elements
    kept = out != 0
    assert 0.7 < kept.float().mean() < 0.8
    assert torch.equal(op("npu::npu_dropout_backward")(x, mask, 0.25), out)


def test_npu_writes_and_casts(op: Op) -> None:
    x = torch.zeros(4, 3, 2)
    returned = op("npu::npu_scatter_nd_update_")(x, torch.tensor([[1, 2], [3, 0]]), torch.ones(2, 2))
    assert returned is x
    assert x.sum() == 4
    assert x[1, 2].tolist() == [1, 1]
    assert op("npu::npu_dtype_cast")(x, torch.float16).dtype == torch.float16
    weight = torch.randn(16, 8).round().to(torch.int8)
    scale, token = torch.rand(8), torch.rand(5)
    a = torch.randint(-9, 9, (5, 16), dtype=torch.int8)
    found = op("npu::npu_quant_matmul")(a, weight, scale, pertoken_scale=token, output_dtype=torch.bfloat16)
    close(found, (a.double() @ weight.double()) * scale * token.unsqueeze(1))
