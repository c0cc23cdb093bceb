"""Numbers and trace text for people."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.report import text


@pytest.mark.parametrize(
    ("us", "shown"),
    [
        (None, "–"),
        (0.0, "0 µs"),
        (3e-13, "0 µs"),
        (-3e-13, "0 µs"),
        (0.0000258, "<0.001 µs"),
        (-0.0000258, ">-0.001 µs"),
        (0.00123, "0.00123 µs"),
        (0.01234, "0.0123 µs"),
        (1.0, "1.00 µs"),
        (12.345, "12.3 µs"),
        (999.4, "999 µs"),
        (999.6, "1.00 ms"),
        (1234.5, "1.23 ms"),
        (999_700.0, "1.00 s"),
        (12_345_678.0, "12.3 s"),
        (1.2345e9, "1230 s"),
    ],
)
def test_times_have_three_digits_and_a_unit(us: float | None, shown: str) -> None:
    assert text.time_text(us) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (1.0, "100.0 %"),
        (0.9999999999999999, "100.0 %"),
        (0.9999999, "99.9 %"),
        (0.9999, "99.9 %"),
        (0.978, "97.8 %"),
        (0.0042, "0.42 %"),
        (1e-6, "<0.01 %"),
        (0.0, "0 %"),
    ],
)
def test_shares_never_round_up_to_all(share: float, shown: str) -> None:
    assert text.share_text(share) == shown


@pytest.mark.parametrize(
    ("value", "base", "shown"),
    [
        (1.0, 2.0, "0.50×"),
        (37.4, 1.0, "37×"),
        (415.2, 1.0, "415×"),
        (1e-4, 1.0, "<0.01×"),
        (1.0, None, "–"),
        (1.0, 0.0, "–"),
    ],
)
def test_ratios(value: float, base: float | None, shown: str) -> None:
    assert text.ratio_text(value, base) == shown


def test_digits_never_show_a_number_as_zeros() -> None:
    assert (text.digits(0.0), text.digits(1.2345e-11), text.digits(0.00000012345)) == ("0", "1.23e-11", "0.000000123")


@given(st.floats(min_value=1e-3, max_value=1e12))
def test_a_time_is_within_half_a_percent_of_what_is_shown(us: float) -> None:
    shown, unit = text.time_text(us).split()
    scale = {"µs": 1.0, "ms": 1e3, "s": 1e6}[unit]
    assert abs(float(shown) * scale - us) <= 0.00501 * us + 1e-9


@given(st.text(max_size=60))
def test_safe_text_has_nothing_a_terminal_acts_on(raw: str) -> None:
    shown = text.safe(raw)
    assert shown.isprintable()
    assert shown.encode("utf-8").decode() == shown


def test_escapes_name_the_character() -> None:
    assert text.safe("a\x1b[31mb\n\u202ec\u200bd\ud800") == "a\\x1b[31mb\\x0a\\u202ec\\u200bd\\ud800"


@given(st.text(max_size=50) | st.text("a漢語é", max_size=50), st.integers(0, 40))
def test_shortened_text_fits_and_keeps_both_ends(raw: str, width: int) -> None:
    short = text.middle(raw, width)
    assert text.cells(short) <= width
    if 5 <= width < text.cells(raw):  # wide characters take two columns
        assert short[0] == raw[0]
        assert short[-1] == raw[-1]
        assert re.search("…", short)
    assert text.cells(text.end(raw, width)) <= width


def test_json_holds_nothing_that_a_terminal_acts_on() -> None:
    import json

    from opreplay.replay.report.text import shown_json

    acted_on = [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    value = {"name": "".join(map(chr, acted_on)) + "é漢"}
    text = shown_json(value)
    assert json.loads(text) == value
    assert [hex(code) for code in acted_on if chr(code) in text and code != 0xA and code != 0x20] == []
