"""Temporarily replaces attributes of modules and classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import getattr_static
from typing import Any


@contextmanager
def replaced(target: Any, **attributes: Any) -> Iterator[None]:
    """Set attributes of a module or a class, and restore the previous ones at exit."""
    before = {name: getattr_static(target, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
