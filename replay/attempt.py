"""One op from preparation to outcome: whatever it raises becomes a reason; owns no process and no time limit."""

from __future__ import annotations

import warnings
from typing import Literal

import msgspec

from opreplay.replay.executors.base import Executor, Measurement, NotReplayable
from opreplay.replay.ir import Assumption, Reason, ReplayOp
from opreplay.replay.measure import MeasureOptions, measure
from opreplay.replay.work.amounts import Work
from opreplay.traces.errors import OpReplayError, PolicyError

DETAIL_CHARS = 300
"""Errors of torch can be pages long; a reason is one line."""
MEMORY_SIGNS = ("can't allocate memory", "out of memory", "bad_alloc", "not enough memory", "unable to mmap")
"""What torch, oneDNN and the C++ library say when an allocation fails."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """What became of one op."""

    status: Literal["replayed", "skipped", "failed"]
    reason: Reason | None = None
    measurement: Measurement | None = None
    initializer: str | None = None
    assumptions: tuple[Assumption, ...] = ()
    work: Work | None = None


def attempt(executor: Executor, op: ReplayOp, *, seed: int, options: MeasureOptions) -> Outcome:
    """Prepare and measure one op. Raises nothing but what is meant to end the run (KeyboardInterrupt, SystemExit)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            prepared = executor.prepare(op, seed=seed)
            measurement = measure(executor, prepared, options)
        except NotReplayable as stopped:
            return unable(stopped.reason)
        except PolicyError as refused:
            return unable(Reason("policy", str(refused)))
        except OpReplayError as error:
            return unable(Reason("failed", str(error)))
        except Exception as error:
            return unable(reason_for(error))
    return Outcome(
        status="replayed",
        measurement=measurement,
        initializer=prepared.initializer,
        assumptions=prepared.assumptions,
        work=prepared.work,
    )


def unable(reason: Reason) -> Outcome:
    """The outcome of an op that was not replayed."""
    return Outcome(status=reason.status, reason=reason)


def reason_for(error: Exception) -> Reason:
    """Budget for memory that could not be had, else failed with the type and the first line of the error."""
    text = str(error)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")[:DETAIL_CHARS]
    if isinstance(error, MemoryError) or any(sign in text for sign in MEMORY_SIGNS):
        return Reason("budget", f"memory: {line or 'an allocation failed'} (--max-op-memory)")
    return Reason("failed", f"{type(error).__name__}: {line}" if line else type(error).__name__)
