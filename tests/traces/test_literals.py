"""The grammar of recorded values, and that printing and parsing are inverse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.traces import format_literal, parse_literal
from opreplay.traces.errors import Malformed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("None", None),
        ("True", True),
        ("False", False),
        ("512", 512),
        ("-1", -1),
        ("9223372036854775807", 9223372036854775807),
        ("0.", 0.0),
        ("1e-05", 1e-05),
        ("-2.5E3", -2500.0),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("[]", []),
        ("[1, 2]", [1, 2]),
        ("[[1, 2], [3]]", [[1, 2], [3]]),
        ("[True, None, 0.5, a]", [True, None, 0.5, "a"]),
        ("1+2j", 1 + 2j),
        ("(1,2)", 1 + 2j),
        ("none", "none"),
        ("bij,bjk->bik", "bij,bjk->bik"),
        ("[1, 2", "[1, 2"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("__import__('os')", "__import__('os')"),
    ],
)
def test_values(text: str, value: object) -> None:
    parsed = parse_literal(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_nan_and_nesting() -> None:
    value = parse_literal("nan")
    assert isinstance(value, float)
    assert math.isnan(value)
    with pytest.raises(Malformed, match="deeper"):
        parse_literal("[" * 40 + "]" * 40)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
)


@settings(max_examples=200, deadline=None)
@given(st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=12))
def test_round_trip(value: object) -> None:
    text = format_literal(value)  # type: ignore[arg-type]
    assert parse_literal(text) == value
    assert format_literal(parse_literal(text)) == text


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="[](),.+-0123456789einfnaNoTru j", max_size=30))
def test_any_text_is_some_value(text: str) -> None:
    parse_literal(text)
