from __future__ import annotations

from opreplay.traces.sums import shares, summed


def test_amounts_are_added_by_key_in_the_order_of_first_keys() -> None:
    sums = summed([("b", 1.0), ("a", 2.0), ("b", 0.5)])
    assert list(sums.items()) == [("b", 1.5), ("a", 2.0)]
    assert list(shares(sums).items()) == [("a", 2.0 / 3.5), ("b", 1.5 / 3.5)]


def test_nothing_has_no_shares() -> None:
    assert shares(summed([("a", 1.0), ("a", -1.0)])) == {}
