# pyright: strict
"""Recognizes attention masks that transformers computes from positions, and returns the mask arguments of a fused
kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from opreplay.replay.capture.serving.fused import Call, Graph, Tensor

_AND = ("aten::bitwise_and.Tensor", "aten::logical_and", "aten::__and__.Tensor")
_ONES = ("aten::new_ones", "aten::ones")
_ADD, _SUB, _ARANGE = "aten::add.Tensor", "aten::sub.Tensor", "aten::arange"


def pattern_of(graph: Graph, visible: Tensor) -> Mapping[str, int] | None:
    """Return the kernel arguments for a causal mask, with or without a sliding window; None for any other mask.

    `visible` is a mask [..., queries, keys]. It is true where `key <= query` and, for a window of W keys, also `key >
    query - W`. The numbers of queries and keys must be equal; otherwise the position of the first query is unknown.
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
    """Return the comparisons that are joined with "and" in a mask; None if the mask has other parts."""
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
    """Return the difference of the offsets (query − key) in a comparison of positions of queries and keys. None for any
    other comparison.
    """
    key, query = compared.values["self"], compared.values["other"]
    if not isinstance(query, Tensor) or key.shape[-2:-1] != (1,) or query.shape[-1:] != (1,):
        return None
    ends = _number(graph, key), _number(graph, query)
    return None if ends[0] is None or ends[1] is None else ends[1] - ends[0]


def _number(graph: Graph, tensor: Tensor) -> int | None:
    """Return the offset in a tensor of positions, i.e. the number added to positions that count from 0.

    None for any other tensor. A counter of earlier tokens counts as 0: as there are as many queries as keys, there are
    no earlier tokens.
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
