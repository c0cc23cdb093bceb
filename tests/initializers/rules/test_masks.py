from __future__ import annotations

import pytest
import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.rules.masks import choose
from tests.initializers.filled import REGISTRY, initialized


def test_dropout_mask_has_the_density_of_its_scale() -> None:
    mask = initialized(
        "aten::native_dropout_backward", mask=torch.empty(20_000, dtype=torch.bool), scale=1 / 0.75
    ).need("mask")
    assert mask.float().mean().item() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (1, 9), (4, 9), (9, 4)])
def test_every_query_sees_a_key(dtype: torch.dtype, queries: int, keys: int) -> None:
    mask = torch.empty(2, 1, queries, keys, dtype=dtype).expand(2, 3, queries, keys)
    initialized("aten::scaled_dot_product_attention", attn_mask=mask)
    query, key = torch.randn(2, 3, queries, 8), torch.randn(2, 3, keys, 8)
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, key, attn_mask=mask if dtype is torch.bool else mask.float()
    )
    assert out.isfinite().all()
    seen = mask if dtype is torch.bool else mask == 0
    assert (seen.sum(-1) > 0).all()
    assert seen[0, 0].sum() < queries * keys or queries == 1


def test_no_mask_no_rule() -> None:
    context = InitContext(
        op="aten::scaled_dot_product_attention", args={"attn_mask": None}, generator=torch.Generator()
    )
    assert REGISTRY.find(context) is None


def test_choose_sets_exactly_that_many_also_in_expanded_masks() -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.zeros(10, 10, dtype=torch.bool)
    choose(mask, 13, generator)
    assert mask.sum() == 13
    wide = torch.zeros(10, 1, dtype=torch.bool).expand(10, 4)
    choose(wide, 20, generator)
    assert (wide[:, :1] == wide).all()


@pytest.mark.parametrize(("shape", "selected"), [((8, 9), 31), ((1, 9), 24)])
def test_a_gradient_of_a_selection_fits_its_mask(shape: tuple[int, int], selected: int) -> None:
    found = initialized(
        "aten::masked_select_backward",
        grad=torch.randn(selected),
        input=torch.randn(8, 9),
        mask=torch.zeros(shape, dtype=torch.bool),
    )
    mask = found.need("mask")
    assert int(mask.expand(8, 9).sum()) == selected
    assert torch.ops.aten.masked_select_backward(found.need("grad"), found.need("input"), mask).shape == (8, 9)


@pytest.mark.parametrize(("rows", "longest"), [(1, 1), (7, 12), (3, 1)])
def test_padded_sequences_begin_at_the_left(rows: int, longest: int) -> None:
    padded, mask = torch.randn(rows, longest, 2), torch.rand(rows, longest) > 0.5
    initialized("aten::_nested_tensor_from_mask", t=padded, mask=mask)
    lengths = mask.sum(1)
    assert torch.equal(mask, torch.arange(longest) < lengths[:, None])
    assert lengths.max() == longest
    assert lengths.min() >= 1
    assert torch.ops.aten._nested_tensor_from_mask_left_aligned(padded, mask)
