"""Attention over packed, paged and CSR-listed sequences against a naive dense softmax, for every library's layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from opreplay.replay.ops.maths.attention import Rules, attend
from opreplay.replay.ops.maths.batch_layout import BatchLayout, batch_layout

Op = Callable[[str], Any]


def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """q [Sq, H, D], k and v [Sk, Hkv, D], one score at a time as the definition has it, in float64."""
    queries, heads, _ = q.shape
    keys, kv_heads, width = v.shape
    out = torch.zeros(queries, heads, width, dtype=torch.float64)
    lse = torch.full((heads, queries), -torch.inf, dtype=torch.float64)
    q, k, v = q.double(), k.double(), v.double()
    for head in range(heads):
        other = head // (heads // kv_heads)
        for row in range(queries):
            diagonal = row + keys - queries
            right = diagonal if causal else keys if window[1] < 0 else diagonal + window[1]
            left = 0 if window[0] < 0 else diagonal - window[0]
            columns = [j for j in range(keys) if left <= j <= right]
            if not columns:
                continue
            scores = (k[columns, other] @ q[row, head]) * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if alibi is not None:
                scores = scores - alibi[head].double() * (diagonal - torch.tensor(columns)).abs()
            extra = scores if sinks is None else torch.cat((scores, sinks[head].double().reshape(1)))
            lse[head, row] = torch.logsumexp(extra, 0)
            out[row, head] = torch.exp(scores - lse[head, row]) @ v[columns, other]
    return out, lse


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype = torch.float32) -> None:
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


@settings(max_examples=40, deadline=None)
@given(
    queries=st.integers(1, 9),
    keys=st.integers(0, 12),
    group=st.sampled_from([1, 3]),
    causal=st.booleans(),
    window=st.tuples(st.integers(-1, 4), st.integers(-1, 4)),
    softcap=st.sampled_from([0.0, 3.0]),
    extras=st.sampled_from(["", "alibi", "sinks"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    need_lse=st.booleans(),
)
def test_attend_is_the_definition(
    queries: int,
    keys: int,
    group: int,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    extras: str,
    dtype: torch.dtype,
    need_lse: bool,
) -> None:
    torch.manual_seed(queries * 100 + keys)
    q = torch.randn(queries, 2 * group, 8).to(dtype)
    k, v = torch.randn(keys, 2, 8).to(dtype), torch.randn(keys, 2, 8).to(dtype)
    alibi = torch.rand(2 * group) if extras == "alibi" else None
    sinks = torch.randn(2 * group) if extras == "sinks" else None
    rules = Rules(scale=0.3, causal=causal, window=window, softcap=softcap, alibi=alibi, sinks=sinks)
    out, lse = attend(q, k, v, rules, need_lse=need_lse)
    wanted, wanted_lse = naive(q, k, v, 0.3, causal=causal, window=window, softcap=softcap, alibi=alibi, sinks=sinks)
    close(out, wanted, dtype)
    assert (lse is not None) == need_lse
    if lse is not None:
        seen = wanted_lse > -torch.inf
        if sinks is None:
            assert torch.equal(lse > -torch.inf, seen)
        close(lse[seen], wanted_lse[seen], dtype)


def test_blocks_of_rows_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opreplay.replay.ops.maths.attention.SCORE_BYTES", 4 * 4 * 40 * 3)
    q, k, v = torch.randn(37, 4, 8), torch.randn(40, 2, 8), torch.randn(40, 2, 8)
    for softcap in (0.0, 5.0):
        out, lse = attend(q, k, v, Rules(scale=0.5, causal=True, softcap=softcap), need_lse=True)
        wanted, wanted_lse = naive(q, k, v, 0.5, causal=True, softcap=softcap)
        close(out, wanted)
        assert lse is not None
        close(lse, wanted_lse)


CU_Q = torch.tensor([0, 3, 3, 8], dtype=torch.int32)
LENGTHS = [5, 2, 9]


def pages(
    lengths: list[int], page: int, heads: int, dim: int
) -> tuple[Tensor, Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """Key and value pages [blocks, page, heads, dim], a permuted block table padded with −1, and the sequences."""
    blocks = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(blocks) + 2)
    table = torch.full((len(lengths), max(blocks)), -1, dtype=torch.int32)
    k_pages, v_pages = torch.randn(sum(blocks) + 2, page, heads, dim), torch.randn(sum(blocks) + 2, page, heads, dim)
    sequences, used = [], 0
    for i, number in enumerate(blocks):
        mine = order[used : used + number]
        table[i, :number] = mine
        used += number
        sequences.append(tuple(x[mine].flatten(0, 1)[: lengths[i]] for x in (k_pages, v_pages)))
    return k_pages, v_pages, table, sequences


def wanted_packed(q: Tensor, sequences: list[tuple[Tensor, Tensor]], **rules: Any) -> tuple[Tensor, Tensor]:
    parts = [naive(q[CU_Q[i] : CU_Q[i + 1]], k, v, 0.4, **rules) for i, (k, v) in enumerate(sequences)]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts], 1)


def test_vllm_fa2_paged(op: Op) -> None:
    k, v, table, sequences = pages(LENGTHS, 4, 2, 8)
    q, used = torch.randn(8, 4, 8), torch.tensor(LENGTHS, dtype=torch.int32)
    out = torch.empty_like(q)
    call = op("_vllm_fa2_C::varlen_fwd")
    returned, lse = call(
        q,
        k,
        v,
        out,
        CU_Q,
        torch.zeros(4, dtype=torch.int32),
        used,
        None,
        table,
        None,
        5,
        9,
        0.0,
        0.4,
        False,
        True,
        -1,
        -1,
        0.0,
        False,
        0,
        None,
    )
    wanted, wanted_lse = wanted_packed(q, sequences, causal=True)
    for found in (out, returned):
        close(found, wanted)
    close(lse, wanted_lse)


def test_vllm_fa3_paged_with_sinks(op: Op) -> None:
    k, v, table, sequences = pages(LENGTHS, 4, 2, 8)
    q, used, sinks = torch.randn(8, 4, 8), torch.tensor(LENGTHS, dtype=torch.int32), torch.randn(4)
    found = op("_vllm_fa3_C::fwd")(
        q,
        k,
        v,
        None,
        None,
        None,
        None,
        CU_Q,
        None,
        None,
        None,
        used,
        5,
        9,
        table,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        0.4,
        True,
        3,
        0,
        0.0,
        False,
        None,
        0,
        None,
        0,
        sinks,
        1,
        0,
        None,
    )
    wanted, _ = wanted_packed(q, sequences, causal=True, window=(3, 0), sinks=sinks)
    close(found[0], wanted)
    assert len(found) == 4


def test_flash_attn_varlen_forward_and_backward(op: Op) -> None:
    lengths = torch.tensor([0, 5, 7, 16], dtype=torch.int32)
    q, k, v = torch.randn(8, 4, 8), torch.randn(16, 2, 8), torch.randn(16, 2, 8)
    out, lse, _, _ = op("flash_attn::_flash_attn_varlen_forward")(q, k, v, CU_Q, lengths, 5, 9, 0.0, 0.4, True)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    pieces = []
    for i in range(3):
        rows, keys = slice(CU_Q[i], CU_Q[i + 1]), slice(lengths[i], lengths[i + 1])
        scores = torch.einsum("qhd,khd->hqk", leaves[0][rows], leaves[1][keys].repeat_interleave(2, 1)) * 0.4
        shift = scores.shape[2] - scores.shape[1]
        seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(shift)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        pieces.append(torch.einsum("hqk,khd->qhd", weights, leaves[2][keys].repeat_interleave(2, 1)))
    wanted = torch.cat(pieces)
    close(out, wanted)
    dout = torch.randn_like(out)
    wanted.backward(dout.double())
    grads = [torch.empty_like(x) for x in (q, k, v)]
    delta = op("flash_attn::_flash_attn_varlen_backward")(
        dout, q, k, v, out, lse, *grads, CU_Q, lengths, 5, 9, 0.0, 0.4, True, -1, -1, 0.0, None, False
    )
    for grad, leaf in zip(grads, leaves, strict=True):
        assert leaf.grad is not None
        close(grad, leaf.grad)
    close(delta, (dout * out).sum(-1).t())


def test_flash_attn_dense(op: Op) -> None:
    q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 7, 4, 8), torch.randn(2, 7, 4, 8)
    out, lse, _, _ = op("flash_attn::_flash_attn_forward")(q, k, v, 0.0, 0.4, True, -1, -1, 0.0, None, False)
    for i in range(2):
        wanted, wanted_lse = naive(q[i], k[i], v[i], 0.4, causal=True)
        close(out[i], wanted)
        close(lse[i], wanted_lse)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    op("flash_attn::_flash_attn_backward")(
        torch.ones_like(out), q, k, v, out, lse, *grads, 0.0, 0.4, True, -1, -1, 0.0, None, False
    )
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    shifted = torch.ones(5, 7, dtype=torch.bool).tril(2)
    torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in leaves), attn_mask=shifted, scale=0.4
    ).sum().backward()
    for grad, leaf in zip(grads, leaves, strict=True):
        assert leaf.grad is not None
        close(grad, leaf.grad)


@pytest.mark.parametrize("name", ["_C::paged_attention_v1", "_C::paged_attention_v2", "_rocm_C::paged_attention"])
def test_vllm_paged_decode(op: Op, name: str) -> None:
    k, v, table, sequences = pages(LENGTHS, 8, 2, 16)
    key_cache = k.reshape(-1, 8, 2, 4, 4).permute(0, 2, 3, 1, 4).contiguous()  # [blocks, Hkv, D/x, page, x]
    value_cache = v.permute(0, 2, 3, 1).contiguous()  # [blocks, Hkv, D, page]
    q, lengths, one = torch.randn(3, 4, 16), torch.tensor(LENGTHS, dtype=torch.int32), torch.ones(1)
    out, scratch = torch.empty_like(q), [torch.empty(3, 4, 1), torch.empty(3, 4, 1), torch.empty(3, 4, 1, 16)]
    inputs = (q, key_cache, value_cache, 2, 0.4, table)
    if name.startswith("_rocm"):
        starts = torch.arange(4, dtype=torch.int32)
        op(name)(out, *scratch, *inputs, lengths, starts, 8, 9, None, "", one, one, None, "f16")
    else:
        given = () if name.endswith("v1") else tuple(scratch)
        op(name)(out, *given, *inputs, lengths, 8, 9, None, "", one, one, 0, 0, 0, 64, 0)
    for i, (keys, values) in enumerate(sequences):
        close(out[i : i + 1], naive(q[i : i + 1], keys, values, 0.4)[0])


@pytest.mark.parametrize("page", [1, 4])
def test_aiter_batch_prefill(op: Op, page: int) -> None:
    k, v, table, sequences = pages(LENGTHS, page, 2, 8)
    indices = table[table >= 0]
    indptr = torch.cat((torch.zeros(1, dtype=torch.int32), (table >= 0).sum(1).cumsum(0).to(torch.int32)))
    last = torch.tensor([(length - 1) % page + 1 for length in LENGTHS], dtype=torch.int32)
    q = torch.randn(8, 4, 8)
    caches = (k.squeeze(1), v.squeeze(1)) if page == 1 else (k, v)
    out, lse, _, _ = op("aiter::mha_batch_prefill")(
        q,
        *caches,
        CU_Q,
        indptr,
        indices,
        5,
        9,
        0.0,
        0.4,
        0.0,
        False,
        True,
        -1,
        -1,
        0,
        True,
        False,
        kv_last_page_lens=last,
    )
    wanted, wanted_lse = wanted_packed(q, sequences, causal=True)
    close(out, wanted)
    close(lse, wanted_lse)
    decode, single = torch.randn(3, 4, 8), torch.empty(3, 4, 8)
    op("aiter::paged_attention_ragged")(
        single,
        torch.empty(1, dtype=torch.uint8),
        decode,
        k,
        v,
        0.4,
        indptr,
        indices,
        last,
        page,
        1,
        None,
        "",
        "",
        0.0,
        torch.ones(1),
        torch.ones(1),
    )
    for i, (keys, values) in enumerate(sequences):
        close(single[i : i + 1], naive(decode[i : i + 1], keys, values, 0.4)[0])


def test_zeros_do_no_work_and_bad_lists_are_refused(op: Op) -> None:
    q, cache = torch.randn(8, 4, 8), torch.randn(20, 2, 8)
    call, zeros = op("aiter::mha_batch_prefill"), torch.zeros(4, dtype=torch.int32)
    flags = (5, 9, 0.0, 0.4, 0.0, False, True, -1, -1, 0, False, False)
    out = call(q, cache, cache, zeros, zeros, torch.zeros(12, dtype=torch.int32), *flags)[0]
    assert not out.any()
    with pytest.raises(ValueError, match="must not decrease"):
        call(q, cache, cache, torch.tensor([0, 9, 3, 8]), zeros, zeros, *flags)


def test_unified_attention_uses_the_batch_layout(op: Op) -> None:
    q, k, v = torch.randn(8, 4, 8), torch.randn(8, 2, 8), torch.randn(8, 2, 8)
    out = torch.empty_like(q)
    call = op("vllm::unified_attention_with_output")
    call(q, k, v, out, "")
    close(out, naive(q, k, v, 8**-0.5, causal=True)[0])
    with batch_layout(BatchLayout(query_lens=(3, 5), kv_lens=(3, 9))):
        call(q, k, v, out, "")
    close(out[:3], naive(q[:3], k[:3], v[:3], 8**-0.5, causal=True)[0])
    longer = torch.arange(-1, 8) % 8
    close(out[3:], naive(q[3:], k[longer], v[longer], 8**-0.5, causal=True)[0])
    with pytest.raises(ValueError, match="0 <= new tokens"):
        BatchLayout(query_lens=(4,), kv_lens=(2,))
    with batch_layout(BatchLayout(query_lens=(9,), kv_lens=(9,))), pytest.raises(ValueError, match="9 tokens"):
        call(q, k, v, out, "")


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND"])
@pytest.mark.parametrize("sparse_mode", [0, 2, 3])
def test_npu_dense_layouts(op: Op, layout: str, sparse_mode: int) -> None:
    q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)

    def arrange(x: Tensor, name: str) -> Tensor:
        return {"BSH": x.flatten(2), "BSND": x, "BNSD": x.transpose(1, 2).contiguous()}[name]

    given, _, wanted_layout = layout.partition("_")
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1) if sparse_mode else None
    found, lse = op("npu::npu_fused_infer_attention_score")(
        *(arrange(x, given) for x in (q, k, v)),
        atten_mask=mask,
        num_heads=4,
        num_key_value_heads=2,
        scale=0.4,
        input_layout=layout,
        sparse_mode=sparse_mode,
        softmax_lse_flag=True,
    )
    for i in range(2):
        wanted, wanted_lse = naive(q[i], k[i], v[i], 0.4, causal=sparse_mode > 0)
        close(found[i], arrange(wanted.unsqueeze(0), wanted_layout or given)[0])
        close(lse[i].squeeze(-1), wanted_lse)


def test_npu_paged_decode_and_masked_training(op: Op) -> None:
    k, v, table, sequences = pages(LENGTHS, 4, 2, 8)
    q = torch.randn(3, 1, 4 * 8)
    found, lse = op("npu::npu_fused_infer_attention_score")(
        q,
        k.flatten(2),
        v.flatten(2),
        actual_seq_lengths_kv=LENGTHS,
        block_table=table,
        num_heads=4,
        num_key_value_heads=2,
        scale=0.4,
        input_layout="BSH",
        block_size=4,
    )
    assert lse.shape == (1,)
    out = torch.empty(3, 4, 8)
    op("npu::_npu_paged_attention")(q.view(3, 4, 8), k, v, 2, 4, 0.4, table, torch.tensor(LENGTHS), out)
    for i, (keys, values) in enumerate(sequences):
        wanted = naive(q[i].view(1, 4, 8), keys, values, 0.4)[0]
        close(found[i].view(1, 4, 8), wanted)
        close(out[i : i + 1], wanted)
    x, hidden = torch.randn(2, 4, 5, 8), torch.rand(2, 1, 5, 5) > 0.7
    hidden[..., 0] = False
    trained = op("npu::npu_fusion_attention")(x, x, x, 4, "BNSD", atten_mask=hidden, scale=0.4)
    wanted = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=~hidden, scale=0.4)
    close(trained[0], wanted)
    scores = (x @ x.transpose(-1, -2) * 0.4).masked_fill(hidden, -torch.inf)
    weights = torch.exp(scores - trained[1][..., :1]) / trained[2][..., :1]
    close(weights @ x, wanted)


def test_npu_tnd_uses_cumulative_lengths(op: Op) -> None:
    q, k = torch.randn(8, 4, 8), torch.randn(16, 4, 8)
    found, lse = op("npu::npu_fused_infer_attention_score")(
        q,
        k,
        k,
        actual_seq_lengths=[3, 3, 8],
        actual_seq_lengths_kv=[5, 7, 16],
        num_heads=4,
        scale=0.4,
        input_layout="TND",
        sparse_mode=3,
        softmax_lse_flag=True,
    )
    close(found[:3], naive(q[:3], k[:5], k[:5], 0.4, causal=True)[0])
    wanted, wanted_lse = naive(q[3:], k[7:], k[7:], 0.4, causal=True)
    close(found[3:], wanted)
    close(lse[3:, :, 0], wanted_lse.t())


def test_merging_partial_attentions(op: Op) -> None:
    q, k, v = torch.randn(5, 4, 8), torch.randn(9, 4, 8), torch.randn(9, 4, 8)
    rules = Rules(scale=0.4)
    first, second = attend(q, k[:4], v[:4], rules, need_lse=True), attend(q, k[4:], v[4:], rules, need_lse=True)
    whole = attend(q, k, v, rules, need_lse=True)
    out, lse = torch.empty_like(q), torch.empty(4, 5)
    op("_C::merge_attn_states")(out, lse, first[0], first[1], second[0], second[1], None)
    close(out, whole[0])
    assert whole[1] is not None
    close(lse, whole[1])


def test_xformers_packed_and_dense(op: Op) -> None:
    lengths = torch.tensor([0, 5, 7, 16], dtype=torch.int32)
    q, k, v = torch.randn(8, 4, 8), torch.randn(16, 2, 8), torch.randn(16, 2, 8)
    sequences = [(k[lengths[i] : lengths[i + 1]], v[lengths[i] : lengths[i + 1]]) for i in range(3)]
    wanted, wanted_lse = wanted_packed(q, sequences, causal=True)
    two = op("xformers_flash::flash_fwd")(q, k, v, CU_Q, lengths, None, 5, 9, 0.0, 0.4, True, -1, -1, False, None)
    three = op("xformers_flash3::flash_fwd")(q, k, v, CU_Q, lengths, None, None, 5, 9, 0.0, 0.4, True)
    for found in (two, three):
        close(found[0], wanted)
        close(found[1], wanted_lse)
    q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 7, 4, 8), torch.randn(2, 7, 4, 8)
    out, lse, _ = op("xformers_flash::flash_fwd")(q, k, v, None, None, None, 5, 7, 0.0, 0.4, False, -1, -1, False, None)
    dense, dense_lse = op("xformers_flash3::flash_fwd")(q, k, v, None, None, None, None, 5, 7, 0.0, 0.4, False)
    for i in range(2):
        expected, expected_lse = naive(q[i], k[i], v[i], 0.4, causal=False)
        for found, found_lse in ((out, lse), (dense, dense_lse)):
            close(found[i], expected)
            close(found_lse[i], expected_lse)
    with pytest.raises(ValueError, match="dropout"):
        op("xformers_flash::flash_fwd")(q, k, v, None, None, None, 5, 7, 0.1, 0.4, False, -1, -1, False, None)
