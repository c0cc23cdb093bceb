# pyright: strict
"""Interfaces for what a sequence needs from an executor in addition to single ops: values, tensors, a timer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from opreplay.initializers.base import BatchLengths
from opreplay.replay.execute.executors.timers import Timer
from opreplay.replay.ir.model import Assumption, ReplayOp
from opreplay.replay.results.records import Filling
from opreplay.traces.model import TensorMeta

ResolvedOp = tuple[ReplayOp, Callable[..., Any], tuple[Assumption, ...]]
"""(op as the device runs it, function to call, changes made to the op)."""


class Tools:
    """Tensor operations for running a sequence. This base class is for executors without tensors."""

    def as_called(self, call: partial[Any]) -> partial[Any]:
        """Return the same call in the form that a Python program uses."""
        return call

    def flat(self, returned: Any) -> list[Any]:
        """Return the results of a call with lists flattened, in the order in which plans list results."""
        return []

    def fits(self, result: Any, meta: TensorMeta) -> bool:
        """Check whether a result is the tensor that the plan expects."""
        return False

    def seen_as(self, result: Any, meta: TensorMeta) -> Any:
        """Return a view of a result's memory with the shape and strides of the argument that receives it."""
        return result

    def is_finite(self, tensor: Any) -> bool:
        """Check whether all floats of a tensor are finite; True if it has no floats."""
        return True

    def refill(self, tensor: Any, spread: float = 1.0) -> None:
        """Fill a tensor with default values; `spread` is the standard deviation of floats."""

    def has_domain(self, op: str, argument: str) -> bool:
        """Check whether an initializer restricts the values of this argument of the op to a domain."""
        return False

    def in_domain(self, tensor: Any, op: str, argument: str) -> bool:
        """Check whether the values of a tensor are in the domain of this argument of the op."""
        return True

    def fit(self, tensor: Any, op: str, argument: str) -> None:
        """Fill a tensor with values in the domain of this argument of the op."""

    def copy_into(self, tensor: Any, values: Any) -> None:
        """Copy these values into a tensor."""


class SequenceParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an executor that a sequence uses."""

    resolve: Callable[[ReplayOp], ResolvedOp]
    """Finds an op's function. Raises NotReplayable."""
    fill: Callable[[ReplayOp, Callable[..., Any], int, tuple[Assumption, ...]], Filled]
    """Creates all arguments of an op that `resolve` returned. Values come from a seed. Raises NotReplayable."""
    tools: Tools
    timer: Timer
    free_bytes: Callable[[], int | None]
    """Free memory of the device; None if unknown."""
    synchronize: Callable[[], None]


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """A function, and the arguments to call it with."""

    op: ReplayOp
    """The op as it runs. Dtypes may be wider than recorded, and arguments that shared memory may be separate."""
    function: Callable[..., Any]
    args: dict[str, Any]
    """Arguments by name: tensors, lists of tensors, None, numbers."""
    initializer: str
    ruled: bool
    """Whether an initializer other than the default made the values, e.g. because they are indices."""
    assumptions: tuple[Assumption, ...]
    lengths: BatchLengths | None
    """Sequence lengths of the batch that the values describe, if the initializer knows them."""
    filling: Filling | None = None
