# pyright: strict
"""Views that autograd makes again after something was written to their base.

For plain tensors it takes their strides; fake ones it asks for the view once more, which no step without a mode does.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from opreplay.replay.capture.calls.arguments import key_of_value

_COPY, _AS_STRIDED = torch.ops.aten.copy_.default, torch.ops.aten.as_strided.default
_GRADIENTS_OF_VIEWS = "CopySlices"
"""The node of what was written to a view: its gradient is a view of a copy."""


class Views:
    """Views of a step that require gradients, while they are alive."""

    def __init__(self) -> None:
        self._last: dict[Any, tuple[weakref.ref[torch.Tensor], int]] = {}
        """By call: its last result, and the version of the base of which autograd knows how it was made."""
        self._copied = 0
        """Address of the storage to which the node that runs has just copied its gradient."""

    def is_again(self, func: Any, args: Sequence[Any]) -> bool:
        """Whether a call is one by which autograd makes a view again: of a base to which something else was written."""
        if not func.is_view or not torch.is_grad_enabled():
            return False
        view, version = self._last.get(_key(func, args), (None, 0))
        alive = None if view is None else view()
        if alive is None or args[0]._version == version:
            return False
        self._last[_key(func, args)] = weakref.ref(alive), args[0]._version
        return True

    def add(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """Take note of a call that was made."""
        if func is _COPY:
            self._copied = args[0].untyped_storage()._cdata
        if func.is_view and torch.is_grad_enabled() and isinstance(result, torch.Tensor):
            self._last[_key(func, args)] = weakref.ref(result), args[0]._version

    def is_of_gradient(self, func: Any, args: Sequence[Any], node: str | None) -> bool:
        """Whether a call views the copy of a gradient, of which a plain one is taken by its strides."""
        is_copied = node is not None and node.endswith(_GRADIENTS_OF_VIEWS)
        return is_copied and func is not _AS_STRIDED and args[0].untyped_storage()._cdata == self._copied


def _key(func: Any, args: Sequence[Any]) -> Any:
    return func, id(args[0]), key_of_value(args[1:])
