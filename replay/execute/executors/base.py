# pyright: strict
"""The protocol that every back-end implements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from opreplay.initializers.amounts import Work
from opreplay.replay.execute.executors.clocks import Clock
from opreplay.replay.ir.model import Assumption, RecordedKernel, ReplayOp
from opreplay.replay.ir.verdicts import ValueCheck
from opreplay.replay.plan.step.recency import Recency
from opreplay.replay.results.records import Filling

if TYPE_CHECKING:
    from opreplay.replay.execute.executors.clocks import Gauge
    from opreplay.replay.execute.executors.sequence_tools import SequenceParts


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels and ops launched by one call of an op."""

    kernels: tuple[RecordedKernel, ...] = ()
    children: tuple[str, ...] = ()
    """Names of the direct child ops, in order."""
    below: tuple[str, ...] | None = None
    """Names of all nested ops, each before its children; None if unknown."""
    has_device: bool = False
    """Whether the executor's device runs kernels, as an accelerator does."""


class Prepared:
    """An op that is ready to be called."""

    call: Callable[[], Any]
    """Calls the op once, without waiting for the device."""
    argument_bytes = 0
    """Bytes of the tensor arguments."""
    max_calls: int | None = None
    """Maximum number of consecutive calls before `Executor.reset`; None if no reset is needed."""
    time_goes_by_values = False
    """Whether the time may depend on values that the op has written. This is possible for ops of users and vendors."""
    first_call_us: float | None = None
    """Host time of the first call if `prepare` made it, otherwise None."""
    initializer: str | None = None
    filling: Filling | None = None
    assumptions: tuple[Assumption, ...] = ()
    """Assumptions made while filling the arguments, in addition to the assumptions of the plan."""
    work: Work | None = None
    """Work that the argument values cause; None if not requested, or if only shapes matter."""

    def copies(self, count: int) -> Sequence[Callable[[], Any]]:
        """Return `call` and up to `count` - 1 copies with separate memory; fewer if memory is short."""
        raise NotImplementedError


class Executor:
    """Base class that prepares and runs ops, and never prints. The defaults fit a device without caches and threads."""

    device: str
    """Device name, e.g. "cpu", "cuda:0" or "npu:0"."""
    clock: Clock
    cache_bytes = 0
    """Size of the last-level cache; 0 if unknown or absent."""
    evicted_bytes = 0
    """How many bytes of the cache `evict` overwrites."""
    gauge: Gauge | None = None
    """The reference workload, which shows the current speed of the device."""

    @property
    def threads(self) -> int | None:
        """Host threads that an op may use; None on an accelerator."""
        return None

    def use_threads(self, count: int) -> None:
        """Set the number of host threads that ops may use from now on."""

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], Any] | None:
        """Return a function that launches all these calls at once; None if the device does not support this.

        Raises RuntimeError for calls that cannot be captured.
        """
        return None

    def evict(self) -> None:
        """Evict the arguments of ops from the device's caches."""

    def as_in_step(self, prepared: Any, recency: Recency) -> Callable[[], None] | None:
        """Return a function that restores each argument's reuse distance in the step. It must be called before each
        call of the op.

        None if the device does not permit this.
        """
        return None

    def facts(self) -> dict[str, object]:
        """Return versions and device for the result's header, without host names, paths or secrets."""
        return {"device": self.device}

    def prepare(self, op: ReplayOp, *, seed: int) -> Prepared:
        """Allocate and fill the arguments of `op`. Raises `NotReplayable` with a reason."""
        raise NotImplementedError

    def random_numbers(self, op: ReplayOp) -> tuple[str, ...]:
        """Return the names of a library op's tensors that hold random integers because no initializer fills them."""
        return ()

    def run(self, prepared: Any) -> Any:
        """Call the op once and return its outputs, without waiting for the device."""
        return prepared.call()

    def reset(self, prepared: Any) -> None:
        """Restore the initial values of arguments that the op writes to, if calling it again would change them."""
        raise NotImplementedError

    def touch(self, prepared: Any) -> None:
        """Read all tensor arguments again if a reset evicted them from the device's caches."""

    def check_results(self, prepared: Any, op: ReplayOp) -> tuple[Assumption, ...]:
        """Call a user's function for the op once more, and return notes on its results.

        For ops without a user's function, return (). Raises NotReplayable if the function returns a different number of
        results than the op.
        """
        return ()

    def check_values(self, prepared: Any, op: ReplayOp) -> ValueCheck:
        """Call the op once, and compare its results with the recorded op's own implementation."""
        return ValueCheck(status="own")

    def profile(self, prepared: Any, op: ReplayOp) -> Profile:
        """Call the op once under a profiler. Raises RuntimeError if there is no working profiler."""
        raise NotImplementedError

    def for_sequences(self) -> SequenceParts:
        """Return the parts of this executor that are needed to run a sequence of ops."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the device."""

    def close(self) -> None:
        """Release all resources, and restore changed settings."""
