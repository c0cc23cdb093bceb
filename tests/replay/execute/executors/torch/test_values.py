"""Tolerances of results: rounding passes in every type, a wrong element does not."""

from __future__ import annotations

import pytest
import torch

from opreplay.replay.execute.executors.torch.values import compare_results, difference

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_in_another_order_are_the_same_and_one_wrong_element_is_not(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(64, 512, dtype=torch.float64), torch.randn(512, 64, dtype=torch.float64)
    a, b = a.to(dtype), b.to(dtype)
    whole, parts = a @ b, sum(a[:, i : i + 64] @ b[i : i + 64] for i in range(0, 512, 64))
    assert difference(whole, parts) == ""
    wrong = whole.clone()
    wrong[3, 5] = -2 * wrong[3, 5] + 1
    assert difference(whole, wrong).startswith("1 of 4,096 elements differ, ")
    assert " at [3, 5]" in difference(whole, wrong)


def test_what_is_not_finite_must_be_so_in_the_same_places() -> None:
    values = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    assert difference(values, values.clone()) == ""
    for wrong in (
        [1.0, 2.0, float("inf"), -float("inf")],
        [float("nan"), float("nan"), float("inf"), -float("inf")],
        [1.0, float("nan"), -float("inf"), -float("inf")],
    ):
        assert difference(values, torch.tensor(wrong))


def test_integers_are_exact_but_for_a_step_of_quantized_ones() -> None:
    big = torch.tensor([2**60 + 1, 5])
    assert difference(big, torch.tensor([2**60, 5]))
    step = torch.tensor([1, 2, 3], dtype=torch.int8)
    assert difference(step, step + 1) == ""
    assert difference(step, step + 2)
    assert difference(torch.tensor([True]), torch.tensor([False]))
    assert difference(torch.zeros(0), torch.zeros(0)) == ""


def test_sizes_types_and_numbers_of_results_count() -> None:
    x = torch.ones(4)
    assert difference(x, torch.ones(4, 1)) == "sizes [4, 1] instead of [4]"
    assert difference(x, x.double()) == "torch.float64 instead of torch.float32"
    assert difference(x, 1.0) == "float instead of Tensor"
    assert difference(2, 3)
    assert compare_results((x, x), x, []).differs == "only 1 of 2 results are returned"
    assert compare_results((x, [x, 3]), [x, x, 3], [(x, x)]) == ("", 4)
    assert compare_results(None, None, [(x, -x)]).differs.startswith("written argument 0: 4 of 4")
