"""What a run says to the process that replays a sequence, and what it answers; knows no torch and no process."""

from __future__ import annotations

import msgspec

from opreplay.replay.executors.base import Measurement
from opreplay.replay.ir import Assumption, Reason, ReplayOp


class SequenceTask(msgspec.Struct, frozen=True, kw_only=True, tag="sequence task"):
    """A sequence to replay."""

    ops: tuple[ReplayOp, ...]
    calls: tuple[int, ...]
    """Index into `ops` of each call, in order."""
    memories: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    """See `opreplay.replay.ir.RecordedSequence.memories`."""
    budget_bytes: int | None = None
    """For all tensors together; None for half of what is free on the device."""
    time_s: float
    """Wall time for the passes that count; there is at least one."""
    left_s: float | None = None
    """Wall time after which it is broken off between two calls, whatever is on; None for as long as it takes."""
    heartbeat: str
    """Path of a file into which the process writes which op it is at."""
    own: tuple[str, ...] = ()
    """Ids of ops that get no tensor of another one, since they ended a process with them."""


class PassDone(msgspec.Struct, frozen=True, kw_only=True, tag="pass"):
    """Told after each pass."""

    passes: int
    spent_s: float
    time_s: float


class OpTimes(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one op in all passes."""

    measurement: Measurement
    initializer: str
    assumptions: tuple[Assumption, ...]


class Tensors(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tensor arguments of the calls came from, and what all of them took."""

    recorded: int = 0
    """Arguments whose memory was recorded; what the others are is inferred."""
    results: int = 0
    """Arguments that were a result of an earlier call."""
    views: int = 0
    """Arguments that were such a result with another shape."""
    outside_arguments: int = 0
    """Arguments that were a tensor from outside."""
    remade: int = 0
    """Arguments made anew for their call."""
    outside: int = 0
    """Tensors from outside, each with memory of its own."""
    recycled: int = 0
    """Further ones that lay in the memory of others."""
    refilled: int = 0
    """Results of a pass that were not finite, and were filled anew after their call."""
    peak_bytes: int = 0
    budget_bytes: int = 0


class SequenceOutcome(msgspec.Struct, frozen=True, kw_only=True, tag="sequence outcome"):
    """What became of a sequence."""

    times: dict[str, OpTimes]
    """By id of the op."""
    reasons: dict[str, Reason]
    """Of ops that could not be replayed in it."""
    calls: int
    """Of the ops in `times`."""
    sums_us: tuple[float, ...] = ()
    """Of each pass, all its calls."""
    walls_us: tuple[float, ...] = ()
    """Of each pass, what happens between the calls included."""
    tensors: Tensors = Tensors()
