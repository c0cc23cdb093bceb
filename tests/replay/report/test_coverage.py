"""How predictions are shown that are orders of magnitude."""

from __future__ import annotations

from opreplay.replay.report.coverage import predicted_text, rough_text
from opreplay.replay.results.records import Simulated


def simulated(time_us: float, band: float) -> Simulated:
    return Simulated(
        time_us=time_us,
        bound="vector",
        terms_us={},
        kernels=(),
        confidence="uncalibrated",
        low_us=time_us / band,
        high_us=time_us * band,
    )


def test_a_time_that_is_an_order_of_magnitude_is_marked() -> None:
    assert predicted_text(simulated(300.0, 13.6)) == "~300 µs"
    assert predicted_text(simulated(300.0, 2.3)) == "300 µs"


def test_ops_that_decide_a_total_are_named_where_they_are_orders_of_magnitude() -> None:
    sure, rough, small = simulated(50.0, 1.4), simulated(100.0, 13.6), simulated(1.0, 13.6)
    assert rough_text([("aten::mm", sure, 6), ("aten::unique", rough, 1), ("aten::bincount", small, 1)]) == (
        "order of magnitude only: aten::unique 24.9 % of the time"
    )
    assert rough_text([("aten::mm", sure, 1)]) == ""
