"""Fake tensors in place of the real ones that a step meets; the real ones stay as they are.

torch's own mode runs an op for real where all its tensors are: it would write to the user's parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from opreplay.replay.capture.calls.arguments import is_dense

_LIFTS = frozenset({"lift", "lift_fresh", "lift_fresh_copy"})
"""How a tensor of Python's numbers comes to be; fake tensors remember its value only if they see it made."""


class Fakes:
    """One fake tensor for each real one, with storages shared as the real ones share them."""

    def __init__(self) -> None:
        # Real tensors never get there: `of` stands before.
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._kept: list[torch.Tensor] = []
        """Real tensors, alive as long as others would be taken for them."""
        self._made: dict[int, torch.Tensor] = {}

    @contextmanager
    def entered(self) -> Generator[None, None, None]:
        """The mode, with modules that can be moved and cast: torch refuses where its own memo knows the parameter."""
        utils: Any = torch.utils
        plain = utils.swap_tensors

        def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> Any:
            memo = self.mode.fake_tensor_converter.meta_converter.tensor_memo
            for key in [key for key, known in list(memo.items()) if known is one or known is other]:
                del memo[key]
            return plain(one, other)

        utils.swap_tensors = swap_tensors
        try:
            with self.mode, warnings.catch_warnings():
                # Copying a fake module asks for addresses, by which torch tells copies apart; nothing reads there.
                warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
                yield
        finally:
            utils.swap_tensors = plain

    def of(self, value: Any) -> Any:
        """An argument with fake tensors in place of real ones, in lists as well."""
        if isinstance(value, torch.Tensor):
            return value if isinstance(value, FakeTensor) else self._of(value)
        if type(value) in (list, tuple) and any(isinstance(item, torch.Tensor | list | tuple) for item in value):
            return type(value)(self.of(item) for item in value)
        return value

    def _of(self, tensor: torch.Tensor) -> torch.Tensor:
        found = self._made.get(id(tensor))
        if found is None:
            with _disable_current_modes():
                plain = tensor.detach()
                small = tensor.numel() == 1 and tensor.device.type == "cpu" and is_dense(tensor)
                constant = plain.clone() if small else None
                found = self._made[id(tensor)] = self.mode.from_tensor(plain, static_shapes=True)
            self._kept.append(tensor)
            if constant is not None:
                # An optimizer asks for the number of its step.
                found.constant = constant  # type: ignore[attr-defined]
                self.mode.fake_tensor_converter.add_constant_storage_mapping(found)  # type: ignore[arg-type]
        return found


def keeps_real(func: Any) -> bool:
    """Whether a call must see the real tensor."""
    return func.namespace == "aten" and func._schema.name.partition("::")[2] in _LIFTS
