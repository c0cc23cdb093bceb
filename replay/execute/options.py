# pyright: strict
"""Options of a run, of a measurement and of a worker. Contains only values."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import msgspec

from opreplay.replay.ir.reasons import SHARE_TAKEN, Reason
from opreplay.replay.plan.step.recency import Recency
from opreplay.replay.results.measurement import RunCache
from opreplay.replay.results.records import L2State
from opreplay.traces.errors import UsageError

LIMIT_S = 60.0
"""Wall time, in seconds, after which the process of an op is killed. It includes set-up, and is longer if `op_time_s`
is long.
"""
LIMIT_PER_OP_TIME = 30.0
SHARE = 0.25
"""Maximum share of a run's time that one op may take. A hanging op can therefore not use all of it."""


class MeasureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that decide when a measurement has enough samples."""

    op_time_s: float = 0.2
    """Wall time to spend on the samples of one op."""
    target_ci: float = 0.02
    """Stop when the 95 % interval of the median is within ± this share of the median."""
    min_share: float = 0.25
    """Minimum share of `op_time_s` to measure. A machine may be fast or slow for some milliseconds."""
    min_samples: int = 8
    max_samples: int = 400
    warmup_calls: int = 2
    """Number of calls before the first sample. A kernel's first call often compiles or allocates."""
    warmup_s: float = 0.01
    """Minimum warm-up time, unless `max_warmup_calls` calls take less."""
    max_warmup_calls: int = 50
    limit_s: float | None = None
    """Time limit of one op, in seconds. None stands for a minute or thirty times `op_time_s`, whichever is more.

    Warm-up ends before this limit, even if the times of its calls still vary.
    """
    cache: RunCache = "cold"
    """Cache state at the start of a call.

    "warm": one set of arguments is reused. "cold": arguments are not in the caches, because copies alternate or caches
    are flushed before each sample. "step": before each call, other memory is accessed as in the recorded step. With
    "step", ops outside the step are measured cold.
    """
    cuda_graph: bool = False
    """Whether to capture ops as a graph if launching takes the host longer than the device computes."""
    check_kernels: bool = False
    """Whether to profile one more call and compare its kernels with the recording."""
    check_values: bool = False
    """Whether to compare the results of one more call with the recorded op's own implementation."""

    def l2_state(self) -> Literal["cold", "warm", "sequence"]:
        """Return the L2 state to assume when times are predicted for comparison with the measurement."""
        return "sequence" if self.cache == "step" else self.cache

    def hard_limit_s(self) -> float:
        """Return the seconds after which an op's process is killed."""
        return self.limit_s if self.limit_s is not None else max(LIMIT_S, LIMIT_PER_OP_TIME * self.op_time_s)


