"""Repair of damaged JSON text: what it can tell, that sound text stays as it is, and that it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.traces.dialects.et_repair import repair_json


@pytest.mark.parametrize(
    ("damaged", "value", "reasons"),
    [
        (
            rb'{"name": "say "hi" \ there", "id": 3}',
            {"name": 'say "hi" \\ there', "id": 3},
            {"unescaped quote", "bad escape"},
        ),
        (rb'{"name": "a "b", c", "id": 1}', {"name": 'a "b", c', "id": 1}, {"unescaped quote"}),
        (rb'{"v": ["a "x" b", "y"]}', {"v": ['a "x" b', "y"]}, {"unescaped quote"}),
        (
            rb'{"id": 1 "n": "x" "a": [1 2, {"b": 1}{"c": 2}]}',
            {"id": 1, "n": "x", "a": [1, 2, {"b": 1}, {"c": 2}]},
            {"missing comma"},
        ),
        (rb'{"a": nan, "b": [-inf]}', {"a": "nan", "b": ["-inf"]}, {"NaN or infinity"}),
        (b'{"a": "\xff\x01"}', {"a": "\ufffd\x01"}, {"invalid UTF-8", "control character"}),
        (rb'{"p": "C:\dir\new"}', {"p": "C:\\dir\new"}, {"bad escape"}),
    ],
)
def test_repairs(damaged: bytes, value: Any, reasons: set[str]) -> None:
    text, found = repair_json(damaged)
    assert json.loads(text) == value
    assert set(found) == reasons


def test_what_was_cut_off_is_not_completed() -> None:
    for damaged in (b'{"a": 1', b'{"a": "x', b'{"a": [1, 2'):
        with pytest.raises(json.JSONDecodeError):
            json.loads(repair_json(damaged)[0])


TEXTS = st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"\w{1,5}", fullmatch=True), inner),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), VALUES), st.sampled_from([None, 1]))
def test_sound_text_keeps_its_value(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    repaired, reasons = repair_json(text.encode())
    assert json.loads(repaired) == json.loads(text)
    assert reasons == ()


@given(st.binary(max_size=200) | st.text('{}[]",:\\ na1', max_size=200).map(str.encode))
def test_anything_ends(damaged: bytes) -> None:
    repair_json(damaged)
