# pyright: strict
"""Parse and format "Concrete Inputs" text: values as the profiler prints them, parsed without eval."""

from __future__ import annotations

import math
import re
from typing import TypeGuard, Union, cast

from opreplay.traces.errors import Malformed

Literal = Union[None, bool, int, float, complex, str, "list[Literal]"]

_INT = re.compile(r"[+-]?[0-9]{1,400}\Z")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?\Z")
_SPECIAL = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf, "nan": math.nan, "-nan": math.nan}
_REAL = r"[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf|nan)"
_COMPLEX = rf"\(?(?P<re>{_REAL})??(?P<im>{_REAL})[ij]\)?\Z"
_COMPLEX_PAIR = rf"\((?P<re>{_REAL}),\s*(?P<im>{_REAL})\)\Z"
_WORDS: dict[str, bool | None] = {"": None, "None": None, "<None>": None, "True": True, "False": False}

MAX_NESTING = 16


def parse_literal(text: str) -> Literal:
    """Parse the recorded text of an argument; return unrecognised text unchanged as a string.

    "" and "None" → None; "True" → bool; "512" → int; "0.", "1e-05", "inf", "nan" → float; "1+2j" and "(1,2)" → complex;
    "[2, [3, 4]]" → nested lists. Raises Malformed for lists nested deeper than 16.
    """
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        value, end = _parse_list(stripped, 1, 1)
        return value if end == len(stripped) else text
    return _parse_scalar(stripped, text)


def _parse_scalar(stripped: str, original: str) -> Literal:
    if stripped in _WORDS:
        return _WORDS[stripped]
    if _INT.match(stripped):
        return int(stripped)
    if _FLOAT.match(stripped):
        return float(stripped)
    special = _SPECIAL.get(stripped.lower())
    if special is not None:
        return special
    if len(stripped) <= 200:
        # Not compiled above: few traces need these patterns, and they take some milliseconds.
        match = re.match(_COMPLEX, stripped, re.IGNORECASE) or re.match(_COMPLEX_PAIR, stripped, re.IGNORECASE)
        if match is not None:
            return complex(float(match["re"] or 0), float(match["im"]))
    return original


def _parse_list(text: str, at: int, depth: int) -> tuple[list[Literal], int]:
    """Return the list whose "[" is just before `at`, and the position after its "]" (-1 if it is never closed)."""
    if depth > MAX_NESTING:
        raise Malformed(f"a recorded argument is a list nested deeper than {MAX_NESTING}")
    items: list[Literal] = []
    begin, n = at, len(text)
    after_list = False
    while at < n:
        char = text[at]
        if char == "[" and not text[begin:at].strip():
            inner, at = _parse_list(text, at + 1, depth + 1)
            if at < 0:
                return items, -1
            items.append(inner)
            after_list = True
            begin = at
            continue
        if char == "(":
            at = max(text.find(")", at), at)
        elif char in ",]":
            part = text[begin:at]
            if not after_list and (char == "," or items or part.strip()):
                items.append(_parse_scalar(part.strip(), part.strip()))
            after_list = False
            begin = at + 1
            if char == "]":
                return items, at + 1
        at += 1
    return items, -1


def format_literal(value: Literal) -> str:
    """Format a value as the profiler would record it; `parse_literal` is the inverse.

    As in the profiler, strings are not quoted. A string that looks like another literal is therefore parsed as that
    literal.
    """
    if isinstance(value, list):
        return "[" + ", ".join("None" if item is None else format_literal(item) for item in value) + "]"
    if value is None:
        return ""
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, float):
        return _format_float(value)
    if isinstance(value, complex):
        imag = _format_float(value.imag)
        return f"{_format_float(value.real)}{'' if imag.startswith('-') else '+'}{imag}j"
    return str(value)


def _format_float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = repr(value)
    return text[:-1] if text.endswith(".0") else text


def is_whole_numbers(value: object) -> TypeGuard[tuple[int, ...]]:
    """Check whether a parsed value is a tuple of whole numbers: sizes, strides, dimensions."""
    return isinstance(value, tuple) and all(isinstance(n, int) for n in cast("tuple[object, ...]", value))


def plain_float(value: float) -> float | str:
    """Return a float in a form that JSON can represent: "inf", "-inf" or "nan" as text, any other float unchanged."""
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    return value
