"""What overlap hides: when collectives were on, and when something waited for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.execute.ranks.torch.step import hidden_ns


def spans(cuts: list[int]) -> list[tuple[int, int]]:
    ordered = sorted(cuts)
    return list(zip(ordered[::2], ordered[1::2], strict=False))


CUTS = st.lists(st.integers(0, 200), max_size=16, unique=True)


@given(CUTS, CUTS)
def test_what_is_hidden_is_what_nothing_waited_in(on: list[int], waits: list[int]) -> None:
    flights, waited = spans(on), spans(waits)
    ticks = [t for begin, end in flights for t in range(begin, end)]
    seen = [t for t in ticks if not any(begin <= t < end for begin, end in waited)]
    assert hidden_ns(flights, waited) == len(seen)
