"""Which recorded calls a plan is about: those that own device time, leaves, outermost ops or all; and the filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from opreplay.replay.ir.labels import not_an_op
from opreplay.replay.ir.model import ReplayOp
from opreplay.traces.errors import UsageError
from opreplay.traces.links.annotations import PHASES, BatchContext, Phase
from opreplay.traces.links.parents import parents_of
from opreplay.traces.model import Trace

Select = Literal["owner", "leaf", "top", "all"]
SELECTIONS: tuple[Select, ...] = ("owner", "leaf", "top", "all")

Rows = npt.NDArray[np.int64]


class OpFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the selected ops are kept."""

    include: tuple[str, ...] = ()
    """Names or shell globs (`aten::*mm`); empty keeps all."""
    exclude: tuple[str, ...] = ()
    top: int | None = None
    """The n ops with most recorded time."""
    min_share: float | None = None
    """Least share of the recorded time, 0..1."""
    phase: Phase | None = None
    """Only calls in iterations of this phase; their counts and times are those of these calls."""


def keeps_name(filters: OpFilter, name: str) -> bool:
    """Whether include and exclude let an op of this name pass."""
    if filters.include and not any(fnmatchcase(name, pattern) for pattern in filters.include):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in filters.exclude)


def no_such_phase(contexts: Iterable[BatchContext], phase: Phase) -> UsageError:
    """The error for a phase that none of the iterations' batches is in; it names those that there are."""
    there = {context.phase for context in contexts}
    known = [one for one in PHASES if one in there]
    hint = "Inference servers mark iterations with their batch (execute_context_..., step[DECODE bs=8]); none is here."
    if known:
        hint = f"There are iterations of phase {', '.join(known)}."
    return UsageError(f"no selected op ran in an iteration of phase {phase}", hint=hint)


def keep_heaviest(
    ops: list[ReplayOp], filters: OpFilter, total_us: float, weight: Callable[[ReplayOp], float]
) -> list[ReplayOp]:
    """The ops that top and min_share let pass; `ops` are sorted by weight (microseconds), heaviest first."""
    if filters.min_share is not None:
        least = filters.min_share * total_us
        ops = [op for op in ops if weight(op) >= least]
    return ops if filters.top is None else ops[: filters.top]


def selected_rows(trace: Trace, select: str) -> Rows:
    """Rows of `trace.ops` that a plan is about, in file order. Raises UsageError for an unknown selection.

    "owner" means the outermost ops where no op owns device time, as in traces of a CPU run.
    """
    if select not in SELECTIONS:
        raise UsageError(f"no selection is called {select!r}", hint=f"Selections are {', '.join(SELECTIONS)}.")
    count = len(trace.ops)
    if select == "all":
        return np.arange(count, dtype=np.int64)
    if select == "owner":
        owners = np.unique(trace.kernels.owner[trace.kernels.owner >= 0]).astype(np.int64)
        if len(owners):
            return owners
    parents = parents_of(trace)
    if select == "leaf":
        has_child = np.zeros(count, dtype=bool)
        has_child[parents[parents >= 0]] = True
        return np.flatnonzero(~has_child)
    return outermost(trace, parents)


def outermost(trace: Trace, parents: Rows) -> Rows:
    """Ops with nothing but labels around them; labels themselves only where they hold no op."""
    is_label = np.array([_is_label(trace, i) for i in range(len(trace.signatures))], dtype=bool)
    label_row = is_label[trace.ops.signature] if len(trace.ops) else np.zeros(0, dtype=bool)
    inside = np.zeros(len(trace.ops), dtype=bool)
    above = parents.copy()
    while True:
        nested = above >= 0
        if not nested.any():
            break
        inside[nested] |= ~label_row[above[nested]]
        above[nested] = parents[above[nested]]
    return np.flatnonzero(~inside & ~label_row)


def _is_label(trace: Trace, index: int) -> bool:
    reason = not_an_op(trace.signatures[index])
    return reason is not None and reason.kind == "label, not an op"
