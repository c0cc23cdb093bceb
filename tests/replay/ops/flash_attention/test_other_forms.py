"""Attention under further names, forward and backward, against plain softmax attention in float64 and autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Call = Callable[..., Any]
B, S, H, KV, D = 2, 5, 4, 2, 8
Q, K, V = torch.randn(B, S, H, D), torch.randn(B, S, KV, D), torch.randn(B, S, KV, D)
CU = torch.tensor([0, S, 2 * S], dtype=torch.int32)


def plain(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """[.., S, H, D]; causal to the bottom right."""
    q, k, v = (x.double().transpose(-3, -2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    if causal:
        rows, keys = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(rows, keys, dtype=torch.bool).triu(keys - rows + 1), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(-3, -2)


def packed(x: Tensor) -> Tensor:
    return x.flatten(0, 1)


@pytest.mark.parametrize("causal", [True, False])
def test_version_3(call: Call, close: Call, causal: bool) -> None:
    wanted = plain(Q, K, V, causal=causal)
    out = torch.empty_like(Q)
    found = call("flash_attn_3::fwd", q=Q, k=K, v=V, out=out, is_causal=causal)
    close(found[0], wanted)
    close(out, wanted)
    lengths = {"cu_seqlens_q": CU, "cu_seqlens_k": CU, "max_seqlen_q": S, "max_seqlen_k": S}
    found = call("flash_attn_3::_flash_attn_forward", q=packed(Q), k=packed(K), v=packed(V), causal=causal, **lengths)
    close(found[0], packed(wanted))
    leaves = [x.double().requires_grad_() for x in (Q, K, V)]
    dy = torch.randn(B, S, H, D)
    plain(*leaves, causal=causal).backward(dy.double())
    grads = [torch.zeros_like(packed(x)) for x in (Q, K, V)]
    call(
        "flash_attn_3::_flash_attn_backward",
        dout=packed(dy),
        q=packed(Q),
        k=packed(K),
        v=packed(V),
        out=found[0],
        softmax_lse=found[1],
        dq=grads[0],
        dk=grads[1],
        dv=grads[2],
        is_causal=causal,
        **lengths,
    )
    for one, leaf in zip(grads, leaves, strict=True):
        assert leaf.grad is not None
        close(one, packed(leaf.grad), 10)


@pytest.mark.parametrize("paged", [True, False])
def test_new_keys_go_into_the_cache(call: Call, close: Call, paged: bool) -> None:
    lengths = [6, 3]
    q, k, v = torch.randn(B, 1, H, D), torch.randn(B, 1, KV, D), torch.randn(B, 1, KV, D)
    caches = torch.randn(2, 8, 4, KV, D) if paged else torch.randn(2, B, 16, KV, D)
    table = torch.tensor([[5, 2, 0, 0], [1, 7, 0, 0]], dtype=torch.int32) if paged else None
    kept = caches.clone()
    common: dict[str, Any] = dict.fromkeys(
        ("rotary_cos", "rotary_sin", "cache_batch_idx", "leftpad_k", "alibi_slopes", "out")
    )
    common |= {
        "softmax_scale": 0.3,
        "is_causal": True,
        "window_size_left": -1,
        "window_size_right": -1,
        "softcap": 0.0,
        "is_rotary_interleaved": False,
        "num_splits": 0,
    }
    found = call(
        "_vllm_fa2_C::fwd_kvcache",
        q=q,
        kcache=caches[0],
        vcache=caches[1],
        k=k,
        v=v,
        seqlens_k=torch.tensor(lengths),
        block_table=table,
        **common,
    )[0]
    for i, length in enumerate(lengths):
        rows = []
        for side, new in zip(kept, (k, v), strict=True):
            own = side[table[i]].flatten(0, 1) if table is not None else side[i]
            rows.append(torch.cat((own[:length], new[i])))
        close(found[i], plain(q[i], *rows, scale=0.3))
        after = caches[0][table[i]].flatten(0, 1) if table is not None else caches[0][i]
        assert torch.equal(after[length], k[i, 0])
    again = call(
        "vllm::flash_attn_with_kvcache",
        decode_query=q,
        key_cache=caches[0],
        value_cache=caches[1],
        cache_seqlens=torch.tensor([7, 4]),
        block_table=table,
        softmax_scale=0.3,
        causal=True,
    )
    close(again, found.double())


def test_vision_encoders(call: Call, close: Call) -> None:
    q, k, v = (torch.randn(1, 7, H, D) for _ in range(3))
    cu = torch.tensor([0, 3, 7], dtype=torch.int32)
    wanted = torch.cat([plain(q[:, a:b], k[:, a:b], v[:, a:b]) for a, b in ((0, 3), (3, 7))], 1)
    common = {"q": q, "k": k, "v": v}
    close(
        call(
            "vllm::flash_attn_maxseqlen_wrapper",
            **common,
            batch_size=1,
            is_rocm_aiter=False,
            fa_version=2,
            cu_seqlens=cu,
        ),
        wanted,
    )
    close(call("vllm::torch_sdpa_wrapper", **common, cu_seqlens=cu), wanted)
    close(call("vllm::triton_attn_wrapper", **common, batch_size=1), plain(q, k, v))
    close(call("vllm::xformers_attn_seqlens_wrapper", **common, seqlens=torch.tensor([3, 4])), wanted)


def test_paged_and_packed(call: Call, close: Call) -> None:
    pages = torch.randn(2, 6, 4, KV, D)
    table, q = torch.tensor([[3, 1], [0, 5]], dtype=torch.int32), torch.randn(3, H, D)
    cu_q, cu_k = torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([0, 6, 11], dtype=torch.int32)
    out = torch.empty_like(q)
    call(
        "vllm::flash_attn_varlen_func",
        q=q,
        k_cache=pages[0],
        v_cache=pages[1],
        out=out,
        cu_seqlens_q=cu_q,
        cu_seqlens_k=cu_k,
        max_seqlen_q=2,
        max_seqlen_k=6,
        softmax_scale=0.3,
        window_size=None,
        alibi_slopes=None,
        block_table=table,
        k_scale=torch.ones(1),
        v_scale=torch.ones(1),
    )
    for i, (start, stop, length) in enumerate(((0, 2, 6), (2, 3, 5))):
        k, v = (side[table[i]].flatten(0, 1)[:length] for side in pages)
        close(out[start:stop], plain(q[start:stop], k, v, causal=True, scale=0.3))
    found = call(
        "sglang::flash_attn_varlen_func_op",
        q=packed(Q),
        k=packed(K),
        v=packed(V),
        cu_seqlens_q=CU,
        cu_seqlens_k=CU,
        causal=True,
    )
    close(found, packed(plain(Q, K, V, causal=True)))
    close(call("sglang::flash_attn_varlen_func_op", q=Q, k=K, v=V), plain(Q, K, V))


@pytest.mark.parametrize("mask", [0, 1, 2])
def test_xformers(call: Call, close: Call, mask: int) -> None:
    q, k, v = torch.randn(B, S, H, D), torch.randn(B, 7, H, D), torch.randn(B, 7, H, D)
    given = {"dropout_p": 0.0, "custom_mask_type": mask, "compute_log_sumexp": True}
    keys = (k[:, :S], v[:, :S]) if mask == 1 else (k, v)
    wanted = plain(q, *keys, causal=mask > 0)
    out, lse, *_ = call("xformers::efficient_attention_forward_cutlass", query=q, key=k, value=v, **given)
    close(out, wanted)
    assert lse.shape == (B, H, 32)
    found = call(
        "xformers::efficient_attention_forward_cutlass",
        query=q.reshape(1, B * S, H, D),
        key=k.reshape(1, -1, H, D),
        value=v.reshape(1, -1, H, D),
        cu_seqlens_q=CU,
        cu_seqlens_k=torch.tensor([0, 7, 14], dtype=torch.int32),
        max_seqlen_q=S,
        max_seqlen_k=7,
        **given,
    )
    close(found[0].reshape(B, S, H, D), wanted)


def test_gradients(call: Call, close: Call) -> None:
    leaves = [x.double().requires_grad_() for x in (Q, K, V)]
    dy = torch.randn(B, S, H, D)
    plain(*leaves, causal=True).backward(dy.double())
    out, lse, *_ = call("flash_attn_3::fwd", q=Q, k=K, v=V, is_causal=True)
    flat = lse.transpose(0, 1).flatten(1).contiguous()
    scale = D**-0.5
    grads = [torch.zeros_like(x) for x in (Q, K, V)]
    dense = {
        "q": Q,
        "k": K,
        "v": V,
        "out": out,
        "softmax_lse": lse,
        "dropout_p": 0.0,
        "softmax_scale": scale,
        "window_size_left": -1,
        "window_size_right": -1,
        "deterministic": False,
        "dout": dy,
        "dq": grads[0],
        "dk": grads[1],
        "dv": grads[2],
    }
    call("aiter::_flash_attn_backward", **dense, causal=True, dbias=None, bias=None, alibi_slopes=None)
    results = [grads]
    results.append(call("aiter::mha_bwd", **dense, is_causal=True)[:3])
    v3 = {"is_v3_atomic_fp32": True, "how_v3_bf16_cvt": 1}
    results.append(call("aiter::fmha_v3_bwd", **dense, is_causal=True, **v3)[:3])
    varlen = {
        key: (packed(value) if isinstance(value, Tensor) and value.dim() == 4 and key != "softmax_lse" else value)
        for key, value in dense.items()
        if key not in ("dq", "dk", "dv")
    } | {"softmax_lse": flat}
    varlen |= {"cu_seqlens_q": CU, "cu_seqlens_k": CU, "max_seqlen_q": S, "max_seqlen_k": S, "zero_tensors": False}
    results.append(call("aiter::mha_varlen_bwd", **varlen, is_causal=True)[:3])
    results.append(call("aiter::fmha_v3_varlen_bwd", **varlen, is_causal=True, **v3)[:3])
    ours = {
        "query": Q,
        "key": K,
        "value": V,
        "out": out,
        "cu_seqlens_q": CU,
        "cu_seqlens_k": CU,
        "max_seqlen_q": S,
        "max_seqlen_k": S,
        "softmax_scale": scale,
        "is_causal": True,
        "window_left": -1,
        "window_right": -1,
        "grads_share_storage": False,
    }
    results.append(call("xformers_flash::flash_bwd", **ours, grad=dy, lse=lse, p=0.0, rng_state=torch.zeros(2)))
    results.append(call("xformers_flash3::flash_bwd", **ours, dout=dy, softmax_lse=lse))
    for result in results:
        for one, leaf in zip(result, leaves, strict=True):
            assert leaf.grad is not None
            close(one.reshape(leaf.shape), leaf.grad, 10)
