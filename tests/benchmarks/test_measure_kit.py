"""The exam of ten chosen measurements against ten random ones."""

from __future__ import annotations

from math import exp
from pathlib import Path
from random import Random

import pytest

from benchmarks.exams import measure_kit
from benchmarks.exams.measure_kit import Kernel, exam, figures_of, outcome
from opreplay.replay.ascend.cost.own_measurements import Estimate
from opreplay.replay.ascend.measured.accuracy import Compared
from opreplay.replay.ir.kernel import KernelCall

pytestmark = pytest.mark.slow

SHARED = Path(__file__).parents[3] / "shared" / "ascend"


def kernel(number: int, family: str, predicted_us: float, ratio: float, count: int = 1) -> Kernel:
    measured_us = predicted_us * ratio
    compared = Compared(
        call=KernelCall(type=family, inputs=(), outputs=()),
        measured_us=measured_us,
        predicted_us=predicted_us,
        low_us=predicted_us / 2,
        high_us=predicted_us * 2,
        count=count,
        total_us=measured_us * count,
        absolute_us=abs(predicted_us - measured_us) * count,
        signed_us=(predicted_us - measured_us) * count,
    )
    return Kernel(Estimate(call=str(number), op=family, family=family, time_us=predicted_us, band=2.0), compared)


def network() -> list[Kernel]:
    """Twelve families of eight kernels; kernels of one family err alike, and four families have most of the time."""
    random = Random(0)
    kernels: list[Kernel] = []
    for family in range(12):
        shared = random.gauss(0, 0.4)
        for number in range(8):
            size = 1000.0 if family < 4 else 50.0
            ratio = exp(shared + random.gauss(0, 0.1))
            kernels.append(kernel(len(kernels), f"F{family}", size * (1 + number / 8), ratio))
    return kernels


def test_what_is_revealed_has_no_error_and_the_rest_follows_its_family() -> None:
    kernels = [kernel(0, "A", 100.0, 1.5), kernel(1, "A", 100.0, 1.5), kernel(2, "B", 100.0, 1.0)]
    none = sum(abs(k.error_us()) for k in kernels) / sum(k.measured_us for k in kernels)
    found = outcome(kernels, {0})
    assert none == pytest.approx(100 / 400)
    assert found.remaining < 0.1
    assert found.factors[1].factor > found.factors[2].factor > 1.0


def test_chosen_kernels_beat_random_ones_where_families_err_alike() -> None:
    figures = figures_of(network())
    assert figures["remaining_wins"] >= 16
    assert figures["remaining"] < 0.5 * figures["before"]
    assert figures["same_rest"] < figures["same_rest_random"]
    assert figures["in_band"] > 70


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/ascend")
@pytest.mark.parametrize("table", list(measure_kit.NETWORKS))
def test_ten_chosen_kernels_leave_less_wrong_than_ten_random_ones(table: str) -> None:
    figures = exam(SHARED, table).figures
    assert figures["remaining_wins"] >= 16
    assert figures["remaining"] < figures["remaining_random"]
    assert figures["same_rest"] < figures["same_rest_random"]
    assert figures["in_band"] >= 70
