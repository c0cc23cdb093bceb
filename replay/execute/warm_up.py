# pyright: strict
"""Calls before the first sample, until times have settled: what a first call sets up is never measured if a second call
can be had; owns no clock and no sample."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from opreplay.replay.results.measurement import MeasureWarning

if TYPE_CHECKING:
    from opreplay.replay.execute.executors.base import Executor, Prepared
    from opreplay.replay.execute.options import MeasureOptions

SETTLED = 0.75
"""Two calls one after the other have settled where the shorter takes at least this share of the longer."""
SECOND_SHARE = 0.9
"""A second call is made where two as long as the first take at most this share of the op's time limit."""
SETTLING_SHARE = 1.0 / 3.0
"""Share of the op's time limit after which no further call waits for times to settle."""


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls before the first sample took, in microseconds and in order; at least one."""

    took_us: tuple[float, ...]
    waited_us: tuple[float, ...]
    """Of that, what the calling thread waited for a processor that another program had."""
    imported: bool = False
    """Whether modules were imported during the first call, which is set-up and no part of the op."""

    @property
    def call_us(self) -> float:
        """The least time of a call."""
        return min(self.took_us)

    @property
    def settled_us(self) -> tuple[float, ...]:
        """The calls since times changed last, without the first one; that one where it is alone."""
        return self.took_us[self._settled_from :] or self.took_us

    @property
    def _settled_from(self) -> int:
        return max((i for i in range(1, len(self.took_us)) if not alike(*self.took_us[i - 1 : i + 1])), default=1)

    @property
    def waited_share(self) -> float:
        """Of the time of `settled_us`, what the thread waited for a processor."""
        waited_us = self.waited_us[self._settled_from :] or self.waited_us
        return min(1.0, sum(waited_us) / max(sum(self.settled_us), 1e-9))

    @property
    def warnings(self) -> tuple[MeasureWarning, ...]:
        """Why these calls alone are a bad measurement."""
        if len(self.took_us) == 1:
            return (MeasureWarning(kind="first call", data={"first_s": self.took_us[0] * 1e-6}),)
        before_us, last_us = self.took_us[-2:]
        if alike(before_us, last_us):
            return ()
        return (MeasureWarning(kind="not settled", data={"before_us": before_us, "last_us": last_us}),)


def warm_up(executor: Executor, prepared: Prepared, options: MeasureOptions) -> WarmUp:
    """Call until caches, allocators, compilers and tuners are done, or the time for that is."""
    clock = executor.clock
    started = clock.now_s()
    took_us: list[float] = []
    waited_us: list[float] = []
    modules = len(sys.modules)
    imported = False
    while True:
        at = clock.interruptions()
        took_us.append(clock.time_calls(prepared.call, 1))
        waited_us.append(clock.interruptions().waited_since(at, took_us[-1]))
        executor.reset(prepared)
        imported = imported or (len(took_us) == 1 and len(sys.modules) > modules)
        if _over(took_us, clock.now_s() - started, options, imported=imported):
            return WarmUp(took_us=tuple(took_us), waited_us=tuple(waited_us), imported=imported)


def alike(before_us: float, after_us: float) -> bool:
    """Whether neither of two calls did something that the other had not to do."""
    return min(before_us, after_us) >= SETTLED * max(before_us, after_us)


def _over(took_us: Sequence[float], spent_s: float, options: MeasureOptions, *, imported: bool) -> bool:
    if len(took_us) == 1:
        # How long a first call took that imported modules says nothing about the second.
        return (1.0 if imported else 2.0) * spent_s > SECOND_SHARE * options.hard_limit_s()
    if len(took_us) >= options.max_warmup_calls:
        return True
    if not alike(took_us[-2], took_us[-1]) and max(took_us[-2:]) * 1e-6 > options.warmup_s:
        return spent_s >= SETTLING_SHARE * options.hard_limit_s()
    after_s = sum(took_us[1:]) * 1e-6
    return after_s >= options.op_time_s or (len(took_us) >= options.warmup_calls and after_s >= options.warmup_s)
