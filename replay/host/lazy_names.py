# pyright: strict
"""Lazy import of a package's names: each is imported when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    `homes` maps each name to the module below `opreplay` that defines it.
    """

    def look_up(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"opreplay.{homes[name]}"), name)

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return look_up, listed
