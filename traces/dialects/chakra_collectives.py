# pyright: strict
"""Read collectives from the attributes of Chakra nodes: `comm_type`, `comm_size`, the group, source and destination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opreplay.traces.activity.model import Collective, ListedCollective
from opreplay.traces.dialects.chakra import CollectiveType
from opreplay.traces.dialects.et_nodes import Node

MOST_BYTES = 1 << 52
_NAMES = {kind.value: kind.name.lower() for kind in CollectiveType} | {8: "reduce_scatter"}


def listed_collective(node: Node, row: int) -> ListedCollective | None:
    """Return the collective that a node describes; None if it describes none or its values are invalid.

    A node gives only the size in bytes, so the dtype is assumed: float32 for a reduction whose size is divisible by 4,
    uint8 for everything else.
    """
    attrs = _attributes(node.attrs)
    kind = attrs.get("comm_type_name") or _NAMES.get(_count(attrs.get("comm_type")))
    size = _count(attrs.get("comm_size", attrs.get("tensor_size")))
    if not isinstance(kind, str) or (size < 0 and kind != "barrier") or size > MOST_BYTES:
        return None
    dtype, width = ("float32", 4) if "reduce" in kind.lower() and size % 4 == 0 else ("uint8", 1)
    return ListedCollective(
        record=Collective(
            name=kind,
            dtype=dtype,
            elements=max(0, size) // width,
            group=_group_name(attrs),
            group_size=_known(attrs.get("group_size")),
            source=_known(attrs.get("comm_src")),
            target=_known(attrs.get("comm_dst")),
        ),
        name=str(node.name)[:1000],
        row=row,
        on_device=row < 0,
        of_bytes=True,
        dur_us=_duration_us(node),
    )


def _group_name(attrs: Mapping[str, Any]) -> str | None:
    return str(attrs.get("pg_name") or attrs.get("comm_group") or "")[:200] or None


def _duration_us(node: Node) -> float:
    """Return the duration in microseconds, rounded to whole nanoseconds; 0 if it is missing."""
    duration = node.duration
    timed = isinstance(duration, int | float) and 0 <= duration < 1e12
    return round(duration * 1000) / 1e3 if timed else 0.0


def _attributes(listed: Any) -> dict[str, Any]:
    if not isinstance(listed, list):
        return {}
    attributes: dict[str, Any] = {}
    for entry in listed:  # pyright: ignore[reportUnknownVariableType]
        if isinstance(entry, dict):
            attributes[str(entry.get("name"))] = entry.get("value")  # pyright: ignore[reportUnknownMemberType,reportUnknownArgumentType]
    return attributes


def _count(value: object) -> int:
    """Return `value` if it is a non-negative integer, otherwise -1."""
    return value if type(value) is int and value >= 0 else -1


def _known(value: object) -> int | None:
    count = _count(value)
    return count if 0 <= count < 1 << 24 else None
