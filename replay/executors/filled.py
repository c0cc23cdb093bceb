"""An op whose arguments have values, as a torch executor makes it; owns no device and no call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opreplay.initializers.base import BatchLengths
from opreplay.replay.ir import Assumption, ReplayOp


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What to call, with which arguments."""

    op: ReplayOp
    """As the device runs it: wider types or memory of its own where the recorded one cannot be had."""
    function: Callable[..., Any]
    args: dict[str, Any]
    """By name: tensors, lists of tensors and None, numbers, ..."""
    initializer: str
    ruled: bool
    """Whether a rule of its own made the values, as one does where they index."""
    assumptions: tuple[Assumption, ...]
    lengths: BatchLengths | None
    """Of the batch that the values are of, where the initializer knows one."""
