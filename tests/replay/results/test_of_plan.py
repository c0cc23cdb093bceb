"""What results say of a plan's op beside its times."""

from __future__ import annotations

import pytest

from opreplay.replay.results.of_plan import product_of
from opreplay.replay.results.records import Product
from tests.factories import meta, op, tensor


def test_a_product_has_its_operations_and_the_bytes_of_arguments_and_result() -> None:
    call = op("aten::mm", tensor("self", 4, 8), tensor("mat2", 8, 16), outputs=(meta(4, 16),))
    assert product_of(call) == Product(
        flops=2.0 * 4 * 8 * 16, moved_bytes=4 * (4 * 8 + 8 * 16 + 4 * 16), dtype="float32"
    )


@pytest.mark.parametrize(("offset", "read"), [(0, 1), (64, 2)])
def test_one_view_given_twice_is_read_once_and_another_by_itself(offset: int, read: int) -> None:
    views = (tensor("self", 8, 8, storage=0), tensor("mat2", 8, 8, storage=0, storage_offset=offset))
    product = product_of(op("aten::mm", *views, outputs=(meta(8, 8),)))
    assert product is not None
    assert product.moved_bytes == 4 * 64 * (read + 1)


def test_an_op_that_multiplies_no_matrices_has_none() -> None:
    assert product_of(op("aten::add", tensor("self", 4, 8), tensor("other", 4, 8), outputs=(meta(4, 8),))) is None


def test_an_op_that_only_moves_data_has_its_bytes() -> None:
    assert product_of(op("aten::add", tensor("self", 4, 8), flops=0, moved_bytes=384)) == Product(
        flops=0.0, moved_bytes=384, dtype="float32"
    )