class RunOptions(MeasureOptions, frozen=True, kw_only=True):
    """Options of a run; they are stored in the header of the results."""

    device: str = "cpu"
    seed: int = 0
    mode: Literal["unique", "sequence"] = "unique"
    """Whether to replay each unique op by itself, or all calls of one recorded step in order."""
    max_op_bytes: int | None = None
    """Memory limit in bytes for an op's inputs and outputs; None for half of the free memory at the start."""
    over_budget: Literal["shrink", "skip"] = "shrink"
    """What to do with an op over the memory limit: run it on fewer rows or slices if possible, or skip it."""
    visits: int | None = None
    """Number of rounds in which each op is measured, some seconds apart. The rounds share `op_time_s`.

    Several rounds are possible only on a CPU, one op at a time. None stands for eight rounds on a busy machine, where
    several rounds reveal smaller changes, and for one round otherwise.
    """
    total_time_s: float | None = None
    """Wall time of the whole run, after which the remaining ops are skipped."""
    stop_on_error: bool = False
    """Whether the run ends after the first failed op. Not allowed for a sequence."""
    threads: int | None = None
    """Number of torch threads on the CPU. None: torch's default number, or fewer if CPUs are busy."""
    isolation: Literal["process", "none"] | None = None
    """Whether to run ops in worker processes or in this process.

    None stands for workers, except for a single op measured from Python.
    """
    executor: Literal["torch", "fake"] = "torch"
    allow_imports: dict[str, str] = {}
    """Namespace → module whose import the user allowed."""
    plugins: tuple[str, ...] = ()
    """The user's plugin files and modules."""
    init_modules: tuple[str, ...] = ()
    """The user's files and modules with initializers."""
    init_args: tuple[str, ...] = ()
    """Settings of initializers in the form NAME.OPTION=VALUE."""
    values: str | None = None
    """A .safetensors file with values for arguments of some ops."""
    check_work: bool = False
    """Whether to count the work that argument values cause."""
    lanes: int = 1
    """Number of ops measured at the same time, each in its own process.

    On the CPU, each process gets a share of the processors.
    """
    shared_device: bool = False
    """Whether several workers may use one accelerator."""
    ranks: int | None = None
    """Number of processes for collectives; None skips collectives."""
    backend: Literal["gloo", "nccl", "hccl"] | None = None
    """Backend of torch.distributed; None for the device's default."""
    check_results: bool = True
    """Whether to check the results of collectives against the ranks' inputs."""
    l2: L2State | None = None
    """Cache state to assume in predictions; None for the state that `l2_state` returns."""
    max_live_bytes: int | None = None
    """Memory limit of all tensors of a sequence; None for half of the free device memory at the start."""

    def __post_init__(self) -> None:
        """Raise UsageError for negative times, for counts below one and for unknown values of a choice."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, (int, str)) and isinstance(value, numbers.Real):  # perhaps one of numpy
                number = int(value) if isinstance(value, numbers.Integral) else float(value)
                msgspec.structs.force_setattr(self, name, number)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and value >= least):
                raise UsageError(f"{name} is {value}", hint=f"It must be a number of at least {least}.")
        for name, choices in _choices().items():
            value = getattr(self, name)
            if value not in choices:
                named = ", ".join(map(repr, choices))
                raise UsageError(f"{name} is {value!r}", hint=f"Choose one of {named}.")

    def hard_limit_s(self) -> float:
        """Return an op's time limit in seconds: at most its share of the run's time, but at least one second."""
        limit_s = MeasureOptions.hard_limit_s(self)
        if self.total_time_s is None or self.mode == "sequence":
            return limit_s
        return min(limit_s, max(SHARE * self.total_time_s, 1.0, 5 * self.op_time_s))

    def late(self, limit_s: float) -> Reason:
        """Return why an op was stopped after `limit_s`. The reason is the op's own limit, or its share of the run's
        time.
        """
        if self.total_time_s is not None and limit_s < MeasureOptions.hard_limit_s(self):
            return Reason("out of time", f"{SHARE_TAKEN} {limit_s:g} s, its share of the run's time (--set total_time)")
        return Reason("budget", f"time: no result after {limit_s:g} s (--set op_limit)")


_LEAST = {
    **dict.fromkeys(("op_time_s", "limit_s", "total_time_s"), 0),
    **dict.fromkeys(("min_samples", "max_samples", "visits", "threads", "lanes", "ranks"), 1),
}
"""Option → minimum value."""


@cache
def _choices() -> dict[str, tuple[str | None, ...]]:
    """Map each option that accepts only certain values to these values."""
    literals = msgspec.inspect.LiteralType
    found: dict[str, tuple[str | None, ...]] = {}
    for field in msgspec.structs.fields(RunOptions):
        kind = msgspec.inspect.type_info(field.type)
        kinds = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
        values = [value for one in kinds if isinstance(one, literals) for value in one.values]
        if values:
            found[field.name] = (
                *map(str, values),
                *([None] if any(isinstance(one, msgspec.inspect.NoneType) for one in kinds) else []),
            )
    return found


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, tag="config"):
    """Everything that a worker needs before its first op."""

    options: RunOptions = msgspec.field(default_factory=RunOptions)
    """Options of the run, with this worker's device."""
    memory_bytes: int
    """Memory limit per op in bytes; see `RunOptions.max_op_bytes`."""
    keep_freed: bool = True
    """Whether the C library keeps freed memory for the next call.

    It is False in a sequence, where memory should be managed as in a model.
    """
    recency: dict[str, Recency] = {}
    """Reuse distances of each op in the recorded step, by op id. They are needed to restore the caches of the step."""
    cpus: tuple[int, ...] = ()
    """Processors of this worker; empty for all available ones."""

    @property
    def shrink_to(self) -> int | None:
        """Byte limit to which larger ops are shrunk; None if larger ops are skipped."""
        return self.memory_bytes if self.options.over_budget == "shrink" else None

    def having(self, **changes: Any) -> WorkerConfig:
        """Return the configuration with changed run options."""
        return msgspec.structs.replace(self, options=msgspec.structs.replace(self.options, **changes))

    def with_chosen_threads(self, facts: Mapping[str, object]) -> WorkerConfig:
        """Return the configuration for the next process, with the thread count that the run's first process chose.

        `facts` are those of the first process.
        """
        threads = facts.get("threads")
        return self.having(threads=threads) if isinstance(threads, int) else self
