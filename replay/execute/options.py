# pyright: strict
"""Options of a run, of a measurement and of a worker; values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from opreplay.replay.ir.reasons import Reason
from opreplay.replay.plan.step.recency import Recency
from opreplay.replay.results.measurement import RunCache
from opreplay.replay.results.records import L2State
from opreplay.replay.results.resume import SHARE_TAKEN
from opreplay.traces.errors import UsageError

LIMIT_S = 60.0
"""Wall time of one op, set-up included, before its process is killed; more when `op_time_s` asks for more."""
LIMIT_PER_OP_TIME = 30.0
SHARE = 0.25
"""Of the time of a whole run, the most that one op may take: one that hangs took all of it."""


class MeasureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that decide when a measurement has enough samples."""

    op_time_s: float = 0.2
    """Wall time to spend on the samples of one op."""
    target_ci: float = 0.02
    """Stop when the 95 % interval of the median is within ± this share of it."""
    min_share: float = 0.25
    """Go on for this share of `op_time_s` even so: a machine may be fast or slow for some milliseconds."""
    min_samples: int = 8
    max_samples: int = 400
    warmup_calls: int = 2
    """Calls before the first sample; the first call of a kernel often compiles or allocates."""
    warmup_s: float = 0.01
    """Go on warming up until this much time has passed, at most `max_warmup_calls` calls."""
    max_warmup_calls: int = 50
    limit_s: float | None = None
    """Wall time after which an op is given up: calls that do not settle end before. None for a minute or thirty times
    `op_time_s`, whichever is more."""
    cache: RunCache = "cold"
    """Warm: one set of arguments again and again. Cold, as most ops in a model find it: each call finds its
    arguments outside the caches, by turns of copies or by a flush before each sample. Step: before each call its
    arguments are touched as long ago, in bytes of other memory, as in the recorded step; ops that it does not call are
    measured cold."""
    cuda_graph: bool = False
    """Whether ops that the device runs faster than the host launches them are captured in a graph."""
    check_kernels: bool = False
    """Whether one more call is profiled and held against what was recorded."""
    check_values: bool = False
    """Whether the results of one more call are held against those of the recorded op's own implementation."""

    def l2_state(self) -> Literal["cold", "warm", "sequence"]:
        """Return the cache state of the simulated device for predictions that accompany the measurement."""
        return "sequence" if self.cache == "step" else self.cache

    def hard_limit_s(self) -> float:
        """Return the seconds after which an op's process is killed."""
        return self.limit_s if self.limit_s is not None else max(LIMIT_S, LIMIT_PER_OP_TIME * self.op_time_s)


