"""FBGEMM's grouped products against plain formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Call = Callable[..., Any]
Close = Callable[..., None]
SIZES = [3, 0, 2]
K, N = 32, 16


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
    with pytest.raises(ValueError, match="do not fit into"):
        call("fbgemm::bf16bf16bf16_grouped_stacked", X=x[:5], W=w, M_sizes=sizes + 1)
