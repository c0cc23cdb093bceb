# pyright: strict
"""Selects the recorded calls of a plan (ops with device time, leaves, outermost ops or all) and applies filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from shlex import quote
from typing import Literal

import numpy as np

from opreplay.replay.ir.labels import not_an_op
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.plan.selection import OpFilter
from opreplay.traces.arrays import Bools, Ints, distinct
from opreplay.traces.errors import UsageError
from opreplay.traces.links.annotations import PHASES, BatchContext, Phase
from opreplay.traces.links.autocast import autocast_wrappers
from opreplay.traces.links.parents import among_or_inside, innermost_parent
from opreplay.traces.model import Trace
from opreplay.traces.names import plural

Select = Literal["owner", "leaf", "top", "all"]
SELECTIONS: tuple[Select, ...] = ("owner", "leaf", "top", "all")

Rows = Ints


def keeps_name(filters: OpFilter, name: str) -> bool:
    """Check whether the include and exclude patterns keep an op of this name."""
    if filters.include and not any(fnmatchcase(name, pattern) for pattern in filters.include):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in filters.exclude)


def unmatched(filters: OpFilter, names: Iterable[str]) -> tuple[str, ...]:
    """Return the include and exclude options whose pattern matches none of the names."""
    distinct = set(names)
    given = [("--include", pattern) for pattern in filters.include]
    given += [("--exclude", pattern) for pattern in filters.exclude]
    return tuple(
        f"{option} {quote(pattern)}"
        for option, pattern in given
        if not any(fnmatchcase(name, pattern) for name in distinct)
    )


def no_such_phase(contexts: Iterable[BatchContext], phase: Phase) -> UsageError:
    """Return the error for a phase that no iteration has; it lists the phases that exist."""
    there = {context.phase for context in contexts}
    known = [name for name in PHASES if name in there]
    hint = (
        "Inference servers mark iterations with their batch (execute_context_..., step[DECODE bs=8]); "
        "this trace has no such marks."
    )
    if known:
        hint = f"There are iterations of phase {', '.join(known)}."
    return UsageError(f"no selected op ran in an iteration of phase {phase}", hint=hint)


def keep_heaviest(
    ops: list[ReplayOp], filters: OpFilter, total_us: float, weight: Callable[[ReplayOp], float]
) -> list[ReplayOp]:
    """Return the ops that pass `top` and `min_share`; `ops` are sorted by weight (microseconds), heaviest first."""
    if filters.min_share is not None:
        least_us = filters.min_share * total_us
        ops = [op for op in ops if weight(op) >= least_us]
    ops = ops if filters.top is None else ops[: filters.top]
    if not filters.ops or not ops:
        return ops
    ids = {op.id for wanted in filters.ops for op in select_ops(ops, wanted)}
    return [op for op in ops if op.id in ids]


def _at_place(ops: Sequence[ReplayOp], digits: str, wanted: str) -> ReplayOp:
    place = int(digits) if digits.isdecimal() and len(digits) < 7 else 0
    if not 1 <= place <= len(ops):
        fits = f"The selection contains {plural(len(ops), 'op')}, #1 to #{len(ops)}."
        raise UsageError(
            f"no op matches {wanted!r}", hint=fits if ops else "The plan contains no ops: try --select all."
        )
    return ops[place - 1]


def select_ops(ops: Sequence[ReplayOp], wanted: str) -> list[ReplayOp]:
    """Return the ops that `wanted` selects, in their order.

    `wanted` is a name, a glob, the start of an id, or "#4" for the fourth op. Raises UsageError with the nearest names
    if no op is selected.
    """
    if match := _PLACE.fullmatch(wanted):
        return [_at_place(ops, match[1], wanted)]
    matches = [op for op in ops if op.name == wanted]
    matches = matches or [op for op in ops if fnmatchcase(op.name, wanted) or (op.id.startswith(wanted) and wanted)]
    if not matches:
        raise UsageError(f"no selected op matches {wanted!r}", hint=nearest((wanted,), [op.name for op in ops]))
    return matches


_PLACE = re.compile(r"#(.*)")


def nearest(patterns: Sequence[str], names: Sequence[str]) -> str:
    """Return a hint that lists the names closest to the patterns, and the heaviest names. `names` must be sorted,
    heaviest first.
    """
    distinct = list(dict.fromkeys(names))
    if not distinct:
        return "The selection contains no ops: try --select all."
    bare = [pattern.rpartition("::")[2].strip("*?[]") for pattern in patterns]
    bases = {name.rpartition("::")[2]: name for name in reversed(distinct)}
    like = [name for word in bare if word for name in distinct if word in name]
    like += [bases[base] for word in bare for base in get_close_matches(word, bases, n=NEAREST, cutoff=0.5)]
    shown = sorted(list(dict.fromkeys(like))[:NEAREST], key=distinct.index)
    heaviest = f"The heaviest ops are {', '.join(distinct[:NEAREST])}."
    return f"The nearest names are {', '.join(shown)}. {heaviest}" if shown else heaviest


NEAREST = 6
"""Maximum number of names in a hint."""


def nothing_left(
    names: Sequence[str], *, recorded: Sequence[str] = (), include: Sequence[str], select: str, narrows: bool
) -> UsageError:
    """Return the error for a selection that keeps no op.

    `names` are the names before the filters were applied; `recorded` holds all recorded names.
    """
    if include:
        hint = _left_out(set(recorded) - set(names), include, select) or _one_by_one("--include", include)
        message = f"no selected op matches {' or '.join(map(repr, include))}"
        return UsageError(message, hint=hint or nearest(include, names))
    what = "the filters remove all" if narrows else f"none is selected by {select}"
    return UsageError(f"no op is left: of {len(set(names))} names, {what}", hint=nearest((), names))


def refuse_lists(patterns: Sequence[str], recorded: Sequence[str]) -> None:
    """Raise UsageError for a pattern of --exclude that is a comma-separated list of names. Such a pattern matches
    nothing.
    """
    lists = [one for one in patterns if "," in one and not any(fnmatchcase(name, one) for name in recorded)]
    if lists:
        raise UsageError(
            f"no op matches {lists[0]!r}, which is read as one pattern", hint=_one_by_one("--exclude", lists)
        )


def _left_out(names: Iterable[str], include: Sequence[str], select: str) -> str:
    """Return a hint that the patterns match ops that are recorded but not selected; "" if they match no such op."""
    there = sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in include))
    if not there:
        return ""
    listed = ", ".join(there[:NEAREST])
    return f"Recorded, but left out by --select {select}: {listed}. --select all takes every recorded op."


def _one_by_one(option: str, patterns: Sequence[str]) -> str:
    """Return a hint to repeat the option, if one of the patterns is a list with commas; otherwise ""."""
    parts = [part.strip() for pattern in patterns if "," in pattern for part in pattern.split(",") if part.strip()]
    return f"Repeat the option: {' '.join(f'{option} {quote(part)}' for part in parts)}." if parts else ""


def refuse_nothing(plan: ReplayPlan) -> None:
    """Raise UsageError for a plan of a trace that recorded no work. There is nothing to measure in it."""
    if plan.ops or plan.device_us_total > 0:
        return
    raise UsageError(
        f"{plan.source} records no op",
        hint=(
            "With a schedule, the profiler records only active steps. Without repeat, new wait and "
            "warm-up steps follow, and an export during them is empty. Set repeat=1, or export in on_trace_ready."
        ),
    )


def selected_rows(trace: Trace, select: str) -> Rows:
    """Return the rows of `trace.ops` that a selection keeps, in file order.

    If no op has device time, as in traces of a CPU run, "owner" selects the outermost ops. Raises UsageError for an
    unknown selection.
    """
    if select not in SELECTIONS:
        raise UsageError(f"unknown selection {select!r}", hint=f"Selections are {', '.join(SELECTIONS)}.")
    count = len(trace.ops)
    if select == "all":
        return np.arange(count, dtype=np.int64)
    if select == "owner":
        owners = distinct(trace.kernels.owner[trace.kernels.owner >= 0]).astype(np.int64)
        if len(owners):
            return owners
    parents = innermost_parent(trace.ops)
    if select == "leaf":
        has_child = np.zeros(count, dtype=bool)
        has_child[parents[parents >= 0]] = True
        return np.flatnonzero(~has_child)
    return outermost(trace, parents)


def outermost(trace: Trace, parents: Rows) -> Rows:
    """Return the outermost ops, without labels and autocast wrappers. An op that is nested only in labels and autocast
    wrappers counts as outermost.
    """
    opened = opened_rows(trace, parents)
    return np.flatnonzero(~inside_ops(parents, opened) & ~opened)


def outermost_us(trace: Trace) -> float:
    """Return the host time of all outermost events, including labels, in microseconds."""
    return float(trace.ops.dur_ns[innermost_parent(trace.ops) < 0].sum(dtype=np.int64)) / 1e3


def opened_rows(trace: Trace, parents: Rows) -> Bools:
    """Return a mask of transparent rows: labels, and calls that autocast wraps. The rows inside them count instead."""
    return label_rows(trace) | autocast_wrappers(trace, parents)


def label_rows(trace: Trace) -> Bools:
    """Return a mask of the rows of `trace.ops` that are labels, not ops."""
    is_label = np.array([_is_label(trace, i) for i in range(len(trace.signatures))], dtype=bool)
    return is_label[trace.ops.signature] if len(trace.ops) else np.zeros(0, dtype=bool)


def inside_ops(parents: Rows, opened: Bools) -> Bools:
    """Return a mask of rows nested, at any depth, in an op that is not transparent (`opened`, see `opened_rows`)."""
    return (parents >= 0) & among_or_inside(parents, ~opened)[parents] if len(parents) else ~opened


def _is_label(trace: Trace, index: int) -> bool:
    reason = not_an_op(trace.signatures[index])
    return reason is not None and reason.kind == "label, not an op"
