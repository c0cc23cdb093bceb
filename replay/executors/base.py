"""The small protocol that every back-end implements; the fake one ships with the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from opreplay.replay.ir import Assumption, Reason, RecordedKernel, ReplayOp
from opreplay.replay.warnings import MeasureWarning
from opreplay.replay.work.amounts import Work

if TYPE_CHECKING:
    from opreplay.replay.gauge import Gauge
    from opreplay.replay.sequence.parts import SequenceParts

CacheState = Literal["cold", "warm"]
"""Whether an op finds its arguments in the device's caches, as in a loop, or not, as most of them in a model."""
MeasuredCache = Literal["cold", "warm", "sequence"]
"""The same of a measurement; in a sequence an op finds what the ops before it left."""


class NotReplayable(Exception):
    """Stops one op, never the run; carries the reason that the result shows."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Budgets that hold for each op."""

    memory_bytes: int
    """Inputs, outputs and expected workspace together."""
    time_s: float = 10.0
    """Wall time of one op, set-up included."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one replayed op, in microseconds a call, overhead of the clock subtracted."""

    median_us: float
    iqr_us: float
    min_us: float
    max_us: float
    samples: int
    calls_per_sample: int
    ci_low_us: float
    ci_high_us: float
    """Order-statistic 95 % confidence interval of the median."""
    warnings: tuple[MeasureWarning | str, ...] = ()
    """Text in files of schema 1."""
    part: float = 1.0
    """Share of the op's work that ran; the times are what that part took, divided by it."""
    deciles_us: tuple[float, ...] = ()
    """Quantiles 0, 0.1, ..., 1 of the samples."""
    outliers: int = 0
    """Samples more than three times the distance of the quartiles above the upper one; they count like all others."""
    cache: MeasuredCache = "warm"
    host_us: float | None = None
    """What the host needs to launch a call; None where that is a part of the call's time."""
    graph: bool = False
    """Whether the calls of a sample were launched together, as a captured graph."""
    gauge_us: tuple[float, float] | None = None
    """Time of a fixed piece of work on the same device, read beside the samples: medians of their first and second
    half."""
    relative: float | None = None
    """Median over the samples of the time over the root of the gauge readings around it (`measure.against_gauge`): only
    its ratio to that of another run means something. None where the device has no gauge."""
    relative_error: float | None = None
    """Standard error of the logarithm of `relative`, from batch means; None with fewer than 16 samples."""
    median_error: float | None = None
    """The same of `median_us`."""
    first_call_us: float | None = None
    """What the very first call took, which may compile, tune or load; never a part of the other times, but for one with
    the warning "first call"."""
    repeated: int = 0
    """Samples that were taken again, since another program had the processor meanwhile; in none of the times."""
    threads: int | None = None
    """Threads that an op could use on the CPU; None elsewhere and in older files."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What one call launched."""

    kernels: tuple[RecordedKernel, ...] = ()
    children: tuple[str, ...] = ()
    """Names of the ops right below the op, in order."""
    has_device: bool = False
    """Whether the executor's device runs kernels at all."""


class Interruptions(NamedTuple):
    """Since the process started; zeros where the system does not say."""

    count: int = 0
    """Times that a thread of this process was switched out against its will."""
    waited_us: float = 0.0
    """What the calling thread waited for a processor, ready to run."""
    used_us: float | None = None
    """Processor time of the calling thread; None where the work is done elsewhere."""

    def waited_since(self, before: Interruptions, took_us: float) -> float:
        """Of `took_us` of wall time after `before`, what was spent waiting for a processor.

        Readings are taken outside of what is timed, and switches are most likely right then: the thread has not waited
        longer than it did not compute.
        """
        idle_us = took_us - ((self.used_us or 0.0) - (before.used_us or 0.0))
        return max(0.0, min(self.waited_us - before.waited_us, idle_us))


class Clock(Protocol):
    """Measures batches of calls; a device has the clock that fits it."""

    @property
    def resolution_us(self) -> float:
        """Smallest difference of two readings that is not zero."""
        ...

    @property
    def max_calls(self) -> int:
        """Most calls that one batch may hold."""
        ...

    def time_calls(self, call: Callable[[], Any], calls: int) -> float:
        """Microseconds that `calls` calls in a row take together, the clock's own overhead subtracted."""
        ...

    def time_each(self, calls: Sequence[Callable[[], Any]]) -> float:
        """The same for different calls, one after the other."""
        ...

    def launch_us(self, call: Callable[[], Any], calls: int) -> float | None:
        """Microseconds of the host per call to queue a batch of `calls`; None where the host does the work itself."""
        ...

    def now_s(self) -> float:
        """Wall time in seconds, for budgets."""
        ...

    def interruptions(self) -> Interruptions:
        """How often other programs have taken the processor so far."""
        ...


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
