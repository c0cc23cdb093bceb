"""Predictions of ops as they grow and as types widen: no cliffs without evidence, doubles never quicker than floats."""

from __future__ import annotations

from itertools import pairwise

import pytest

from opreplay.replay.ascend import load_device, simulate_op
from opreplay.replay.resolve.written.sweep import over_sizes, plan_of_calls
from opreplay.replay.results.records import Simulated

DEVICE = load_device("910b2")


def predicted(call: str) -> Simulated:
    (op,) = plan_of_calls(over_sizes([call], []), allow_imports={}, device="cpu")[0].ops
    return simulate_op(op, DEVICE, l2="cold")


def took(call: str, n: int) -> float:
    return predicted(_sized(call, n)).time_us


def _sized(call: str, n: int) -> str:
    name, _, rest = call.partition("(")
    return f"{name}({rest.replace('n', str(n))}"


@pytest.mark.parametrize(
    "call", ["aten::dot(f32[n],f32[n])", "aten::vdot(f32[n],f32[n])", "aten::inner(f32[n],f32[n])"]
)
def test_products_of_vectors_are_sums_over_both(call: str) -> None:
    assert took(call, 32768) == pytest.approx(took(call, 32767), rel=0.01)
    least = 2 * 4e7 / DEVICE.hbm_bytes_per_s * 1e6
    assert least < took(call, 10**7) < 3 * least
    assert predicted(_sized(call, 100)).confidence == "uncalibrated", "none was measured"


def test_inner_products_of_rows_are_one_matrix_product() -> None:
    assert took("aten::inner(f32[n,n],f32[n,n])", 1024) == pytest.approx(
        took("aten::mm(f32[n,n],f32[n,n])", 1024), rel=0.2
    )


@pytest.mark.parametrize("dtype", ["i64", "i8", "f64", "f32"])
def test_more_numbers_are_not_summed_in_half_the_time(dtype: str) -> None:
    times = [took(f"aten::sum({dtype}[n])", n) for n in (1024, 4096, 8192, 9000, 10000, 16384, 32768, 40000, 80000)]
    assert all(after > 0.93 * before for before, after in pairwise(times)), times


def test_single_elements_grow_without_a_cliff() -> None:
    for call in ("aten::gather(f32[n,64],0,i64[n,64])", "aten::scatter_add(f32[n,64],0,i64[n,64],f32[n,64])"):
        assert took(call, 25000) < 2 * took(call, 24576), call


@pytest.mark.parametrize(
    "call", ["mm(T[n,n],T[n,n])", "mv(T[n,n],T[n])", "dot(T[n],T[n])", "add(T[n,n],T[n,n])", "sum(T[n,n])"]
)
def test_doubles_take_no_less_than_floats_and_are_not_calibrated(call: str) -> None:
    for n in (64, 1024):
        double = predicted(_sized(f"aten::{call.replace('T', 'f64')}", n))
        assert double.confidence == "uncalibrated"
        assert double.time_us >= took(f"aten::{call.replace('T', 'f32')}", n)


def test_computing_on_the_control_processors_is_no_launch() -> None:
    long, short = predicted("aten::linalg_qr(f32[1000000,64])"), predicted("aten::linalg_qr(f32[8,8])")
    assert (long.bound, short.bound) == ("aicpu", "launch")
    assert long.terms_us["launch"] == pytest.approx(short.terms_us["launch"], rel=0.1)
    assert long.terms_us["launch"] < 0.01 * long.terms_us["aicpu"]


@pytest.mark.parametrize(
    "call", ["aten::poisson(f32[n])", "aten::multinomial(f32[8,n],1)", "aten::_standard_gamma(f32[n])"]
)
def test_draws_of_which_none_was_measured_are_not_calibrated(call: str) -> None:
    assert predicted(_sized(call, 20000)).confidence == "uncalibrated"
