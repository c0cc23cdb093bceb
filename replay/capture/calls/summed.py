"""Finds gradients that autograd would sum in place if no dispatch mode were active.

The autograd engine (InputBuffer.cpp, `accumulate`) adds to the partial sum in place if that tensor is dense, not a
tensor subclass, and not referenced elsewhere. While a mode is active, every tensor counts as a subclass, so the engine
adds out of place. The plan must contain the calls that torch makes without a mode.
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
"""Reference count of a storage that only one tensor uses: one reference is the tensor's, one the query's."""
_UNSEEN = 5
"""Reference count of a tensor's Python object that no other Python code holds. It consists of the references of the
check itself.
"""
_UNSHARED = 4
"""C++ reference count of a tensor that no other node will receive. It consists of the references of the check
itself.
"""


class Summed:
    """Records which autograd node created each storage, to detect sums that autograd would compute in place."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._node_of: dict[int, int] = {}

    def add(self, results: Iterable[torch.Tensor]) -> None:
        """Record the running autograd node as the creator of a call's results. Does nothing in forward."""
        node = _node()
        if node is not None:
            for tensor in results:
                if tensor.layout is torch.strided:
                    self._node_of.setdefault(self._storages.number(tensor), node)

    def is_own(self, tensor: Any) -> bool:
        """Check whether the current autograd node created a tensor's storage."""
        node = _node()
        if node is None or not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return False
        return self._node_of.get(self._storages.number(tensor)) == node

    def is_summed_up(self, total: Any, more: Any) -> bool:
        """Check whether the engine would have added two tensors in place.

        This requires that the partial sum comes from another node than the one that just ran. A node that computes a
        sum itself adds tensors that it created.
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
    """Return the number of the autograd node that is running or has just run; None outside of backward."""
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
