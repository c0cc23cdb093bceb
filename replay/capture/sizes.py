# pyright: strict
"""Parses and checks the sizes of `capture --vary`; does not need torch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from opreplay.replay.capture.config_file import PREFIX
from opreplay.replay.ir.notation import parse_sizes
from opreplay.traces.errors import UsageError

VARIED = ("batch", "context")
HOW = "Write batch=1,8,32 or context=1k,8k."


def sizes_of(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse texts such as "batch=1,8" and "context=1k,8k" into numbers by name.

    Raises UsageError for a value below 1, for a name given twice, and in the same cases as `parse_sizes`.
    """
    sizes: dict[str, tuple[int, ...]] = {}
    for text in itertools.chain.from_iterable(text.split() for text in texts):
        name, values = parse_sizes(text)
        if min(values) < 1 or name in sizes:
            what = f"{name} is given twice" if name in sizes else f"{text!r} contains a size below 1"
            raise UsageError(what, hint=HOW)
        sizes[name] = values
    return sizes


def check_sizes(target: str, shape: Mapping[str, Any], sizes: Mapping[str, Sequence[int]]) -> None:
    """Raise UsageError for a size that hf: models do not have (`VARIED`), or that `shape` already contains."""
    if not target.startswith(PREFIX):
        return
    if other := next((name for name in sizes if name not in VARIED), None):
        raise UsageError(f"{other!r} is not a size that hf: models have", hint=HOW)
    if twice := next((name for name in sizes if name in shape), None):
        raise UsageError(f"--{twice} is given together with --vary {twice}=...", hint="Remove one of them.")
