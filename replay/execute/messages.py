# pyright: strict
"""Messages between a run and its worker processes. They do not depend on torch or on how processes are started."""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.replay.collectives.mapping import Share
from opreplay.replay.execute.options import MeasureOptions, WorkerConfig
from opreplay.replay.execute.visits import WHOLE, Visit
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.results.outcome import Outcome
from opreplay.replay.results.records import Tensors
from opreplay.traces.errors import EnvironmentRefused, OpReplayError, UsageError


class SequenceTask(msgspec.Struct, frozen=True, kw_only=True, tag="sequence task"):
    """A sequence to replay."""

    ops: tuple[ReplayOp, ...]
    calls: tuple[int, ...]
    """Index into `ops` for each call, in order."""
    memories: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    """For each call, the memory numbers of its tensors, as in `RecordedSequence.memories`."""
    budget_bytes: int | None = None
    """Memory limit for all tensors of the sequence together; None for half of the free device memory."""
    time_s: float
    """Wall time for the measured passes; at least one pass is run."""
    left_s: float | None = None
    """Wall time after which the sequence is stopped as soon as a call ends; None for no limit."""
    heartbeat: str
    """Path of the file in which the process records its current op."""
    unshared: tuple[str, ...] = ()
    """Ids of ops that get their own tensors, because they killed a process while sharing tensors with other ops."""


class PassDone(msgspec.Struct, frozen=True, kw_only=True, tag="pass"):
    """Progress message sent after each pass through the sequence."""

    passes: int
    spent_s: float
    time_s: float


class SequenceOutcome(msgspec.Struct, frozen=True, kw_only=True, tag="sequence outcome"):
    """Outcome of replaying a sequence."""

    outcomes: dict[str, Outcome] = {}
    """Op id → outcome; ops without a finished pass are missing."""
    calls: int = 0
    """Number of calls of the replayed ops."""
    sums_us: tuple[float, ...] = ()
    """Per pass: sum of the times of all calls, in µs."""
    walls_us: tuple[float, ...] = ()
    """Per pass: wall time in µs, including the time between calls."""
    tensors: Tensors = Tensors()


class SharedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A collective in a step that is replayed on all ranks."""

    op: int
    """Index of the collective among the step's distinct collectives."""
    share: Share
    at: int
    """Index of the call before which the collective starts. It is the number of calls if the collective starts after
    all of them.
    """
    wait: int
    at_once: bool
    """Whether the collective is waited for right after its start."""


class SharedStep(msgspec.Struct, frozen=True, kw_only=True, tag="shared step"):
    """A step that is replayed on all ranks: its calls and its collectives."""

    config: WorkerConfig
    task: SequenceTask
    collectives: tuple[SharedCall, ...]
    """Collectives in the order of their starts."""


class SharedPasses(msgspec.Struct, kw_only=True):
    """Times of the passes of a shared step on one rank: one entry per pass, in microseconds."""

    in_flight_us: list[float] = []
    """Time during which at least one collective was running."""
    hidden_us: list[float] = []
    """Time during which a collective was running and no call waited for it."""
    waited_us: list[float] = []
    """Time during which calls waited for a collective."""
    alone_sums_us: list[float] = []
    """Time of all calls in a pass without collectives."""
    alone_walls_us: list[float] = []
    collectives_alone_us: list[float] = []
    """Wall time of a pass that runs only the collectives, one after the other."""


class SharedStepOutcome(msgspec.Struct, frozen=True, kw_only=True, tag="shared step outcome"):
    """Outcome of a shared step on one rank."""

    reason: Reason | None = None
    """Reason of the failure."""
    raised: dict[int, Reason] = {}
    """Op index → error of a call that raised."""
    calls: SequenceOutcome = SequenceOutcome()
    """Outcome of the calls, from passes with collectives."""
    collectives: tuple[RankReply, ...] = ()
    """Times of each distinct collective, from its start to its end."""
    passes: SharedPasses = msgspec.field(default_factory=SharedPasses)
    unseen: int = 0
    """Number of collectives whose end is noticed only when they are waited for."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Message that the worker's device is available and its libraries are loaded."""

    facts: dict[str, object]


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Message that the worker cannot work at all, e.g. because the device is missing."""

    message: str
    hint: str
    exit_code: int

    @classmethod
    def of(cls, error: OpReplayError) -> Refused:
        """Return the message that reports an error of this process to the parent process."""
        return cls(message=error.problem, hint=error.hint, exit_code=error.exit_code)

    def error(self) -> OpReplayError:
        """Return the error to raise in the receiving process."""
        kind = UsageError if self.exit_code == UsageError.exit_code else EnvironmentRefused
        return kind(self.message, hint=self.hint)


class Task(msgspec.Struct, frozen=True, kw_only=True, tag="task"):
    """One op to replay."""

    op: ReplayOp
    visit: Visit = WHOLE


Backend = Literal["gloo", "nccl", "hccl"]


def backend_of(device: str) -> Backend:
    """Return the torch.distributed back-end for a device."""
    kind = device.partition(":")[0]
    return "nccl" if kind == "cuda" else "hccl" if kind == "npu" else "gloo"


class RankConfig(msgspec.Struct, frozen=True, kw_only=True, tag="rank config"):
    """Everything that a rank's process needs before its first collective."""

    rank: int
    world: int
    backend: Backend
    device: str
    """Device, e.g. "cpu" or "cuda:1"."""
    store: str
    """Rendezvous of the ranks: path of a shared file, or host:port of a TCP store."""
    prefix: str = ""
    """Prefix of the keys in a TCP store."""
    threads: int = 1
    memory_bytes: int
    """Memory for this rank's buffers."""
    measure: MeasureOptions
    check: bool = True


class RankTask(msgspec.Struct, frozen=True, kw_only=True, tag="rank task"):
    """One collective to run, the same for all ranks."""

    share: Share


class RankReply(msgspec.Struct, frozen=True, kw_only=True, tag="rank reply"):
    """One rank's result of one collective; times in microseconds per call."""

    number: int = 0
    """Index of the collective among the step's distinct collectives."""
    rank: int
    took_part: bool = True
    reason: Reason | None = None
    """Reason of the failure."""
    samples_us: tuple[float, ...] = ()
    """Time per call in each sample, in order."""
    calls: int = 1
    """Number of calls per sample."""
    first_us: float | None = None
    issue_us: tuple[float, ...] = ()
    arrived_ns: tuple[int, ...] = ()
    """Start of each time-stamped call, in ns on this host's monotonic clock."""
    done_ns: tuple[int, ...] = ()
    host: str = ""
    """Id of the host with this monotonic clock."""
    wrong: str | None = None
    """Error found by the check of results; "" if there is none, None without a check."""
    assumed: str = ""
    """Differences from the recorded call, such as another dtype."""


Reply = Ready | Refused | Outcome | PassDone | SequenceOutcome | RankReply | SharedStepOutcome
