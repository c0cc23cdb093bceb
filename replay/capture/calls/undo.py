"""What a fake step leaves in real modules and optimizers, and how it is taken out again."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


class Undo:
    """Remembers modules and optimizers as they were when they were first seen."""

    def __init__(self) -> None:
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._buffers: list[tuple[torch.nn.Module, dict[str, Any]]] = []
        self._states: dict[int, tuple[torch.optim.Optimizer, dict[Any, dict[str, Any]]]] = {}

    def know(self, root: torch.nn.Module) -> None:
        """A model before its forward."""
        for parameter in root.parameters():
            self._know_parameter(parameter)
        self._buffers += [(one, dict(one._buffers)) for one in root.modules() if one._buffers]

    def know_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer before its step."""
        if id(optimizer) in self._states:
            return
        self._states[id(optimizer)] = optimizer, {key: dict(one) for key, one in optimizer.state.items()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._know_parameter(parameter)

    def restore(self) -> None:
        """What is real gets its real parts back; what is fake stays: it was made for the step."""
        for parameter, gradient in self._gradients.values():
            if isinstance(parameter.grad, FakeTensor):
                parameter.grad = gradient
        for module, buffers in self._buffers:
            if not any(isinstance(one, FakeTensor) for one in buffers.values()):
                module._buffers.update(buffers)
        for optimizer, state in self._states.values():
            if any(not isinstance(one, FakeTensor) for group in optimizer.param_groups for one in group["params"]):
                optimizer.state.clear()
                optimizer.state.update(state)

    def _know_parameter(self, parameter: torch.Tensor) -> None:
        if not isinstance(parameter, FakeTensor) and id(parameter) not in self._gradients:
            before = None if isinstance(parameter.grad, FakeTensor) else parameter.grad
            self._gradients[id(parameter)] = parameter, before