class RunOptions(MeasureOptions, frozen=True, kw_only=True):
    """Options for running a plan, each op measured by `MeasureOptions`; written to the result's header."""

    device: str = "cpu"
    seed: int = 0
    mode: Literal["unique", "sequence"] = "unique"
    """Each unique op by itself, or all calls of one recorded step in their order."""
    max_op_bytes: int | None = None
    """Inputs and outputs of one op together; None for half of the memory that is free at the start."""
    over_budget: Literal["shrink", "skip"] = "shrink"
    """What to do with an op that needs more: run it on fewer rows or slices where that can be done, or skip it."""
    visits: int | None = None
    """So many times each op is measured, far apart in the run, for its share of `op_time_s`: on a CPU that runs one op
    at a time. None for eight where fewer threads than torch's found processors idle at the start, else one: several
    tell changes apart on a busy machine that one cannot."""
    total_time_s: float | None = None
    """Wall time for the whole run; ops that come too late are skipped with that reason."""
    stop_on_error: bool = False
    """Whether the run ends behind the first op that fails; not for a sequence, whose ops have results together."""
    threads: int | None = None
    """Of torch on the CPU; None for its own choice, or fewer where processors are busy."""
    isolation: Literal["process", "none"] | None = None
    """Worker processes, or this process; None for workers, but where one op is measured in Python for this process."""
    executor: Literal["torch", "fake"] = "torch"
    allow_imports: dict[str, str] = {}
    """Namespace → module that may be imported because the user said so."""
    plugins: tuple[str, ...] = ()
    """Files and modules of the user's that register conversions, executors and initializers."""
    init_modules: tuple[str, ...] = ()
    """Files and modules with initializers of the user's."""
    init_args: tuple[str, ...] = ()
    """Settings of initializers, NAME.OPTION=VALUE."""
    values: str | None = None
    """A .safetensors file with real values for arguments of chosen ops."""
    check_work: bool = False
    """Whether results say how much work the values of the arguments cause."""
    lanes: int = 1
    """Ops that are measured at the same time, each in a process of its own; on the CPU with its share of processors."""
    shared_device: bool = False
    """Whether several lanes may use one accelerator."""
    ranks: int | None = None
    """Processes that collectives are replayed on; None leaves them out."""
    backend: Literal["gloo", "nccl", "hccl"] | None = None
    """Of torch.distributed; None for the device's own."""
    check_results: bool = True
    """Whether results of collectives are held against what the ranks handed in."""
    l2: L2State | None = None
    """What predictions beside the measurements take caches to hold; None for what `l2_state` says."""
    max_live_bytes: int | None = None
    """All tensors of a sequence together; None for half of the memory of the device that is free at the start."""

    def __post_init__(self) -> None:
        """Raise UsageError for a time below 0 and for a number of nothing: a run would do something else instead."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise UsageError(f"{name} is {value}", hint=f"It must be at least {least}.")

    def hard_limit_s(self) -> float:
        """Return the seconds as in `MeasureOptions`, but at most an op's share of the run's time, which is at least a
        second.
        """
        limit_s = MeasureOptions.hard_limit_s(self)
        if self.total_time_s is None or self.mode == "sequence":
            return limit_s
        return min(limit_s, max(SHARE * self.total_time_s, 1.0, 5 * self.op_time_s))

    def late(self, limit_s: float) -> Reason:
        """Return why an op was stopped after `limit_s`: its own limit, or its share of the run's time."""
        if self.total_time_s is not None and limit_s < MeasureOptions.hard_limit_s(self):
            return Reason("out of time", f"{SHARE_TAKEN} {limit_s:g} s, its share of the run's time (--set total_time)")
        return Reason("budget", f"time: no result after {limit_s:g} s (--set op_limit)")


_LEAST = {
    **dict.fromkeys(("op_time_s", "limit_s", "total_time_s"), 0),
    **dict.fromkeys(("min_samples", "max_samples", "visits", "threads", "lanes", "ranks"), 1),
}
"""Options with a least value."""


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, tag="config"):
    """Everything that a worker needs before its first op."""

    options: RunOptions = RunOptions()
    """Those of the run, with the device of this worker."""
    memory_bytes: int
    """For each op; see `RunOptions.max_op_bytes`."""
    keep_freed: bool = True
    """Whether freed memory is kept for the next call; in a sequence the C library does what it does in a model."""
    recency: dict[str, Recency] = {}
    """Of the ops that the recorded step calls, by id, where caches are to be as they are in it."""
    cpus: tuple[int, ...] = ()
    """Processors that this worker keeps to; all that it is given where empty."""

    @property
    def shrink_to(self) -> int | None:
        """Byte limit to which an op is made smaller; None if it is skipped instead."""
        return self.memory_bytes if self.options.over_budget == "shrink" else None

    def having(self, **changes: Any) -> WorkerConfig:
        """Return the configuration with other run options."""
        return msgspec.structs.replace(self, options=msgspec.structs.replace(self.options, **changes))

    def settled(self, facts: Mapping[str, object]) -> WorkerConfig:
        """Return the configuration for the run's next process, with the thread count that the first process chose
        (`facts`).
        """
        threads = facts.get("threads")
        return self.having(threads=threads) if isinstance(threads, int) else self
