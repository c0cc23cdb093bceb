# pyright: strict
"""Names of ops: qualified, split, and the namespaces of collectives."""

from __future__ import annotations

import re

QUALIFIED_NAME = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]{0,127})::([A-Za-z_][A-Za-z0-9_]{0,255})(?:\.([A-Za-z0-9_]{1,128}))?"
)
"""`namespace::op` or `namespace::op.overload`; nothing else is ever looked up."""
_OVERLOAD = re.compile(r"\w{0,128}", re.ASCII)
COLLECTIVE_NAMESPACES: frozenset[str] = frozenset(
    {"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}
)
"""Refused unless the user asked for collective mode."""


def split_name(name: str) -> tuple[str, str, str | None] | None:
    """(namespace, op, overload or None) of a qualified name, or None when it is none."""
    match = QUALIFIED_NAME.fullmatch(name)
    return (match[1], match[2], match[3]) if match else None


def is_overload(text: str) -> bool:
    """Whether a text can be the name of an overload, which "" is too; whatever else it says is never put into code."""
    return _OVERLOAD.fullmatch(text) is not None


def names_in(text: str, namespace: str = "") -> frozenset[str]:
    """The words of a text, each with the namespace before it."""
    return frozenset(namespace + word for word in text.split())
