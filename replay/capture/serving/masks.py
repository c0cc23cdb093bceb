# pyright: strict
"""Masks that transformers makes of positions, as the patterns that a fused attention kernel is told of."""

from __future__ import annotations

from collections.abc import Mapping

from opreplay.replay.capture.serving.fused import Call, Graph, Tensor

_AND = ("aten::bitwise_and.Tensor", "aten::logical_and", "aten::__and__.Tensor")
_ONES = ("aten::new_ones", "aten::ones")
_ADD, _SUB, _ARANGE = "aten::add.Tensor", "aten::sub.Tensor", "aten::arange"


def pattern_of(graph: Graph, visible: Tensor) -> Mapping[str, int] | None:
    """Return the arguments that tell a kernel of a causal mask, with or without a sliding window; None for another.

    `visible` is [..., queries, keys]: true where `key <= query`, and for a window of W keys also `key > query - W`.
    Queries must be as many as keys: else nothing tells at which key the first query stands.
    """
    queries, keys = visible.shape[-2:]
    parts = _parts(graph, visible)
    if queries != keys or parts is None:
        return None
    is_causal, window = False, keys
    for part in parts:
        shift = _shift(graph, part)
        if shift is None:
            return None
        if part.name == "aten::le.Tensor" and shift == 0:
            is_causal = True
        elif part.name == "aten::gt.Tensor" and shift < 0:
            window = min(window, -shift)
        else:
            return None
    if not is_causal:
        return None
    if window >= keys:
        return {"sparse_mode": 3}
    return {"sparse_mode": 4, "pre_tokens": window - 1, "next_tokens": 0}


def _parts(graph: Graph, visible: Tensor) -> list[Call] | None:
    """Return the comparisons that are all true where a key is visible; None where something else takes part."""
    waiting, parts = [visible], list[Call]()
    while waiting:
        tensor = waiting.pop()
        if (both := graph.maker(tensor, *_AND)) is not None:
            waiting += [both.values["self"], both.values["other"]]
        elif (compared := graph.maker(tensor, "aten::le.Tensor", "aten::gt.Tensor")) is not None:
            parts.append(compared)
        elif graph.maker(tensor, *_ONES) is None:
            return None
    return parts


def _shift(graph: Graph, compared: Call) -> int | None:
    """Return what a comparison of each key's position adds to the query's; None for one of other numbers."""
    key, query = compared.values["self"], compared.values["other"]
    if not isinstance(query, Tensor) or key.shape[-2:-1] != (1,) or query.shape[-1:] != (1,):
        return None
    ends = _number(graph, key), _number(graph, query)
    return None if ends[0] is None or ends[1] is None else ends[1] - ends[0]


def _number(graph: Graph, tensor: Tensor) -> int | None:
    """Return what is added to positions that count from 0; None for other numbers.

    A counter of tokens that are there before counts as 0: with as many queries as keys there are none.
    """
    added = 0
    while (call := graph.maker(tensor, _ADD, _SUB)) is not None:
        other = call.values["other"]
        if call.values.get("alpha", 1) != 1 or (isinstance(other, Tensor) and (call.name == _SUB or other.shape)):
            return None
        if not isinstance(other, Tensor):
            added += other if call.name == _ADD else -other
        tensor = call.values["self"]
    return None if graph.maker(tensor, _ARANGE) is None else added
