# pyright: strict
"""What a sequence needs of an executor beside single ops: values, tensors, a timer; owns none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from opreplay.initializers.base import BatchLengths
from opreplay.replay.execute.executors.timers import Timer
from opreplay.replay.ir.model import Assumption, ReplayOp
from opreplay.replay.results.records import Filling
from opreplay.traces.model import TensorMeta

ResolvedOp = tuple[ReplayOp, Callable[..., Any], tuple[Assumption, ...]]
"""An op as the device runs it, what to call, and what was changed."""


class Tools:
    """What a pass needs to know of tensors, and does with them; as it is here, where there are none."""

    def as_called(self, call: partial[Any]) -> partial[Any]:
        """The same call as a program makes it."""
        return call

    def flat(self, returned: Any) -> list[Any]:
        """The results of a call, lists flattened, as plans list them."""
        return []

    def fits(self, result: Any, meta: TensorMeta) -> bool:
        """Whether a result is the tensor that the plan expects."""
        return False

    def seen_as(self, result: Any, meta: TensorMeta) -> Any:
        """The memory of a result with the shape and strides of an argument."""
        return result

    def is_finite(self, tensor: Any) -> bool:
        """Whether all floats of a tensor are finite; True for what holds none."""
        return True

    def refill(self, tensor: Any, spread: float = 1.0) -> None:
        """Give a tensor plain values, of this standard deviation where they are floats."""

    def has_domain(self, op: str, argument: str) -> bool:
        """Whether values of this argument must lie in a domain, which the op's initializer knows."""
        return False

    def in_domain(self, tensor: Any, op: str, argument: str) -> bool:
        """Whether the values of a tensor do."""
        return True

    def fit(self, tensor: Any, op: str, argument: str) -> None:
        """Give a tensor values inside that domain."""

    def copy_into(self, tensor: Any, values: Any) -> None:
        """Give a tensor these values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceParts:
    """An executor as a sequence sees it."""

    resolve: Callable[[ReplayOp], ResolvedOp]
    """Raises NotReplayable."""
    fill: Callable[[ReplayOp, Callable[..., Any], int, tuple[Assumption, ...]], Filled]
    """Makes all arguments of what `resolve` returned, from a seed. Raises NotReplayable."""
    tools: Tools
    timer: Timer
    free_bytes: Callable[[], int | None]
    """Memory of the device that is free; None where it does not say."""
    synchronize: Callable[[], None]


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
    filling: Filling | None = None
