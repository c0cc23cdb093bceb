# pyright: strict
"""The small protocol that every back-end implements; the fake one ships with the package."""

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
    """What one call launched."""

    kernels: tuple[RecordedKernel, ...] = ()
    children: tuple[str, ...] = ()
    """Names of the ops right below the op, in order."""
    below: tuple[str, ...] | None = None
    """Names of all ops below the op, each before those that it calls; None where they are not known."""
    has_device: bool = False
    """Whether the executor's device runs kernels at all."""


class Prepared:
    """An op that is ready to be called."""

    call: Callable[[], Any]
    """Calls the op once, without waiting for the device."""
    argument_bytes = 0
    """Memory behind the tensor arguments; 0 where there are none."""
    max_calls: int | None = None
    """Most calls in a row before `Executor.reset`; None where calls need no reset between them."""
    time_goes_by_values = False
    """Whether the op may take another time with the values that it has written: those of users and vendors may."""
    first_call_us: float | None = None
    """Host time of the first call where preparing the op made it; None where it is still to come."""
    initializer: str | None = None
    filling: Filling | None = None
    assumptions: tuple[Assumption, ...] = ()
    """What was assumed while the arguments were made, beyond the assumptions of the plan."""
    work: Work | None = None
    """What the values of the arguments make the op do; None where that was not asked, or shapes alone decide."""

    def copies(self, count: int) -> Sequence[Callable[[], Any]]:
        """`call` and up to `count` - 1 more like it, each with memory of its own; fewer where memory is short."""
        raise NotImplementedError


class Executor:
    """Prepares, runs and closes; never prints. What is not said here is that of a device without caches and threads."""

    device: str
    """"cpu", "cuda:0", "npu:0"."""
    clock: Clock
    cache_bytes = 0
    """Size of the device's last cache; 0 where it has none or its size is not known."""
    evicted_bytes = 0
    """How much of it `evict` fills, at most all."""
    gauge: Gauge | None = None
    """The fixed piece of work that tells how fast the device is now."""

    @property
    def threads(self) -> int | None:
        """Threads that an op may use on the host; None on an accelerator."""
        return None

    def use_threads(self, count: int) -> None:
        """Let ops use so many threads of the host from now on."""

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], Any] | None:
        """Something that launches all these calls at once; None where the device has no such thing.

        Raises RuntimeError for calls that cannot be captured.
        """
        return None

    def evict(self) -> None:
        """Push the arguments of ops out of the device's caches."""

    def as_in_step(self, prepared: Any, recency: Recency) -> Callable[[], None] | None:
        """What leaves each argument as far from the caches as a step does, called before each call; None where that
        cannot be had here."""
        return None

    def facts(self) -> dict[str, object]:
        """Versions and device for the result's header; no host names, paths or secrets."""
        return {"device": self.device}

    def prepare(self, op: ReplayOp, *, seed: int) -> Prepared:
        """Allocate and fill the arguments of `op`. Raises `NotReplayable` with a reason."""
        raise NotImplementedError

    def random_numbers(self, op: ReplayOp) -> tuple[str, ...]:
        """Return the names of a library op's tensors that hold random whole numbers, for want of an initializer."""
        return ()

    def run(self, prepared: Any) -> Any:
        """Call the op once and return its outputs, without waiting for the device."""
        return prepared.call()

    def reset(self, prepared: Any) -> None:
        """Restore the first values of arguments that the op writes to, where calling it again would change them."""
        raise NotImplementedError

    def touch(self, prepared: Any) -> None:
        """Read all tensor arguments again where a reset pushed them out of the device's caches."""

    def check_results(self, prepared: Any, op: ReplayOp) -> tuple[Assumption, ...]:
        """Call what a user registered for the op once more, and return what to say of its results; () for other ops.

        Raises NotReplayable where it returns another number of results than the op has.
        """
        return ()

    def check_values(self, prepared: Any, op: ReplayOp) -> ValueCheck:
        """Call the op once, and hold its results against those of the recorded op's own implementation."""
        return ValueCheck(status="own")

    def profile(self, prepared: Any, op: ReplayOp) -> Profile:
        """Call the op once under a profiler. Raises RuntimeError where that cannot be had."""
        raise NotImplementedError

    def for_sequences(self) -> SequenceParts:
        """What a sequence of ops needs of this executor."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the device."""

    def close(self) -> None:
        """Give back what is held, and settings their old values."""
