# pyright: strict
"""Group the ops of two traces by name if their shapes differ, e.g. if jagged tensors change shape in every step."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.results.compare.judge import Comparison, OpComparison, is_within, unclear
from opreplay.replay.results.compare.per_step import reconcile_verdict

ALONE = ("only before", "only after")


class OpGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One row: a single op, or all ops of one name, combined over their shapes."""

    op: OpComparison
    shapes: tuple[OpComparison, ...] = ()
    """The shapes that the row combines, largest change first; empty for a single op."""


def by_name(comparison: Comparison) -> list[OpGroup]:
    """Return the ops of two traces as rows, largest change first, with shapes of the same op combined.

    All shapes of an op are combined if each side has shapes that the other side lacks. Otherwise, only the shapes that
    one side lacks are combined. In a comparison not of two traces, each op is a separate row.
    """
    if comparison.paired is None:
        return [OpGroup(op=op) for op in comparison.ops]
    first, second = ({op.name for op in comparison.of(verdict)} for verdict in ALONE)
    groups: dict[tuple[str, str], list[OpComparison]] = {}
    for op in comparison.ops:
        if op.name in first & second:
            key = op.name, "differing shapes"
        else:
            key = op.name, op.verdict if op.verdict in ALONE else op.id
        groups.setdefault(key, []).append(op)
    rows = [
        OpGroup(op=ops[0]) if len(ops) == 1 else OpGroup(op=_together(ops, comparison), shapes=tuple(ops))
        for ops in groups.values()
    ]
    return sorted(rows, key=lambda row: -row.op.weight_us)


def _together(ops: Sequence[OpComparison], comparison: Comparison) -> OpComparison:
    """Combine all shapes of an op into one; its times are per step."""
    was, now = (sum(getattr(op, f"{which}_step_us") or 0.0 for op in ops) for which in ("before", "after"))
    calls = [sum(getattr(op, f"{which}_calls") or 0.0 for op in ops) for which in ("before", "after")]
    shapes = [sum(bool(getattr(op, f"{which}_calls")) for op in ops) for which in ("before", "after")]
    whole = OpComparison(
        id="",
        name=ops[0].name,
        inputs=f"{shapes[0]} → {shapes[1]} shapes" if all(shapes) else f"{max(shapes)} shapes",
        count=sum(op.count for op in ops),
        verdict="same",
        before_step_us=was,
        after_step_us=now,
        before_calls=calls[0],
        after_calls=calls[1],
        step_change_us=now - was,
    )
    if not was or not now:
        return msgspec.structs.replace(whole, verdict="only before" if was else "only after")
    ratio = now / was / (comparison.shared or 1.0)
    whole = msgspec.structs.replace(whole, ratio=ratio)
    if any(side.clock == "host" for side in comparison.sides or ()):
        return unclear(whole, "shapes differ, and single calls on a host clock do not show how much times vary")
    if is_within(ratio, comparison.applied):
        return whole
    judged = msgspec.structs.replace(whole, verdict="slower" if ratio > 1.0 else "faster")
    return reconcile_verdict(judged, comparison.applied)
