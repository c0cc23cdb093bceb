from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opreplay.initializers.base import InitializerError
from opreplay.initializers.fill import even_cuts
from opreplay.initializers.rules.segments import packed_sizes
from tests.initializers.filled import initialized


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.booleans())
def test_packed_sizes_descend_and_add_up(lengths: list[int], told: bool) -> None:
    """Any batch of sequences has sizes that can be found again from its rows, its steps and the number of sequences."""
    sizes = packed_sizes(max(lengths), sum(lengths), len(lengths) if told else None)
    assert int(sizes.sum()) == sum(lengths)
    assert len(sizes) == max(lengths)
    assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)
    assert int(sizes.min()) >= 1
    assert not told or int(sizes[0]) == len(lengths)


def test_packing_that_cannot_be_is_an_error() -> None:
    with pytest.raises(InitializerError, match=r"cannot divide .* into 9 sequences"):
        packed_sizes(4, 5, 9)


def test_packed_lstm_runs_with_as_many_sequences_as_its_state_has() -> None:
    sizes = torch.zeros(5, dtype=torch.int64)
    hx = [torch.zeros(1, 3, 4), torch.zeros(1, 3, 4)]
    found = initialized("aten::lstm", data=torch.randn(10, 8), batch_sizes=sizes, hx=hx)
    weights = [torch.randn(16, 8), torch.randn(16, 4), torch.randn(16), torch.randn(16)]
    out = torch.ops.aten.lstm.data(found.need("data"), sizes, hx, weights, True, 1, 0.0, False, False)
    assert sizes.tolist()[0] == 3
    assert out[0].shape == (10, 4)


def test_packed_gradient_takes_its_sequences_from_the_size_of_the_input() -> None:
    sizes = torch.zeros(4, dtype=torch.int64)
    initialized(
        "aten::_pack_padded_sequence_backward",
        grad=torch.empty(9, 2),
        input_size=[3, 4, 2],
        batch_sizes=sizes,
        batch_first=True,
    )
    assert (int(sizes[0]), int(sizes.sum())) == (3, 9)


@pytest.mark.parametrize("axis", [0, 1])
def test_segments_are_the_whole_reduced_dimension(axis: int) -> None:
    lengths = torch.zeros((7,) if axis == 0 else (30, 7), dtype=torch.int64)
    data = torch.randn(30, 30)
    initialized("aten::segment_reduce", data=data, reduce="sum", lengths=lengths, axis=axis)
    assert set(lengths.sum(-1).reshape(-1).tolist()) == {30}
    assert torch.segment_reduce(data, "sum", lengths=lengths, axis=axis).shape[axis] == 7


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_compressed_matrix_is_valid() -> None:
    found = initialized(
        "aten::sparse_compressed_tensor",
        compressed_indices=torch.zeros(5, dtype=torch.int64),
        plain_indices=torch.zeros(10, dtype=torch.int64),
        values=torch.ones(10),
    )
    made = torch.sparse_csr_tensor(
        found.need("compressed_indices"), found.need("plain_indices"), torch.ones(10), (4, 6), check_invariants=True
    )
    assert int(made.to_dense().count_nonzero()) == 10


def test_compressed_matrix_without_elements_has_pointers_of_zero() -> None:
    found = initialized(
        "aten::_convert_indices_from_csr_to_coo",
        crow_indices=torch.full((3,), 7),
        col_indices=torch.zeros(0, dtype=torch.int64),
    )
    assert found.need("crow_indices").tolist() == [0, 0, 0]


def test_rows_to_be_compressed_ascend_inside_the_matrix() -> None:
    rows = initialized("aten::_convert_indices_from_coo_to_csr", self=torch.full((10,), 99), size=4).need("self")
    assert rows.tolist() == sorted(rows.tolist())
    assert int(rows.max()) < 4


@given(st.integers(1, 50), st.integers(0, 200))
def test_cuts_ascend_from_nothing_to_all(parts: int, total: int) -> None:
    cuts = even_cuts(parts, total)
    assert (int(cuts[0]), int(cuts[-1]), len(cuts)) == (0, total, parts + 1)
    assert bool((cuts.diff() >= 0).all())
