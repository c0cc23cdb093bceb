"""What attention leaves behind for its backward: maxima and sums on an NPU, log-sum-exps of flash-attention."""

from __future__ import annotations

import pytest
import torch

from opreplay.replay.ops.register import register_namespace


def _visible(rows: int, mode: int, mask: torch.Tensor) -> torch.Tensor:
    if mode == 0:
        return ~mask
    return (
        torch.ones(rows, rows, dtype=torch.bool).tril() if mode in (2, 3) else torch.ones(rows, rows, dtype=torch.bool)
    )


@pytest.mark.parametrize("mode", [0, 2, 3, 4])
@pytest.mark.parametrize("layout", ["BNSD", "BSND", "SBH"])
def test_npu_attention_gives_maximum_and_sum_of_each_row(mode: int, layout: str) -> None:
    register_namespace("npu")
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    mask = torch.rand(6, 6) < 0.4
    mask.fill_diagonal_(False)
    scores = (q @ k.transpose(-1, -2) * 0.3).masked_fill(~_visible(6, mode, mask), -torch.inf)
    given = {
        "BNSD": lambda x: x,
        "BSND": lambda x: x.transpose(1, 2),
        "SBH": lambda x: x.permute(2, 0, 1, 3).flatten(2),
    }[layout]
    out, top, total, *_ = torch.ops.npu.npu_fusion_attention(
        given(q), given(k), given(v), 4, layout, atten_mask=mask if mode == 0 else None, scale=0.3, sparse_mode=mode
    )
    torch.testing.assert_close(top[..., 0], scores.amax(-1))
    torch.testing.assert_close(total[..., 7], (scores - scores.amax(-1, keepdim=True)).exp().sum(-1))
    torch.testing.assert_close(out, given(scores.softmax(-1) @ v))


def test_a_row_that_sees_nothing_has_no_sum() -> None:
    register_namespace("npu")
    q = torch.randn(1, 1, 3, 8)
    mask = torch.zeros(3, 3, dtype=torch.bool)
    mask[1] = True
    _, top, total, *_ = torch.ops.npu.npu_fusion_attention(q, q, q, 1, "BNSD", atten_mask=mask, scale=1.0)
    assert top[0, 0, 1, 0] == -torch.inf
    assert total[0, 0, 1, 0] == 0
    assert (total[0, 0, [0, 2]] > 0).all()


def test_flash_attention_2_gives_plus_infinity_for_a_row_without_keys() -> None:
    register_namespace("flash_attn")
    q, k = torch.randn(1, 5, 2, 8), torch.randn(1, 3, 2, 8)
    _, lse, *_ = torch.ops.flash_attn._flash_attn_forward(q, k, k, 0.0, 0.5, True, -1, -1, 0.0, None, False)
    assert (lse[0, :, :2] == torch.inf).all()
    scores = torch.einsum("shd,thd->hst", q[0], k[0]) * 0.5
    seen = torch.ones(5, 3, dtype=torch.bool).tril(-2)
    torch.testing.assert_close(lse[0, :, 2:], scores.masked_fill(~seen, -torch.inf).logsumexp(-1)[:, 2:])
