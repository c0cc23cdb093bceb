from __future__ import annotations

import pytest
import torch

from opreplay.initializers.base import InitializerError
from tests.initializers.filled import initialized


def ints(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.full(shape, -7, dtype=dtype)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("op", ["gather", "index_select", "index_add_", "scatter_", "scatter_reduce_"])
def test_index_stays_inside_its_dimension(op: str, dim: int) -> None:
    index = initialized(f"aten::{op}", self=torch.empty(3, 5, 8), dim=dim, index=ints(40)).need("index")
    assert index.min() >= 0
    assert index.max() < (3, 5, 8)[dim]
    assert index.unique().numel() > 1


def test_index_without_anything_to_index_is_an_error() -> None:
    with pytest.raises(InitializerError, match="nothing to index"):
        initialized("aten::index_select", self=torch.empty(0, 5), dim=0, index=ints(2))


def test_empty_index_of_an_empty_tensor_is_fine() -> None:
    initialized("aten::index_select", self=torch.empty(0, 5), dim=0, index=ints(0))


def test_lists_of_indices_follow_the_dimensions_they_index() -> None:
    first, mask, last = ints(90), torch.zeros(4, 5, dtype=torch.bool), ints(90)
    initialized("aten::index", self=torch.empty(3, 4, 5, 2), indices=[first, mask, last])
    assert first.max() < 3
    assert mask.sum() == 10
    assert last.max() < 2


def test_mask_index_selects_as_many_as_the_values() -> None:
    mask = torch.zeros(10, 10, dtype=torch.bool)
    initialized("aten::index_put_", self=torch.empty(10, 10), indices=[mask], values=torch.empty(37))
    assert mask.sum() == 37


def test_too_many_indices_are_an_error() -> None:
    with pytest.raises(InitializerError, match="more indices"):
        initialized("aten::index", self=torch.empty(3), indices=[ints(1), ints(1)])


def test_bags_start_at_zero_and_cover_all_indices() -> None:
    found = initialized(
        "aten::_embedding_bag",
        weight=torch.empty(20, 4),
        indices=ints(30),
        offsets=ints(7),
        include_last_offset=True,
    )
    offsets = found.need("offsets").tolist()
    assert offsets == sorted(offsets)
    assert (offsets[0], offsets[-1]) == (0, 30)
    assert found.need("indices").max() < 20


def test_backward_of_bags_fits_itself() -> None:
    found = initialized(
        "aten::_embedding_bag_dense_backward",
        grad=torch.empty(6, 4),
        indices=ints(30),
        offset2bag=ints(30),
        bag_size=ints(6),
        maximum_indices=ints(0),
        num_weights=20,
    )
    assert found.need("bag_size").sum() == 30
    assert found.need("offset2bag").unique().tolist() == list(range(6))


def test_offsets_of_a_gradient_of_a_bag_less_end_with_the_indices() -> None:
    """As with `include_last_offset`, which the backward pass is not told."""
    found = initialized(
        "aten::_embedding_bag_backward",
        grad=torch.empty(6, 4),
        indices=ints(37),
        offsets=ints(7),
        offset2bag=ints(0),
        bag_size=ints(6),
        maximum_indices=ints(6),
        num_weights=50,
    )
    assert found.need("offsets")[-1] == 37


def test_repeats_add_up_to_the_output() -> None:
    assert initialized("aten::repeat_interleave", repeats=ints(9), output_size=31).need("repeats").sum() == 31


def test_lengths_descend_and_are_positive() -> None:
    lengths = initialized("aten::_pack_padded_sequence", input=torch.empty(11, 4, 3), lengths=ints(4)).need("lengths")
    assert lengths[0] == 11
    assert lengths.diff().le(0).all()
    assert lengths.min() >= 1


def test_targets_are_classes() -> None:
    target = initialized("aten::nll_loss_forward", self=torch.empty(50, 6), target=ints(50)).need("target")
    assert target.min() >= 0
    assert target.max() < 6


def test_targets_of_ctc_that_lie_one_after_another_are_all_used() -> None:
    found = initialized(
        "aten::_cudnn_ctc_loss",
        log_probs=torch.randn(9, 3, 5),
        targets=ints(7),
        input_lengths=ints(3),
        target_lengths=ints(3),
    )
    assert int(found.need("target_lengths").sum()) == 7
    assert found.need("input_lengths").tolist() == [9, 9, 9]
