# pyright: strict
"""Messages between a run and the process that replays a sequence; independent of torch and processes."""

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
    """Index into `ops` of each call, in order."""
    memories: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    """See `opreplay.replay.ir.model.RecordedSequence.memories`."""
    budget_bytes: int | None = None
    """For all tensors together; None for half of what is free on the device."""
    time_s: float
    """Wall time for the passes that count; there is at least one."""
    left_s: float | None = None
    """Wall time after which it is broken off between two calls, whatever is on; None for as long as it takes."""
    heartbeat: str
    """Path of a file into which the process writes which op it is at."""
    unshared: tuple[str, ...] = ()
    """Ids of ops that get no tensor of another one, since they ended a process with them."""


class PassDone(msgspec.Struct, frozen=True, kw_only=True, tag="pass"):
    """Progress message sent after each pass."""

    passes: int
    spent_s: float
    time_s: float


class SequenceOutcome(msgspec.Struct, frozen=True, kw_only=True, tag="sequence outcome"):
    """The outcome of a sequence."""

    outcomes: dict[str, Outcome] = {}
    """By id of the op; none of one that no pass was over for."""
    calls: int = 0
    """Of the ops that were replayed."""
    sums_us: tuple[float, ...] = ()
    """Of each pass, all its calls."""
    walls_us: tuple[float, ...] = ()
    """Of each pass, what happens between the calls included."""
    tensors: Tensors = Tensors()


class SharedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A collective in a step that all ranks run."""

    op: int
    """Which of the step's distinct collectives."""
    share: Share
    at: int
    """Place of the call before which it is asked for; as many as there are calls: after the last."""
    wait: int
    at_once: bool
    """Whether it is waited for before anything else is asked for."""


class SharedStep(msgspec.Struct, frozen=True, kw_only=True, tag="shared step"):
    """A sequence that all ranks replay, with its collectives."""

    config: WorkerConfig
    task: SequenceTask
    collectives: tuple[SharedCall, ...]
    """As they are asked for."""


class SharedPasses(msgspec.Struct, kw_only=True):
    """Times of the passes of a shared step on one rank, in microseconds."""

    in_flight_us: list[float] = []
    """In which at least one collective was on."""
    hidden_us: list[float] = []
    """Of it, in which nothing waited for one."""
    waited_us: list[float] = []
    """In which the calls waited for one."""
    alone_sums_us: list[float] = []
    """Of passes without collectives, all calls."""
    alone_walls_us: list[float] = []
    collectives_alone_us: list[float] = []
    """Of passes without calls: one collective after the other."""


class SharedStepOutcome(msgspec.Struct, frozen=True, kw_only=True, tag="shared step outcome"):
    """The outcome of a shared step on one rank."""

    reason: Reason | None = None
    """Why it could not."""
    raised: dict[int, Reason] = {}
    """By index of the op in the task: calls that raised once they had run."""
    calls: SequenceOutcome = SequenceOutcome()
    """Of passes with the collectives beside the calls."""
    collectives: tuple[RankReply, ...] = ()
    """Of each distinct one, from being asked for to its end."""
    passes: SharedPasses = msgspec.field(default_factory=SharedPasses)
    unseen: int = 0
    """Collectives of a pass whose end is only seen when they are waited for."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The worker's device is available and the libraries are loaded."""

    facts: dict[str, object]


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The worker cannot work at all, e.g. because the device is missing."""

    message: str
    hint: str
    exit_code: int

    @classmethod
    def of(cls, error: OpReplayError) -> Refused:
        """Return the message that reports an error raised here to the other process."""
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
    """Return the back-end for a device."""
    kind = device.partition(":")[0]
    return "nccl" if kind == "cuda" else "hccl" if kind == "npu" else "gloo"


class RankConfig(msgspec.Struct, frozen=True, kw_only=True, tag="rank config"):
    """Everything that a rank's process needs before its first collective."""

    rank: int
    world: int
    backend: Backend
    device: str
    """"cpu", or "cuda:1", ..."""
    store: str
    """Where the ranks find each other: path of a file that they share, or host:port of a TCP store."""
    prefix: str = ""
    """Of the keys in a TCP store."""
    threads: int = 1
    memory_bytes: int
    """For the buffers of this rank."""
    measure: MeasureOptions
    check: bool = True


class RankTask(msgspec.Struct, frozen=True, kw_only=True, tag="rank task"):
    """One collective to run, the same for all ranks."""

    share: Share


class RankReply(msgspec.Struct, frozen=True, kw_only=True, tag="rank reply"):
    """One rank's result of one collective; times in microseconds per call."""

    number: int = 0
    """Which of the distinct collectives of a step."""
    rank: int
    took_part: bool = True
    reason: Reason | None = None
    """Why it could not."""
    samples_us: tuple[float, ...] = ()
    """Of each sample the time of one call, in order."""
    calls: int = 1
    """In a sample."""
    first_us: float | None = None
    issue_us: tuple[float, ...] = ()
    arrived_ns: tuple[int, ...] = ()
    """On this host's monotonic clock, of each stamped call: when it began."""
    done_ns: tuple[int, ...] = ()
    host: str = ""
    """Which clock these are of."""
    wrong: str | None = None
    """What a check found, "" for nothing; None where nothing was checked."""
    assumed: str = ""
    """What differs in the call, such as another dtype."""


Reply = Ready | Refused | Outcome | PassDone | SequenceOutcome | RankReply | SharedStepOutcome
