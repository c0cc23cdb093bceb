"""Add argument metadata to the ops of a trace from an ExecutionTrace of the same run.

This module decides which ops correspond and what is copied. `align` aligns the sequences.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from opreplay.traces.arrays import Bools, Ints
from opreplay.traces.dtypes import torch_dtype_name
from opreplay.traces.errors import UsageError
from opreplay.traces.joins.align import Aligner
from opreplay.traces.model import MetadataLevel, OpSignature, OpTable, ShapeJoin, TensorMemories, Trace
from opreplay.traces.names import printable

Rows = Ints
_AMBIGUOUS = -2
_LISTS = ("TensorList", "OptionalTensorList")
_LEAST_AGREEING = 0.9
"""Minimum share of ids in both files that must have equal names. Below it, the ids are from different runs."""


def join_shapes(trace: Trace, donor: Trace) -> Trace:
    """Return the trace with signatures completed from `donor`, an ExecutionTrace; `info.joined` counts ops by evidence.

    Ops are matched by the best evidence available. The best is an equal record function id with an equal name. The
    second is a run of ops with the same names in both files; each iteration of the trace is looked up in the donor. The
    last is the names of the op, the previous op and the next op, if the donor has only one signature for them. Metadata
    of the trace itself is kept. If it contradicts the donor, nothing is copied. Raises UsageError if the donor is not
    an ExecutionTrace or records no arguments.
    """
    if donor.info.dialect != "execution_trace":
        raise UsageError(
            f"{donor.info.path} is not an ExecutionTrace but a {donor.info.dialect} trace",
            hint="Use the file that torch.profiler.ExecutionTraceObserver wrote in the same run.",
        )
    if donor.info.metadata_level == "none":
        raise UsageError(f"{donor.info.path} records no arguments", hint="It cannot provide shapes for another trace.")
    match = np.full(len(trace.ops), -1, np.int64)
    by_id = _match_ids(trace, donor, match)
    by_sequence, by_context = _match_names(trace, donor, match)
    return _Joiner(trace=trace, donor=donor).join(match, by_id, by_sequence, by_context)


def _match_ids(trace: Trace, donor: Trace, match: Rows) -> Bools:
    """Fill `match` (row of the trace → row of the donor) by record function id; return a mask of the matched rows."""
    none = np.zeros(len(match), dtype=bool)
    ours, theirs = trace.ops.record_function_id, donor.ops.record_function_id
    if ours is None or theirs is None or not len(theirs):
        return none
    unique, first, count = np.unique(theirs, return_index=True, return_counts=True)
    at = np.minimum(np.searchsorted(unique, ours), len(unique) - 1)
    same_id = (unique[at] == ours) & (ours >= 0) & (count[at] == 1)
    tokens, donor_tokens = _tokens(trace, donor)
    same = same_id & (tokens == donor_tokens[first[at]])
    if np.count_nonzero(same) < _LEAST_AGREEING * max(1, np.count_nonzero(same_id)):
        return none
    match[same] = first[at[same]]
    return same


def _tokens(trace: Trace, donor: Trace) -> tuple[Rows, Rows]:
    """Return the token of each row of the trace and of the donor; tokens are numbers that are equal for equal names."""
    numbers: dict[str, int] = {}
    out = []
    for side in (trace, donor):
        by_signature = [numbers.setdefault(signature.name, len(numbers)) for signature in side.signatures]
        out.append(np.array(by_signature, dtype=np.int64)[side.ops.signature])
    return out[0], out[1]


def _sequences(ops: OpTable) -> list[Rows]:
    """Return the rows of each track in order; an enclosing op comes before the ops inside it."""
    if ops.parent is None:
        order = np.lexsort((-ops.dur_ns.astype(np.int64), ops.start_ns, ops.track))
    else:
        order = _preorder(ops.parent)
        order = order[np.argsort(ops.track[order], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(ops.track[order])) + 1) if len(order) else []


def _preorder(parent: Rows) -> Rows:
    """Return the rows of a forest in preorder, with siblings in table order."""
    children: dict[int, list[int]] = {}
    for row, above in enumerate(parent.tolist()):
        children.setdefault(above, []).append(row)
    order, stack = [], children.get(-1, [])[::-1]
    while stack:
        row = stack.pop()
        order.append(row)
        stack.extend(reversed(children.get(row, ())))
    return np.array(order, dtype=np.int64)


def _match_names(trace: Trace, donor: Trace, match: Rows) -> tuple[Bools, Bools]:
    """Match the remaining ops by runs of equal names, then by the names of their neighbours; write the rows into
    `match`.

    Return two masks: the rows matched by runs, and the rows matched by neighbours.
    """
    tokens, donor_tokens = _tokens(trace, donor)
    donor_rows, short = [], []
    for number, rows in enumerate(_sequences(donor.ops)):
        donor_rows += [rows, np.array([-1])]
        short += [donor_tokens[rows], np.array([-1 - number])]
    if not donor_rows:
        return match == _AMBIGUOUS, match == _AMBIGUOUS
    places = np.concatenate(donor_rows)
    flat = np.concatenate(short)
    aligner = Aligner(flat)
    signature_at = np.where(places >= 0, donor.ops.signature[places].astype(np.int64), -1)
    by_name = np.full(len(match), -1, np.int64)
    sequences = _sequences(trace.ops)
    for rows in sequences:
        for run in aligner.runs(tokens[rows]):
            first = run.places[0]
            agreed = np.ones(run.length, dtype=bool)
            for other in run.places[1:]:
                agreed &= signature_at[first : first + run.length] == signature_at[other : other + run.length]
            target = rows[run.start : run.start + run.length]
            by_name[target[agreed]] = places[first : first + run.length][agreed]
    by_sequence = (match < 0) & (by_name >= 0)
    match[by_sequence] = by_name[by_sequence]
    by_context = _match_neighbours([tokens[rows] for rows in sequences], sequences, flat, places, signature_at, match)
    return by_sequence, by_context


def _match_neighbours(
    sequences: list[Rows], rows: list[Rows], short: Rows, places: Rows, signature_at: Rows, match: Rows
) -> Bools:
    """Match ops by (previous name, name, next name) if the donor has only one signature for that triple."""
    known: dict[tuple[int, int, int], int] = {}
    for at, key in enumerate(_triples(short)):
        before = known.setdefault(key, at)
        if before >= 0 and signature_at[before] != signature_at[at]:
            known[key] = _AMBIGUOUS
    filled = np.zeros(len(match), dtype=bool)
    for tokens, sequence in zip(sequences, rows, strict=True):
        for key, row in zip(_triples(tokens), sequence.tolist(), strict=True):
            at = known.get(key, -1)
            if match[row] < 0 and at >= 0 and places[at] >= 0:
                match[row] = places[at]
                filled[row] = True
    return filled


def _triples(tokens: Rows) -> zip[tuple[int, int, int]]:
    """Yield (previous, current, next) for each token; -1 before the first and after the last token."""
    values = tokens.tolist()
    return zip([-1, *values[:-1]], values, [*values[1:], -1], strict=True)


class _Joiner(msgspec.Struct, kw_only=True):
    """Builds the joined trace and counts matches."""

    trace: Trace
    donor: Trace
    signatures: dict[OpSignature, int] = msgspec.field(default_factory=dict[OpSignature, int])

    def join(
        self,
        match: Rows,
        by_id: Bools,
        by_sequence: Bools,
        by_context: Bools,
    ) -> Trace:
        """Return the joined trace, with one merged signature for each distinct pair of a trace's and a donor's
        signature.
        """
        ours = self.trace.ops.signature.astype(np.int64)
        theirs = np.where(match >= 0, self.donor.ops.signature[match].astype(np.int64), -1)
        pairs, first, inverse = np.unique(
            np.stack([ours, theirs], axis=1), axis=0, return_index=True, return_inverse=True
        )
        merged = np.zeros(len(pairs), dtype=np.uint32)
        outcomes = np.zeros(len(pairs), dtype="U16")
        for index in np.argsort(first).tolist():  # new signatures are numbered in the order of the table
            signature, outcomes[index] = self._merge(*pairs[index].tolist())
            merged[index] = self.signatures.setdefault(signature, len(self.signatures))
        inverse = inverse.reshape(-1)
        outcome = outcomes[inverse]
        counts = Counter(outcome.tolist())
        is_given = outcome == "given"
        info = msgspec.structs.replace(
            self.trace.info,
            metadata_level=self._level(),
            joined=ShapeJoin(
                donor=printable(self.donor.info.path),
                same_process=self._same_process(),
                by_record_function_id=int(np.count_nonzero(is_given & by_id)),
                by_sequence=int(np.count_nonzero(is_given & by_sequence)),
                by_context=int(np.count_nonzero(is_given & by_context)),
                already_recorded=counts["already recorded"] + counts["disagreeing"],
                disagreeing=counts["disagreeing"],
                no_arguments=counts["no arguments"],
                unmatched=counts["unmatched"],
            ),
        )
        return msgspec.structs.replace(
            self.trace,
            info=info,
            signatures=tuple(self.signatures),
            ops=msgspec.structs.replace(
                self.trace.ops, signature=merged[inverse], memories=self._memories(match, by_id | by_sequence)
            ),
        )

    def _memories(self, match: Rows, same_call: Bools) -> TensorMemories | None:
        """Return the memories of tensors, for calls that the donor recorded, too.

        They are unknown for calls to which only a similar call of the donor was matched.
        """
        known = self.donor.ops.memories
        return None if known is None else known.of_calls(np.where(same_call, match, -1))

    def _merge(self, ours: int, theirs: int) -> tuple[OpSignature, str]:
        signature = self.trace.signatures[ours]
        other = self.donor.signatures[theirs] if theirs >= 0 else None
        if signature.dims is None:
            if other is None:
                return signature, "unmatched"
            return (other, "given") if other.dims is not None else (signature, "no arguments")
        if other is None or other.dims is None:
            return signature, "already recorded"
        completed = _complete(signature, other)
        return (completed, "already recorded") if completed is not None else (signature, "disagreeing")

    def _level(self) -> MetadataLevel:
        if any(signature.strides for signature in self.signatures):
            return "full"
        return "dims+concrete" if any(signature.concrete for signature in self.signatures) else "dims"

    def _same_process(self) -> bool:
        return bool({pid for pid, _ in self.trace.tracks} & {pid for pid, _ in self.donor.tracks})


def _complete(ours: OpSignature, other: OpSignature) -> OpSignature | None:
    """Return our signature completed with metadata that only the donor has; None if the two signatures contradict each
    other.

    Kineto leaves some arguments blank and records only their type: a `Tensor?[]`, a string, or a list of more than 30
    tensors. Such an argument is copied from the donor as a whole.
    """
    blank = _left_blank(ours, other)
    if blank is None:
        return None

    def pick(mine: tuple[Any, ...] | None, theirs: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if mine is None or theirs is None:
            return theirs if mine is None else mine
        return tuple(b if skip else a for a, b, skip in zip(mine, theirs, blank, strict=True))

    concrete = ours.concrete or other.concrete
    if ours.concrete is not None and other.concrete is not None:
        concrete = tuple(a or b for a, b in zip(ours.concrete, other.concrete, strict=True))
    return replace(
        ours,
        dims=pick(ours.dims, other.dims),
        types=pick(ours.types, other.types),
        strides=pick(ours.strides, other.strides),
        concrete=concrete,
        overload=other.overload,
        results=other.results,
        list_types=other.list_types,
        storage=other.storage,
    )


def _left_blank(ours: OpSignature, other: OpSignature) -> list[bool] | None:
    """Return a mask of the arguments that our signature leaves blank; None if any other arguments differ."""
    columns = [column for column in (ours.dims, other.dims, ours.types, other.types) if column is not None]
    if len(columns) < 4 or len(set(map(len, columns))) > 1:
        return None
    rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True))
    blank = [dims == () and (type_ == "" or (type_ in _LISTS and theirs in _LISTS)) for dims, _, type_, theirs in rows]
    differ = (a != b or _kind(c) != _kind(d) for a, b, c, d in rows)
    return blank if all(skip or not differs for skip, differs in zip(blank, differ, strict=True)) else None


def _kind(recorded: str) -> str:
    """Return the type of an argument; a dtype gets the same name for all torch builds."""
    return torch_dtype_name(recorded) or recorded
