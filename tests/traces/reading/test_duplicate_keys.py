"""Keys that occur twice in an object are counted, however the text around them is spelled."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.traces.reading.head import count_duplicates
from opreplay.traces.reading.salvage import Tally


def counted(text: str) -> dict[str, int]:
    tally = Tally()
    count_duplicates(text.encode(), tally)
    return dict(tally.losses)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a" : 1, "a": 2}',
        '{"a":1,"b" :2,"a":3}',
        '[{"a":{"b":"\\":","a":1,"a":2}}]',
        '{"x\\u0022:":1,"a":1,"a":2}',
        '{"b":"\\u003Ax","a":1,"a":2}',
        '{"b":"\\"\\u003a","a":1,"a":2}',
        '{"b":NaN,"a":1,"a":2}',
        '{"b":1e999,"a":1,"\\u0061":2}',
    ],
)
def test_one_is_counted(text: str) -> None:
    assert counted(text) == {"duplicate key a": 1}


KEYS = st.sampled_from(["a", "b", '":', "é", "\\", "\n", '"'])
VALUES = st.recursive(
    st.integers() | st.floats() | KEYS | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(KEYS, inner), max_size=4).map(tuple),
    max_leaves=12,
)


def spelled(value: object, gap: str, escape: str) -> str:
    """JSON text of a value; a tuple of pairs is an object, which may have a key twice. Strings have the colon as
    `escape`.
    """
    if isinstance(value, tuple):
        pairs = [f"{spelled(key, gap, escape)}{gap}:{spelled(one, gap, escape)}" for key, one in value]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(spelled(one, gap, escape) for one in value) + "]"
    return json.dumps(value).replace(":", escape)


def doubles(value: object) -> Counter[str]:
    """The number of further occurrences of each key that an object has more than once."""
    found: Counter[str] = Counter()
    if isinstance(value, list):
        for one in value:
            found += doubles(one)
    if isinstance(value, tuple):
        found.update(f"duplicate key {key}" for key, n in Counter(key for key, _ in value).items() if n > 1)
        for _, one in value:
            found += doubles(one)
    return found


@given(VALUES, st.sampled_from(["", " ", "\n"]), st.sampled_from([":", "\\u003a"]))
def test_any_text(value: object, gap: str, escape: str) -> None:
    assert counted(spelled(value, gap, escape)) == dict(doubles(value))
