"""Record which memory holds each tensor of each ExecutionTrace node. The arguments themselves are handled by
`et_signature`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

from opreplay.traces.dialects.et_nodes import Node
from opreplay.traces.model import TensorMemories

UNKNOWN = -1
_UNDEFINED = "nullptr"


class MemoryColumn:
    """Collects one number per tensor, in node order. The number stands for the tensor's start address."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, str], int] = {}
        self._ids = array("q")
        self._bounds = array("q", [0])

    def add(self, node: Node) -> None:
        """Add a row with the node's arguments, followed by its results. Invalid entries count as unknown."""
        for column, types in ((node.inputs, node.input_types), (node.outputs, node.output_types)):
            if isinstance(column, dict):
                column, types = column.get("values"), column.get("types")
            self._add(column, types)

    def table(self) -> TensorMemories | None:
        """Return the collected columns; None if no tensor names its storage."""
        if not self._numbers:
            return None
        return TensorMemories(ids=np.array(self._ids, dtype=np.int64), bounds=np.array(self._bounds, dtype=np.int64))

    def _add(self, values: Any, types: Any) -> None:
        if isinstance(values, list) and isinstance(types, list):
            for value in _tensors(values, types):
                self._ids.append(self._number(value))
        self._bounds.append(len(self._ids))

    def _number(self, value: Any) -> int:
        """Return a number that identifies where a tensor begins: its storage, offset and device.

        `value` is [tensor, storage, offset, numel, itemsize, device]. The offset is included because query, key and
        value in one packed projection share a storage but are three tensors.
        """
        if not isinstance(value, list) or len(value) < 5 or type(value[1]) is not int or value[1] <= 0:
            return UNKNOWN
        offset = value[2] if type(value[2]) is int else 0
        device = value[5] if len(value) > 5 and isinstance(value[5], str) else ""
        return self._numbers.setdefault((value[1], offset, device), len(self._numbers))


def _tensors(values: list[Any], types: list[Any]) -> Iterator[Any]:
    """Yield the record of each tensor; flatten lists and skip undefined tensors."""
    for value, type_ in zip(values, types, strict=False):
        if not isinstance(type_, str) or "Tensor(" not in type_:
            continue
        if type_.startswith("Tensor("):
            if _UNDEFINED not in type_:
                yield value
        elif type_.startswith("GenericList[") and isinstance(value, list):
            yield from (element for element in value if isinstance(element, list))
