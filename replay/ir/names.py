# pyright: strict
"""Names of ops: splitting and qualifying them, and the namespaces of collectives."""

from __future__ import annotations

import re

QUALIFIED_NAME = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]{0,127})::([A-Za-z_][A-Za-z0-9_]{0,255})(?:\.([A-Za-z0-9_]{1,128}))?"
)
"""`namespace::op` or `namespace::op.overload`; no other name is ever looked up."""
_OVERLOAD = re.compile(r"\w{0,128}", re.ASCII)
COLLECTIVE_NAMESPACES: frozenset[str] = frozenset(
    {"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}
)
"""Namespaces of collectives, which are refused unless the user requested collective mode."""


def split_name(name: str) -> tuple[str, str, str | None] | None:
    """Split a qualified name into (namespace, op, overload or None); None if the name is not qualified."""
    match = QUALIFIED_NAME.fullmatch(name)
    return (match[1], match[2], match[3]) if match else None


def is_overload(text: str) -> bool:
    """Check whether a text is a valid overload name; "" is valid. A text that is not valid must never be put
    into code.
    """
    return _OVERLOAD.fullmatch(text) is not None


def names_in(text: str, namespace: str = "") -> frozenset[str]:
    """Split a text into words and prefix each with the namespace."""
    return frozenset(namespace + word for word in text.split())
