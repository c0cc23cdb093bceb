# pyright: strict
"""Guesses for the embedding ops of recommendation models: widths of tables, and sizes that older traces do not record.

`ops.tables` describes these ops.
"""

from __future__ import annotations

import math

from opreplay.replay.ir.call import Call
from opreplay.replay.resolve.guess.values import Context, Guess, Rule, Shape, first_tensor_of, first_tensors
from opreplay.traces.model import TensorMeta

WIDTHS = (128, 64, 32, 16, 8, 4, 2, 1)
"""Usual widths of embedding rows, tried in this order."""
ROW_BYTES = 4
"""The number of elements in each row of fbgemm's tables is a multiple of this."""
_WEIGHTS = ("dev_weights", "uvm_weights", "host_weights", "weights")
_ROWS = ("momentum1_dev", "momentum1_uvm", "momentum1_host")


def _elements(known: Call, names: tuple[str, ...]) -> int:
    """Return the number of elements of the largest of the named tensors; 0 if there is none."""
    return max((math.prod(m.shape) for name in names if (m := known.tensor(name)) is not None), default=0)


def _next_wide(context: Context, rows: int) -> tuple[int, str] | None:
    """Return (width, op) for the first 2-d tensor with `rows` rows that a nested call or a following call takes."""
    around = context.relatives()
    tensors = ((meta.shape, name) for meta, name in first_tensors((*around.inside, *around.following)))
    return next(
        ((shape[1], name) for shape, name in tensors if len(shape) == 2 and shape[0] == rows and shape[1]), None
    )


def _total_width(known: Call, context: Context) -> Guess | None:
    """Guess the total width of all tables from the tensor that the next call reads, or from the sizes of the tables."""
    starts, offsets = known.shape("D_offsets") or (), known.shape("offsets") or ()
    if len(starts) != 1 or starts[0] < 2:
        return None
    tables, weights, rows = starts[0] - 1, _elements(known, _WEIGHTS), _elements(known, _ROWS)
    by_state = _width_by_state(weights, rows, tables)
    if by_state is not None and tables == 1:  # nothing is left to guess
        return by_state
    return _width_read(context, offsets, tables, weights) or by_state or _usual_width(weights, tables)


def _width_read(context: Context, offsets: Shape, tables: int, weights: int) -> Guess | None:
    """Guess the total width of all tables. It is the width of the next tensor read that has one row per sample.

    A width is rejected if some table would then have no row, or if a single table would not consist of whole rows.
    """
    if len(offsets) != 1 or offsets[0] <= tables:
        return None
    read = _next_wide(context, (offsets[0] - 1) // tables)
    if read is None or not tables <= read[0] <= weights or (tables == 1 and weights % read[0]):
        return None
    return Guess(value=read[0], why=f"{read[0]}: the width that {read[1]} reads next")


def _width_by_state(weights: int, rows: int, tables: int) -> Guess | None:
    """Guess the total width of tables whose optimizer stores one number per row."""
    if not 0 < rows < weights <= 4096 * rows or weights % rows:
        return None
    return Guess(value=weights // rows * tables, why=f"rows of {weights // rows}: from the sizes of weights and state")


def _usual_width(weights: int, tables: int) -> Guess | None:
    width = next((w for w in WIDTHS if weights and not weights % w and weights // w >= tables), None)
    return None if width is None else Guess(value=width * tables, why=f"{tables} tables of {width} columns")


def _widest(known: Call, context: Context) -> Guess | None:
    starts, total = known.tensor("D_offsets"), known.value("total_D")
    if starts is None or not isinstance(total, int) or not starts.shape or starts.shape[0] < 2:
        return None
    tables = starts.shape[0] - 1
    widest = -(-total // tables)
    return Guess(value=-(-widest // ROW_BYTES) * ROW_BYTES, why="tables of equal width")


def _dense_width(first: str, fallback: int) -> Rule:
    """Return the rule that guesses the columns of a result with one row per element of the argument `first`."""

    def rule(known: Call, context: Context) -> Guess | None:
        rows = known.tensor(first)
        if rows is None or len(rows.shape) != 1:
            return None
        next_read = _next_wide(context, rows.shape[0])
        if next_read is not None:
            return Guess(value=next_read[0], why=f"{next_read[0]}: the width that {next_read[1]} reads next")
        return Guess(value=fallback, why=f"{fallback}: the trace does not show the value")

    return rule


def _truncation(known: Call, context: Context) -> Guess | None:
    """Guess the maximum length to keep.

    The guess is the mean length if a following call reads the result, which shows this length; otherwise 64.
    """
    lengths = known.tensor("lengths")
    if lengths is None or not lengths.shape or not lengths.shape[0]:
        return None
    for call in context.relatives().following:
        for position in range(min(3, len(call.dims or ()))):
            meta: TensorMeta | None = first_tensor_of(call, position)
            if meta is not None and len(meta.shape) == 1 and meta.shape[0] > lengths.shape[0]:
                mean = -(-meta.shape[0] // lengths.shape[0])
                return Guess(value=mean, why=f"{mean}: {call.name} reads this many numbers per length, on average")
    return Guess(value=64, why="64: the trace does not show the value")


TABLE_RULES: dict[tuple[str, str], Rule] = {
    ("to_dense_representation", "size"): _dense_width("values", 1),
    ("sparse_label_to_dense", "size"): _dense_width("lengths", 128),
    ("sparse_label_to_bool", "size"): _dense_width("lengths", 128),
    ("lengths_range_w_truncation_size", "truncation_size"): _truncation,
}
"""(op without namespace, argument) → rule that guesses the argument."""
WIDTH_RULES: dict[tuple[str, str], Rule] = {("int", "total_D"): _total_width, ("int", "max_D"): _widest}
"""(type, argument) → rule that guesses the argument."""
