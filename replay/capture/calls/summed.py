"""Gradients that autograd would sum in place because nothing else holds them; under a dispatch mode it never does.

Its engine (InputBuffer.cpp, `accumulate`) writes to the sum so far if that is dense, not a tensor subclass, and held by
nothing else; a mode counts as a subclass. The plan must contain the calls that run without a mode.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch

from opreplay.replay.capture.calls.storages import Storages

_internal: Any = import_module("torch._C")
_ALONE = 2
"""References to a storage that one tensor has: its own, and the one that asks."""
_UNSEEN = 5
"""References to the Python object of a tensor that no Python code has: those of this call."""
_UNSHARED = 4
"""References in C++ to a tensor that no other node is going to be given: those of this call."""


class Summed:
    """Records the autograd node in which each storage was made."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._node_of: dict[int, int] = {}

    def add(self, results: Iterable[torch.Tensor]) -> None:
        """Record the results of a call; results of forward have no node."""
        node = _node()
        if node is not None:
            for tensor in results:
                if tensor.layout is torch.strided:
                    self._node_of.setdefault(self._storages.number(tensor), node)

    def is_own(self, tensor: Any) -> bool:
        """Check whether the current autograd node made a tensor's storage."""
        node = _node()
        if node is None or not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return False
        return self._node_of.get(self._storages.number(tensor)) == node

    def is_summed_up(self, total: Any, more: Any) -> bool:
        """Check whether the engine would have added two tensors in place.

        The sum so far was made by another node than the one that just ran; a node's own sums are of tensors that it
        made.
        """
        node = _node()
        if node is None or not isinstance(total, torch.Tensor) or not isinstance(more, torch.Tensor):
            return False
        if torch.is_grad_enabled() or total.layout is not torch.strided or total.shape != more.shape:
            return False
        if sys.getrefcount(total) > _UNSEEN or _references(total) > _UNSHARED or not _is_dense(total):
            return False
        if _internal._storage_Use_Count(total.untyped_storage()._cdata) != _ALONE:
            return False
        before = self._node_of.get(self._storages.number(total))
        return before not in (None, node)


def _node() -> int | None:
    """Return the number of the autograd node that runs, or has just run; None outside a backward."""
    if _internal._current_graph_task_id() == -1:
        return None
    node = _internal._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def _references(tensor: Any) -> int:
    return tensor._use_count()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Check whether the elements are contiguous in memory without overlap, in any order of dimensions."""
    expected = 1
    for step, size in sorted(
        (step, size) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1
    ):
        if step != expected:
            return False
        expected *= size
    return True
