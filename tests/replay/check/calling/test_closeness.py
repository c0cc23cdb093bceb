"""How far a result may be off: integers by as much as a rounding of the arguments moves them, no further."""

from __future__ import annotations

import torch

from opreplay.replay.check.calling.closeness import compare, contrast


def test_integers_may_move_as_roundings_of_the_arguments_move_them() -> None:
    exact = torch.tensor([3, 7, -2], dtype=torch.int8)
    perturbed = [torch.tensor([3, 8, -2], dtype=torch.int8)]
    assert compare(torch.tensor([3, 8, -2], dtype=torch.int8), exact, perturbed=perturbed).fits
    off = compare(torch.tensor([3, 8, -1], dtype=torch.int8), exact, perturbed=perturbed)
    assert not off.fits
    assert off.where == "1 of 3 differ; the value at (2,) is -1, not -2"
    assert not compare(torch.tensor([3, 8, -2], dtype=torch.int8), exact).fits


def test_integers_may_be_what_one_rounding_gives_and_nothing_between() -> None:
    exact = torch.tensor([0, 0])
    perturbed = [torch.tensor([7, 0]), torch.tensor([0, 0])]
    assert compare(torch.tensor([7, 0]), exact, perturbed=perturbed).fits
    assert not compare(torch.tensor([3, 0]), exact, perturbed=perturbed).fits


def test_a_million_and_more_numbers_of_8_bits_are_compared() -> None:
    exact = torch.linspace(-400, 400, (1 << 20) + 3).to(torch.float8_e4m3fn)
    assert compare(exact.clone(), exact, exact).fits


def test_numbers_of_8_bits_may_be_rounded_otherwise_but_not_cut() -> None:
    wide = torch.linspace(16, 400, 512)
    exact = wide.to(torch.float8_e4m3fn)
    few = exact.clone()
    few[7] = (few[7].float() * 1.125).to(few.dtype)
    assert compare(few, exact, exact).fits
    bits = wide.view(torch.int32) >> 20 << 20
    cut = bits.view(torch.float32).to(torch.float8_e4m3fn)
    found = compare(cut, exact, exact)
    assert not found.fits
    assert found.ulp == 1.0


def test_truth_values_must_be_equal() -> None:
    exact = torch.tensor([True, False])
    assert not compare(torch.tensor([True, True]), exact, perturbed=[torch.tensor([False, True])]).fits


def test_two_numbers_are_printed_so_that_they_differ() -> None:
    assert contrast(1.5, 2.0) == "1.5, not 2"
    assert contrast(6.2151508, 6.2151494) == "6.215151, not 6.215149"
    assert contrast(1.0, 1.0 + 2**-52) == "1, not 1.0000000000000002"


def test_what_rounding_changes_is_larger_for_a_sum_of_many_terms() -> None:
    """x - mean(x) of a constant row is nothing but the rounding errors of the sum."""
    exact = torch.zeros(2, dtype=torch.float64)
    off = torch.tensor([3e-4, 0.0])
    perturbed = [torch.full((2,), 4e-5, dtype=torch.float64)]
    assert not compare(off, exact, perturbed=perturbed).fits
    assert compare(off, exact, perturbed=perturbed, terms=64.0).fits
    assert not compare(off.half(), exact, perturbed=perturbed, terms=64.0).fits


def test_float16_results_may_not_be_rounded_to_bfloat16() -> None:
    """Each is within four units in the last place, but so many are off by more than one only for bfloat16."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(32, 48, generator=generator, dtype=torch.float64).half() for _ in range(2))
    exact = x.double() * torch.sigmoid(x.double()) * y.double()
    same = x * torch.sigmoid(x) * y
    coarse = exact.float().bfloat16().half()
    found = compare(coarse, exact, same, terms=2.0)
    assert not found.fits
    assert compare(exact.half(), exact, same, terms=2.0).fits
    assert compare(x / (1 + torch.exp(-x)) * y, exact, exact.half(), terms=2.0).fits
    # The reference itself rounds so, few results differ, or rounding the arguments changes as much.
    assert compare(coarse, exact, coarse, terms=2.0).fits
    assert compare(coarse[0], exact[0], same[0], terms=2.0).fits
    assert compare(coarse, exact, same, terms=2.0, perturbed=[exact * (1 + 2.0**-7)]).fits
    assert compare(exact.bfloat16(), exact, terms=2.0).fits


def test_a_nan_is_right_where_the_dtype_overflows_but_not_where_the_result_is_infinite() -> None:
    actual = torch.tensor([float("nan"), 1.0])
    assert compare(actual, torch.tensor([1e300, 1.0], dtype=torch.float64)).fits
    for infinite in (float("inf"), -float("inf")):
        assert not compare(actual, torch.tensor([infinite, 1.0])).fits
        assert not compare(actual, torch.tensor([infinite, 1.0], dtype=torch.float64)).fits
