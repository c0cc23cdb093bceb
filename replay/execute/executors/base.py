# pyright: strict
"""The small protocol that every back-end implements; the fake one ships with the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

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


class Prepared(Protocol):
    """An op that is ready to be called."""

    @property
    def call(self) -> Callable[[], Any]:
        """Calls the op once, without waiting for the device."""
        ...

    @property
    def max_calls(self) -> int | None:
        """Most calls in a row before `Executor.reset`, for an op that writes to its arguments; None for others."""
        ...

    @property
    def argument_bytes(self) -> int:
        """Memory behind the tensor arguments; 0 where there are none."""
        ...

    @property
    def first_call_us(self) -> float | None:
        """Host time of the first call where preparing the op made it; None where it is still to come."""
        ...

    def copies(self, count: int) -> Sequence[Callable[[], Any]]:
        """`call` and up to `count` - 1 more like it, each with memory of its own; fewer where memory is short."""
        ...

    @property
    def initializer(self) -> str | None: ...

    @property
    def filling(self) -> Filling | None: ...

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What was assumed while the arguments were made, beyond the assumptions of the plan."""
        ...

    @property
    def work(self) -> Work | None:
        """What the values of the arguments make the op do; None where that was not asked, or shapes alone decide."""
        ...


class Executor(Protocol):
    """Prepares, runs and closes; never prints."""

    @property
    def device(self) -> str:
        """ "cpu", "cuda:0", "npu:0"."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def threads(self) -> int | None:
        """Threads that an op may use on the host; None on an accelerator."""
        ...

    def use_threads(self, count: int) -> None:
        """Let ops use so many threads of the host from now on."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Size of the device's last cache; 0 where it has none or its size is not known."""
        ...

    @property
    def evicted_bytes(self) -> int:
        """How much of it `evict` fills, at most all."""
        ...

    @property
    def gauge(self) -> Gauge | None:
        """The fixed piece of work that tells how fast the device is now."""
        ...

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], Any] | None:
        """Something that launches all these calls at once; None where the device has no such thing.

        Raises RuntimeError for calls that cannot be captured.
        """
        ...

    def evict(self) -> None:
        """Push the arguments of ops out of the device's caches."""
        ...

    def as_in_step(self, prepared: Any, recency: Recency) -> Callable[[], None] | None:
        """What leaves each argument as far from the caches as a step does, called before each call; None where that
        cannot be had here."""
        ...

    def facts(self) -> dict[str, object]:
        """Versions and device for the result's header; no host names, paths or secrets."""
        ...

    def prepare(self, op: ReplayOp, *, seed: int) -> Prepared:
        """Allocate and fill the arguments of `op`. Raises `NotReplayable` with a reason."""
        ...

    def run(self, prepared: Any) -> Any:
        """Call the op once and return its outputs, without waiting for the device."""
        ...

    def reset(self, prepared: Any) -> None:
        """Give arguments that the op writes to their first values again."""
        ...

    def check_values(self, prepared: Any, op: ReplayOp) -> ValueCheck:
        """Call the op once, and hold its results against those of the recorded op's own implementation."""
        ...

    def profile(self, prepared: Any, op: ReplayOp) -> Profile:
        """Call the op once under a profiler. Raises RuntimeError where that cannot be had."""
        ...

    def for_sequences(self) -> SequenceParts:
        """What a sequence of ops needs of this executor."""
        ...

    def synchronize(self) -> None:
        """Wait for the device."""
        ...

    def close(self) -> None: ...
