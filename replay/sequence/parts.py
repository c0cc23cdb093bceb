"""What a sequence needs of an executor beside single ops: values, tensors, a timer; owns none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from opreplay.replay.executors.filled import Filled
from opreplay.replay.ir import Assumption, ReplayOp
from opreplay.replay.sequence.timers import Timer
from opreplay.traces.model import TensorMeta

Found = tuple[ReplayOp, Callable[..., Any], tuple[Assumption, ...]]
"""An op as the device runs it, what to call, and what was changed."""


class Tools(Protocol):
    """What a pass needs to know of tensors."""

    def flat(self, returned: Any) -> list[Any]:
        """The results of a call, lists flattened, as plans list them."""
        ...

    def fits(self, result: Any, meta: TensorMeta) -> bool:
        """Whether a result is the tensor that the plan expects."""
        ...

    def seen_as(self, result: Any, meta: TensorMeta) -> Any:
        """The memory of a result with the shape and strides of an argument."""
        ...

    def is_finite(self, tensor: Any) -> bool:
        """Whether all floats of a tensor are finite; True for what holds none."""
        ...

    def refill(self, tensor: Any) -> None:
        """Give a tensor plain values."""
        ...

    def copy_into(self, tensor: Any, values: Any) -> None:
        """Give a tensor these values."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceParts:
    """An executor as a sequence sees it."""

    found: Callable[[ReplayOp], Found]
    """Raises NotReplayable."""
    fill: Callable[[ReplayOp, Callable[..., Any], int, tuple[Assumption, ...]], Filled]
    """Makes all arguments of what `found` gave, from a seed. Raises NotReplayable."""
    tools: Tools
    timer: Timer
    free_bytes: Callable[[], int | None]
    """Memory of the device that is free; None where it does not say."""
    synchronize: Callable[[], None]
