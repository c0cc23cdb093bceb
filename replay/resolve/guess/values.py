# pyright: strict
"""The values that guesses are made from and of; knows no rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opreplay.replay.ir.model import ReplayArg
from opreplay.traces.model import OpSignature, TensorMeta

Known = Mapping[str, ReplayArg]
"""Arguments that are settled, by name."""
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relatives:
    """Recorded calls around one call: they tell sizes that the call itself does not."""

    parent: OpSignature | None = None
    children: tuple[OpSignature, ...] = ()
    inner: tuple[OpSignature, ...] = ()
    """What the children call in turn, outer levels first; a few."""
    following: tuple[OpSignature, ...] = ()
    """The next calls under the same parent, then those after the parent, in order; a few."""
    gradients: tuple[OpSignature, ...] = ()
    """Labels of autograd for the gradients of one backward pass: their first tensor is as large as a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known of a call beyond its own arguments."""

    device: str = "cpu"
    """Where the plan will be replayed."""
    float_dtype: str = "float32"
    """The most common floating element type of the trace."""
    kernels: tuple[str, ...] = ()
    """Names of the device work that the recorded calls own."""
    lists_recorded: bool = False
    """The trace holds sizes of lists of tensors, so that one without was longer than profilers record."""
    number_lists_told: bool = True
    """Lists of numbers have a type of their own in the trace; else one looks like what is absent."""
    calls: int = 1
    """Recorded calls that count as this op."""
    recorded_us: float | None = None
    """Recorded time of one call: that of its device work where it owns any."""
    relatives: Callable[[], Relatives] = Relatives


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """A value that the trace does not hold, and why it is this one."""

    why: str
    value: Any = None
    tensors: tuple[TensorMeta | None, ...] | None = None
    """For Tensor[]."""


Rule = Callable[[Known, Context], "Guess | None"]


def tensor(known: Known, name: str) -> TensorMeta | None:
    """The tensor argument of this name, or None when absent, not settled, or a list."""
    arg = known.get(name)
    return arg.tensors[0] if arg is not None and arg.type == "Tensor" and arg.tensors else None


def first_tensor(known: Known) -> TensorMeta | None:
    """The first tensor of the call, lists included."""
    return next((meta for arg in known.values() for meta in arg.tensors if meta is not None), None)


def value(known: Known, name: str) -> Any:
    """The plain value of a settled argument, or None."""
    arg = known.get(name)
    return arg.value if arg is not None else None
