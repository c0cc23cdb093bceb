from __future__ import annotations

import pytest
import torch

from tests.initializers.filled import initialized


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_last", [False, True])
def test_saved_values_are_those_of_the_forward_pass(causal: bool, heads_last: bool) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 10, 8), torch.randn(2, 2, 10, 8), torch.randn(2, 2, 10, 8)
    out, saved = torch.empty(2, 4, 10, 8), torch.empty(2, 4, 10)
    op = "_flash_attention_backward" if heads_last else "_scaled_dot_product_flash_attention_backward"
    swap = (lambda t: t.transpose(1, 2).contiguous()) if heads_last else (lambda t: t)
    found = initialized(
        f"aten::{op}",
        query=swap(query),
        key=swap(key),
        value=swap(value),
        out=swap(out),
        logsumexp=saved,
        is_causal=causal,
        scale=None,
    )
    wide = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), is_causal=causal
    )
    torch.testing.assert_close(swap(found.need("out")) if heads_last else found.need("out"), wide)
    scores = query @ key.repeat_interleave(2, 1).mT / 8**0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(10, 10, dtype=torch.bool).tril(), float("-inf"))
    torch.testing.assert_close(saved, scores.logsumexp(-1))


def test_lengths_are_cut_evenly_and_end_at_the_tokens() -> None:
    found = initialized(
        "aten::_flash_attention_forward",
        query=torch.empty(100, 4, 8),
        key=torch.empty(300, 4, 8),
        value=torch.empty(300, 4, 8),
        cum_seq_q=torch.empty(9, dtype=torch.int32),
        cum_seq_k=torch.empty(9, dtype=torch.int32),
    )
    for name, tokens in (("cum_seq_q", 100), ("cum_seq_k", 300)):
        cuts = found.need(name)
        assert (cuts[0].item(), cuts[-1].item()) == (0, tokens)
        assert (cuts.diff() >= 0).all()


def test_large_or_biased_calls_get_a_plausible_logsumexp() -> None:
    found = initialized(
        "aten::_scaled_dot_product_efficient_attention_backward",
        query=torch.randn(1, 1, 64, 8),
        key=torch.randn(1, 1, 64, 8),
        value=torch.randn(1, 1, 64, 8),
        attn_bias=torch.zeros(1, 1, 64, 64),
        out=torch.randn(1, 1, 64, 8),
        logsumexp=torch.empty(1, 1, 64),
    )
    exact = (torch.randn(64, 8) @ torch.randn(8, 64) / 8**0.5).logsumexp(-1).mean()
    assert found.need("logsumexp").mean().item() == pytest.approx(exact.item(), abs=0.5)
