"""FBGEMM's grouped products and Transformer Engine's softmax against plain formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Call = Callable[..., Any]
Close = Callable[..., None]
SIZES = [3, 0, 2]
K, N = 32, 16


def fp8(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """(values, scales of rows, what they mean)."""
    values = torch.randn(*shape).to(torch.float8_e4m3fn)
    scales = torch.rand(*shape[:-1]) + 0.5
    return values, scales, values.float() * scales.unsqueeze(-1)


def test_stacked_groups(call: Call, close: Close) -> None:
    sizes = torch.tensor(SIZES)
    rows = torch.arange(3).repeat_interleave(sizes)
    x, w = torch.randn(sum(SIZES) + 2, K).bfloat16(), torch.randn(3, N, K).bfloat16()
    wanted = torch.einsum("mk,mnk->mn", x[:5].float(), w.float()[rows])
    found = call("fbgemm::bf16bf16bf16_grouped_stacked", X=x, W=w, M_sizes=sizes)
    close(found[:5], wanted, scale=2)
    assert not found[5:].any()
    lists = {"X": list(x[:5].split(SIZES)), "W": list(w.unbind())}
    close(call("fbgemm::bf16bf16bf16_grouped_cat", **lists), wanted, scale=2)
    close(torch.cat(call("fbgemm::bf16bf16bf16_grouped", **lists)), wanted, scale=2)
    with pytest.raises(ValueError, match="do not lie within"):
        call("fbgemm::bf16bf16bf16_grouped_stacked", X=x[:5], W=w, M_sizes=sizes + 1)


def test_fp8_groups(call: Call, close: Close) -> None:
    (x, xs, xf), (w, ws, wf) = fp8(5, K), fp8(3, N, K)
    wanted = torch.einsum("mk,mnk->mn", xf, wf[torch.arange(3).repeat_interleave(torch.tensor(SIZES))])
    stacked = call(
        "fbgemm::f8f8bf16_rowwise_grouped_stacked", XQ=x, WQ=w, x_scale=xs, w_scale=ws, M_sizes=torch.tensor(SIZES)
    )
    close(stacked, wanted, scale=2)
    lists = {
        "XQ": list(x.split(SIZES)),
        "WQ": list(w.unbind()),
        "x_scale": list(xs.split(SIZES)),
        "w_scale": list(ws.unbind()),
    }
    close(call("fbgemm::f8f8bf16_rowwise_grouped_cat", **lists), wanted, scale=2)
    close(torch.cat(call("fbgemm::f8f8bf16_rowwise_grouped", **lists)), wanted, scale=2)


def test_groups_with_unused_rows(call: Call, close: Close) -> None:
    (x, xs, xf), (w, ws, wf) = fp8(3, 4, K), fp8(3, N, K)
    used = torch.arange(4) < torch.tensor(SIZES).unsqueeze(1)
    both = xf @ wf.mT
    wanted = both * used.unsqueeze(-1)
    found = call(
        "fbgemm::f8f8bf16_rowwise_grouped_dynamic",
        XQ=x,
        WQ=w,
        x_scale=xs,
        w_scale=ws,
        zero_start_index_M=torch.tensor(SIZES),
    )
    close(found, wanted, scale=2)
    plain = call(
        "fbgemm::bf16bf16bf16_grouped_dynamic", X=xf.bfloat16(), W=wf.bfloat16(), zero_start_index_M=torch.tensor(SIZES)
    )
    close(plain, (xf.bfloat16().float() @ wf.bfloat16().float().mT) * used.unsqueeze(-1), scale=2)
    bias = torch.randn(N)
    batched = call("fbgemm::f8f8bf16_rowwise_batched", XQ=x, WQ=w, x_scale=xs, w_scale=ws, bias=bias)
    close(batched, both + bias, scale=2)
