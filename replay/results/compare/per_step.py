# pyright: strict
"""Compare two traces step by step: each op's time per step, with verdicts that agree with the change of this time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from opreplay.replay.results.compare.judge import OpComparison, is_within, unclear
from opreplay.replay.results.compare.replaced import StepCall
from opreplay.traces.links.steps import PairedBy
from opreplay.traces.sums import summed

Calls = tuple[StepCall, ...]
"""Calls of one step, in order."""
_NONE = (0.0, 0.0)


class PerStep(msgspec.Struct, frozen=True, kw_only=True):
    """Time (µs) and number of calls per step of each op in two traces, by op id, averaged over the compared steps.

    Recordings without steps may have different lengths. For them, an op's time on both sides is the median time of a
    call multiplied by the number of calls in the first recording.
    """

    paired: PairedBy
    before: dict[str, tuple[float, float]]
    after: dict[str, tuple[float, float]]
    typical: tuple[Calls, Calls]
    """Calls of one typical step on each side: the pair with the median change, or the steps of median length."""

    @classmethod
    def of(cls, paired: PairedBy, before: Sequence[Calls], after: Sequence[Calls]) -> PerStep:
        """Return the means over the compared steps."""
        return cls(
            paired=paired,
            before=_mean_of_steps(before),
            after=_mean_of_steps(after),
            typical=_typical_steps(paired, before, after),
        )

    def with_calls(self, op: OpComparison) -> OpComparison:
        """Return the op with the ratio of its typical calls multiplied by the change in calls per step."""
        (_, was), (_, now) = self.before.get(op.id, _NONE), self.after.get(op.id, _NONE)
        if self.paired == "whole" or op.ratio is None or not was or not now or was == now:
            return op
        low, high = (None if bound is None else bound * now / was for bound in (op.low, op.high))
        return msgspec.structs.replace(op, ratio=op.ratio * now / was, low=low, high=high)

    def judged(self, ops: Sequence[OpComparison], applied: float, shared: float) -> list[OpComparison]:
        """Return the ops that take time in the compared steps. If a verdict contradicts the change of the op's time per
        step, it becomes "unclear".
        """
        return [
            self._judged(op, applied, shared)
            for op in ops
            if self.before.get(op.id, _NONE)[0] or self.after.get(op.id, _NONE)[0]
        ]

    def _judged(self, op: OpComparison, applied: float, shared: float) -> OpComparison:
        (was_us, was), (now_us, now) = self.before.get(op.id, _NONE), self.after.get(op.id, _NONE)
        op = msgspec.structs.replace(
            op,
            before_step_us=was_us,
            after_step_us=now_us,
            before_calls=was,
            after_calls=now,
            step_change_us=now_us - was_us,
        )
        if not was_us or not now_us:
            ran = msgspec.structs.replace(op, ratio=None, low=None, high=None)
            return msgspec.structs.replace(ran, verdict="only before" if was_us else "only after") if op.ratio else ran
        if op.ratio is None:
            return op
        ratio, typical = now_us / was_us / shared, op.ratio
        low, high = (None if bound is None else bound * ratio / typical for bound in (op.low, op.high))
        return reconcile_verdict(msgspec.structs.replace(op, ratio=ratio, low=low, high=high), applied)


def reconcile_verdict(op: OpComparison, applied: float) -> OpComparison:
    """Return the op as "unclear" if its verdict contradicts the change of its time per step; otherwise unchanged.

    The verdict is about typical calls, the time per step about the sum of all calls. The op is also "unclear" if it
    counts as slower or faster but its interval includes 1. This can happen because the interval is scaled to all calls.
    """
    change, ratio = op.step_change_us or 0.0, op.ratio or 1.0
    beyond = not is_within(ratio, applied)
    signs = {
        "slower": beyond and change > 0 and ratio > 1,
        "faster": beyond and change < 0 and ratio < 1,
        "same": not beyond,
    }
    if not signs.get(op.verdict, True):
        return unclear(op, "a typical call changed differently from the sum of calls per step")
    if op.verdict in ("slower", "faster") and op.low is not None and op.high is not None and op.low <= 1.0 <= op.high:
        return unclear(op, "the change of a step is within the errors of the two sides")
    return op


def _mean_of_steps(steps: Sequence[Calls]) -> dict[str, tuple[float, float]]:
    us = summed((call.id, call.us) for step in steps for call in step)
    calls = Counter(call.id for step in steps for call in step)
    return {id_: (us[id_] / len(steps), calls[id_] / len(steps)) for id_ in calls}


def _typical_steps(paired: PairedBy, before: Sequence[Calls], after: Sequence[Calls]) -> tuple[Calls, Calls]:
    if paired == "number":
        pairs = sorted(zip(before, after, strict=True), key=lambda pair: _us(pair[1]) - _us(pair[0]))
        return pairs[(len(pairs) - 1) // 2]
    was, now = sorted(before, key=_us), sorted(after, key=_us)
    return was[(len(was) - 1) // 2], now[(len(now) - 1) // 2]


def _us(step: Calls) -> float:
    return sum(call.us for call in step)
