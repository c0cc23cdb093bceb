"""Times to nanoseconds and ids to integers, exactly; columns in the smallest type that holds them."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.traces.reading.columns import INVALID, Columns, smallest, to_ids, to_ns


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2**43 * 1000 - 1), min_size=1, max_size=20))
def test_decimals_of_a_microsecond_are_exact(nanoseconds: list[int]) -> None:
    texts = [f"{ns // 1000}.{ns % 1000:03d}" for ns in nanoseconds]
    assert to_ns(texts).tolist() == nanoseconds
    assert to_ns([Decimal(text) for text in texts]).tolist() == nanoseconds
    assert to_ns([float(text) for text in texts]).tolist() == nanoseconds


def test_times_of_all_kinds() -> None:
    assert to_ns([1661203462598738, 5]).tolist() == [1661203462598738000, 5000]
    assert to_ns([1, 2.5]).tolist() == [1000, 2500]
    bad = [None, "x", float("nan"), float("inf"), Decimal("1e999999"), 10**30, [1], True, "9" * 100, Decimal("NaN")]
    assert to_ns(bad).tolist() == [INVALID] * len(bad)
    assert to_ns([]).tolist() == []


def test_ids_of_all_kinds() -> None:
    values = [1, "2", "0x1f", None, 2**64 - 1, 3.0, "x", [1], True, 10**30]
    assert to_ids(values).tolist() == [1, 2, 31, -1, -1, 3, -1, -1, -1, -1]
    assert to_ids(["3.0", "0x1f.0", "3.5", ".0", "12345678901234567890.0"]).tolist()[:4] == [3, 31, -1, -1]
    assert to_ids([1704161511422904204, 2**63]).tolist() == [1704161511422904204, -(2**63)]


ODD_TIMES = [
    1,
    1.2345,
    2.0**41 + 0.1235,
    2.0**43 + 0.5,
    2**60,
    -0.0005,
    Decimal("1.2345"),
    Decimal("2199023255552.1235"),
    Decimal("8796093022208.0625"),
    "1.2345",
    True,
    None,
    "sNaN",
    [1],
]
ODD_IDS = [1, 1.5, 7.0, Decimal("7.0"), Decimal("7.5"), Decimal("1e400"), True, None, "12", "0x1f", 2**64 - 1, -5, {}]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(ODD_TIMES), min_size=1, max_size=6), st.lists(st.sampled_from(ODD_IDS), min_size=1))
def test_a_value_is_read_the_same_whatever_stands_beside_it(times: list[object], ids: list[object]) -> None:
    assert to_ns(times).tolist() == [to_ns([time]).tolist()[0] for time in times]
    assert to_ids(ids).tolist() == [to_ids([id_]).tolist()[0] for id_ in ids]


def test_a_decimal_is_read_like_the_float_beside_it() -> None:
    for text in ("1.2345", "0.0005", "2199023255552.1235", "7.5", "-3.00051"):
        assert to_ns([float(text)]).tolist() == to_ns([Decimal(text)]).tolist() == to_ns([text]).tolist()
    assert to_ids([7.0, 7.5]).tolist() == to_ids([Decimal("7.0"), Decimal("7.5")]).tolist() == [7, -1]


@pytest.mark.parametrize(
    ("values", "kind"),
    [([0, 65535], np.uint16), ([65536], np.uint32), ([-1], np.int64), ([2**40], np.int64), ([], np.uint16)],
)
def test_smallest(values: list[int], kind: type) -> None:
    assert smallest(np.array(values, np.int64), (np.uint16, np.uint32)).dtype == kind


def test_rows_without_a_time_are_dropped_and_counted() -> None:
    table = Columns(name="index", start="time", dur="span")
    for name, start, dur in [(1, 1.5, 2), (2, "x", 2), (3, 4, None)]:
        table.pending["name"].append(name)
        table.pending["start"].append(start)
        table.pending["dur"].append(dur)
    assert len(table) == 3
    table.flush()
    assert (len(table), table.dropped, table.zeroed) == (2, 1, 1)
    assert table.take("name").tolist() == [1, 3]
    assert table.take("start").tolist() == [1500, 4000]
    assert table.take("dur").tolist() == [2000, 0]
    assert table.take("dur").tolist() == []
