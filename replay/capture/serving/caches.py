"""Replaces writes to a key-value cache by those of vLLM-Ascend and MindIE, which write keys and values of a layer with
one kernel.

The kernel writes the rows of the new tokens to slots of pages. Here each sequence has one page. Positions are counted
on the host, and slots are computed once per step.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import NamedTuple

from opreplay.replay.capture.serving.fused import Call, Fusion, Graph, Kernel, New, Tensor, dense, made_by, seen_as
from opreplay.traces.model import contiguous_strides

POSITIONS = 2
"""Dimension of a cache [batch, heads, positions, width] along which it grows."""
_ADD, _COUNT, _COPY, _CAT = "aten::add.Tensor", "aten::add_.Tensor", "aten::copy_", "aten::cat"
_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
_MOVED_UP = made_by(
    "stored",
    _COPY,
    src=made_by("put", "aten::index_put_", self=made_by("rolled", "aten::roll")),
)
"""Pattern of an update of a full sliding window: the oldest token is removed, and a new one is added."""


class Writes(NamedTuple):
    """Rows of keys and values, the caches to which they are written, and the results of these writes."""

    rows: Sequence[Tensor]
    tables: Sequence[Tensor]
    written: Sequence[Tensor]


def static_cache(graph: Graph, call: Call) -> Fusion | None:
    """Match two calls that write keys and values to caches of fixed size, at the same positions."""
    if call.name != "aten::index_copy_" or call.values["dim"] != POSITIONS or len(call.values["self"].shape) != 4:
        return None
    index: Tensor = call.values["index"]
    first = next((each for each in graph.readers(index) if each.name == call.name and each is not call), None)
    if first is None or first.place > call.place:
        return None
    rows = [each.values["source"] for each in (first, call)]
    tables = [each.values["self"] for each in (first, call)]
    writes = Writes(rows, tables, [first.results[0], call.results[0]])
    numbered = graph.maker(index, _ADD)
    if numbered is None or len(set(graph.readers(index))) != 2:
        return _writing(graph, None, writes, calls={first, call}, at=index)
    numbers, count = graph.maker(numbered.values["self"], "aten::arange"), numbered.values["other"]
    counters = {each for each in graph.readers(count) if each.name == _COUNT} if isinstance(count, Tensor) else set()
    numbering = {numbered, *([] if numbers is None else [numbers])}
    key = "counted", index.shape, tables[0].shape
    return _writing(
        graph, key, writes, calls={first, call, *counters}, at=index, numbering=numbering,
        counts=[each.results[0] for each in counters],
    )  # fmt: skip


def full_window(graph: Graph, call: Call) -> Fusion | None:
    """Match the update of keys and values in a full sliding window. transformers shifts the window by one position.
    Servers overwrite the oldest token instead.
    """
    parts = graph.matched(call, _MOVED_UP)
    if parts is None or call.values["self"].storage != parts["rolled"].values["self"].storage:
        return None
    for index in (each for each in parts["put"].values["indices"] if each is not None):
        for put in graph.readers(index):
            stored = graph.reader(put, _COPY) if put is not parts["put"] else None
            others = None if stored is None else graph.matched(stored, _MOVED_UP)
            if stored is None or others is None or stored.place > call.place:
                continue
            tables = [each["rolled"].values["self"] for each in (others, parts)]
            values = [each["put"].values["values"] for each in (others, parts)]
            rows = [_whole(*both) for both in zip(values, tables, strict=True)]
            if rows[0] is None or rows[1] is None:
                continue
            writes = Writes([rows[0], rows[1]], tables, [stored.results[0], call.results[0]])
            calls = {*others.values(), *parts.values()}
            return _writing(graph, ("oldest", tables[0].shape), writes, calls=calls)
    return None


def _whole(rows: Tensor, table: Tensor) -> Tensor | None:
    """Return the rows written to a cache as [batch, heads, 1, width]; None if there is not exactly one row per head.

    The rows may lack dimensions, because `cache[:, :, index] = rows` omits leading dimensions of size 1. One sequence,
    for example, is written as [heads, 1, width].
    """
    batch, heads, _, width = table.shape
    missing = len(table.shape) - len(rows.shape)
    strides = rows.strides
    shape = (1,) * missing + rows.shape
    return seen_as(rows, shape, (prod(rows.shape),) * missing + strides) if shape == (batch, heads, 1, width) else None


def growing_cache(graph: Graph, call: Call) -> Fusion | None:
    """Match the concatenation of new keys and values with those from before the step. Servers do not concatenate. They
    write the new rows behind the old ones.
    """
    if call.name != _ATTENTION:
        return None
    joined = [graph.maker(call.values[name], _CAT) for name in ("key", "value")]
    calls = [each for each in joined if each is not None and _grows(each)]
    if len(calls) < 2:
        return None
    rows = [each.values["tensors"][1] for each in calls]
    tables = [each.results[0] for each in calls]
    key = "last", tables[0].shape, rows[0].shape
    first = tables[0].shape[POSITIONS] - rows[0].shape[POSITIONS]
    return _writing(graph, key, Writes(rows, tables, tables), calls=set(calls), first=first)


def _grows(joined: Call) -> bool:
    """Check whether a concatenation appends new tokens to a tensor that no call has written to."""
    tensors = joined.values["tensors"]
    dim = joined.values.get("dim", 0)
    if len(tensors) != 2 or len(tensors[0].shape) != 4 or dim not in (POSITIONS, POSITIONS - 4):
        return False
    return not tensors[0].version and tensors[0].shape[POSITIONS] > tensors[1].shape[POSITIONS]


def _writing(
    graph: Graph,
    key: Hashable,
    writes: Writes,
    *,
    calls: set[Call],
    first: int = 0,
    at: Tensor | None = None,
    numbering: set[Call] | None = None,
    counts: Sequence[Tensor] = (),
) -> Fusion:
    """Return the kernel that replaces `calls`: it writes rows [batch, heads, tokens, width] of keys and values to
    caches.

    The rows are written at positions `at` if given, otherwise from position `first` on. Slots with the same `key` are
    computed once, for the first write. Later writes reuse these slots, so they also replace the calls in `numbering`.
    `counts` are counters that are dropped, because the host keeps them.
    """
    rows, tables, written = writes
    slots = graph.shared.get(key)
    makers: list[Kernel] = []
    if slots is None:
        slots, makers = _slots(rows[0].shape, tables[0].shape[POSITIONS], first, at)
    else:
        calls = calls | (numbering or set())
    key_rows, value_rows = map(_tokens_first, rows)
    key_pages, value_pages = map(_pages, tables)
    values = {
        "key": key_rows, "value": value_rows, "key_cache": key_pages, "value_cache": value_pages, "slot_indices": slots,
    }  # fmt: skip
    write = Kernel(name="npu::_npu_reshape_and_cache", values=values, results=(), written=written)
    shared = {key: slots} if makers and key is not None else {}
    return Fusion(kernels=[*makers, write], calls=frozenset(calls), dropped=counts, shared=shared)


def _slots(shape: tuple[int, ...], size: int, first: int, at: Tensor | None) -> tuple[New, list[Kernel]]:
    """Return (slots of new tokens, kernels that compute these slots). `shape` is [batch, heads, tokens, width]; `size`
    is the number of positions of a page.
    """
    batch, _, tokens, _ = shape
    starts = New(dense((batch,), "int32"))
    begin = {"start": first, "end": first + batch * size, "step": size, "dtype": "torch.int32"}
    kernels = [Kernel(name="aten::arange.start_step", values=begin, results=[starts])]
    if at is None and tokens == 1:
        return starts, kernels
    numbers: Tensor | New
    if at is None:
        numbers = New(dense((tokens,), "int64"))
        kernels.append(Kernel(name="aten::arange", values={"end": tokens}, results=[numbers]))
    else:
        numbers = at
    columns, wide, slots = (
        New(dense(sizes, dtype))
        for sizes, dtype in (((batch, 1), "int32"), ((batch, tokens), "int64"), ((batch, tokens), "int32"))
    )
    flat = New(dense((batch * tokens,), "int32"))
    return flat, [
        *kernels,
        Kernel(name="aten::unsqueeze", values={"self": starts, "dim": 1}, results=[columns]),
        Kernel(name=_ADD, values={"self": columns, "other": numbers}, results=[wide]),
        Kernel(name="aten::_to_copy", values={"self": wide, "dtype": "torch.int32"}, results=[slots]),
        Kernel(name="aten::view", values={"self": slots, "size": (batch * tokens,)}, results=[flat]),
    ]


def _tokens_first(tensor: Tensor) -> Tensor:
    """View [batch, heads, tokens, width] as [batch · tokens, heads, width]."""
    batch, heads, tokens, width = tensor.shape
    strides = tensor.strides
    shape, outer = (batch * tokens, heads, width), strides[0] if tokens == 1 else strides[2]
    whole = contiguous_strides(shape) if tokens > 1 < batch and strides[0] != tokens * outer else None
    return seen_as(tensor, shape, whole or (outer, strides[1], strides[3]))


def _pages(tensor: Tensor) -> Tensor:
    """View [batch, heads, positions, width] as pages [batch, positions, heads, width]: one page per sequence."""
    batch, heads, positions, width = tensor.shape
    strides = tensor.strides
    return seen_as(tensor, (batch, positions, heads, width), (strides[0], strides[2], strides[1], strides[3]))
