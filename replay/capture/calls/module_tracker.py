"""Tracks which module makes each call of a step, and whether the call belongs to forward, backward or the optimizer.

A call in backward belongs to the module whose forward created its autograd node. The node is identified by the sequence
number that it got when it was created. So no hooks on tensors are needed, and the step is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as hooks

from opreplay.replay.capture.calls.storages import Storages, inner_tensors
from opreplay.replay.ir.captured import LikeDevice, StepPhase

_autograd: Any = import_module("torch._C")._autograd
_optimizers: Any = import_module("torch.optim.optimizer")
"""`torch.optim.optimizer`, as Any because type checkers do not see its contents."""
_NO_MODULE = -1
_NO_NODE = (1 << 63) - 1
"""Minimum sequence number of autograd nodes that accumulate gradients. All other nodes have smaller numbers."""


class ModuleTracker:
    """Tracks modules, optimizers and autograd while a step runs."""

    def __init__(self, storages: Storages, *, device: LikeDevice = "cpu") -> None:
        """`device` determines the default of optimizers: the foreach implementation, or updating parameters
        one by one.
        """
        self._storages, self._by_list = storages, device != "cpu"
        self._one_by_one: dict[str, None] = {}
        """Names of optimizers that update parameters one by one here. On another device, they would use foreach by
        default.
        """
        self._lists: list[dict[str, Any]] = []
        """Parameter groups that were switched to the foreach implementation for this step."""
        self._stack: list[int] = []
        self._paths: dict[str, int] = {}
        self._of_module: dict[int, int] = {}
        self._roots: list[torch.nn.Module] = []
        """Root modules, kept alive because modules are identified by their address."""
        self._prefixes: list[str] = []
        self._of_node: dict[int, int] = {}
        self._of_parameter: dict[int, int] = {}
        self._stepping = 0
        self._saved = _SavedState()
        self.counters: set[int] = set()
        """Storages of optimizer step counters. Torch keeps these on the host even if parameters are on a device."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how the step would differ on another device."""
        return tuple(
            f"{name} updates parameters one by one, the default on a CPU; on CUDA and NPU the default is foreach, "
            "which runs far fewer kernels: use --device cuda or npu, or foreach=True"
            for name in self._one_by_one
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Paths of modules, by module number."""
        return tuple(self._paths)

    def register(self, root: torch.nn.Module) -> None:
        """Register a model's modules, parameters and buffers by name."""
        if id(root) in self._of_module:
            return
        alike = sum(type(known) is type(root) for known in self._roots[1:])
        number = f"#{alike + 1}" if alike else ""
        prefix = "" if not self._roots else f"{_kind(root)}{number}:"
        self._roots.append(root)
        self._saved.save(root)
        self._prefixes.append(prefix)
        for path, module in root.named_modules():
            number = self._number(f"{prefix}{path}")
            self._of_module.setdefault(id(module), number)
            for name, parameter in module.named_parameters(recurse=False):
                self._storages.describe(parameter, "parameter", f"{prefix}{path}.{name}" if path else f"{prefix}{name}")
                self._of_parameter.setdefault(id(parameter), number)
            for name, buffer in module.named_buffers(recurse=False):
                self._storages.describe(buffer, "buffer", f"{prefix}{path}.{name}" if path else f"{prefix}{name}")

    def state(self) -> list[tuple[str, torch.Tensor]]:
        """Return parameters and buffers of all models, by name. A DTensor or similar is replaced by its inner
        tensors.
        """
        return [
            (f"{prefix}{name}", part)
            for prefix, root in zip(self._prefixes, self._roots, strict=True)
            for name, tensor in (*root.named_parameters(), *root.named_buffers())
            for part in inner_tensors(tensor)
        ]

    def phase_and_module(self) -> tuple[StepPhase, int]:
        """Return phase and module of the current call."""
        in_backward = torch._C._current_graph_task_id() != -1
        if self._stack:
            if not in_backward:
                self._of_node.setdefault(_autograd._get_sequence_nr() - 1, self._stack[-1])
            return ("backward" if in_backward else "forward"), self._stack[-1]
        if in_backward:
            return "backward", self._of_current_node()
        return ("optimizer" if self._stepping else "forward"), _NO_MODULE

    @contextmanager
    def inside(self, path: str | None) -> Iterator[None]:
        """Context in which calls are attributed to the module with this path."""
        if path is None:
            yield
            return
        self._stack.append(self._number(path))
        try:
            yield
        finally:
            self._stack.pop()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Context with hooks on all modules and optimizers, for running the step."""
        with ExitStack() as stack:
            for handle in (
                hooks.register_module_forward_pre_hook(self._enter),
                hooks.register_module_forward_hook(self._leave, always_call=True),
                _optimizers.register_optimizer_step_pre_hook(self._before_step),
                _optimizers.register_optimizer_step_post_hook(self._after_step),
            ):
                stack.callback(handle.remove)
            yield

    def mark_gradients(self) -> None:
        """Record the storages of all existing gradients as gradients."""
        for root in self._roots:
            for parameter in root.parameters():
                if parameter.grad is not None:
                    self._storages.describe(parameter.grad, "gradient", outside=False)

    def restore(self) -> None:
        """Replace fake tensors in real modules and optimizers by the tensors saved before the step."""
        self._saved.restore()

    def _number(self, path: str) -> int:
        return self._paths.setdefault(path, len(self._paths))

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        number = self._of_module.get(id(module))
        if number is None:
            if self._stack:
                number = self._of_module[id(module)] = self._number(f"{self.names[self._stack[-1]]}.<{_kind(module)}>")
            else:
                self.register(module)
                number = self._of_module[id(module)]
        self._stack.append(number)

    def _leave(self, module: torch.nn.Module, *_: Any) -> None:
        if self._stack:
            self._stack.pop()

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepping += 1
        self._saved.save_optimizer(optimizer)
        self._take_lists(optimizer)
        self._describe_state(optimizer, outside=True)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._storages.describe(parameter, "parameter")
                if parameter.grad is not None:
                    self._storages.describe(parameter.grad, "gradient", outside=False)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepping -= 1
        while self._lists:
            self._lists.pop()["foreach"] = None
        self._describe_state(optimizer, outside=False)

    def _take_lists(self, optimizer: torch.optim.Optimizer) -> None:
        """Switch parameter groups to foreach if torch.optim's `_default_to_fused_or_foreach` would do that on an
        accelerator.
        """
        for group in optimizer.param_groups:
            fixed = "foreach" not in group or group["foreach"] is not None or group.get("fused")
            refused = isinstance(group.get("lr"), torch.Tensor) and not group.get("capturable")
            if fixed or refused or group.get("differentiable") or len(group["params"]) < 2:
                continue
            if self._by_list:
                group["foreach"] = True
                self._lists.append(group)
            else:
                self._one_by_one[type(optimizer).__name__] = None

    def _describe_state(self, optimizer: torch.optim.Optimizer, *, outside: bool) -> None:
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    self._storages.describe(value, "optimizer state", str(name) if outside else "", outside=outside)
        self.counters |= {self._storages.of(value) for value in _counters(optimizer)}

    def _of_current_node(self) -> int:
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return _NO_MODULE
        number = node._sequence_nr()
        if number < _NO_NODE:
            return self._of_node.get(number, _NO_MODULE)
        return self._of_parameter.get(id(getattr(node, "variable", None)), _NO_MODULE)


_COUNTED = ("step", "mu_product")


def _counters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the step counters that torch.optim keeps in host tensors.

    There are none if the optimizer is fused or capturable, or if it is ASGD, which counts on the device.
    """
    if not type(optimizer).__module__.startswith("torch.optim") or isinstance(optimizer, torch.optim.ASGD):
        return
    for group in optimizer.param_groups:
        if group.get("fused") or group.get("capturable"):
            continue
        for parameter in group["params"]:
            for name in _COUNTED:
                value = optimizer.state.get(parameter, {}).get(name)
                if isinstance(value, torch.Tensor) and value.dim() == 0:
                    yield value


def _kind(module: torch.nn.Module) -> str:
    return type(module).__name__


class _SavedState:
    """Saves the gradients, buffers and optimizer states that existed before the step."""

    def __init__(self) -> None:
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._buffers: list[tuple[torch.nn.Module, dict[str, Any]]] = []
        self._states: dict[int, tuple[torch.optim.Optimizer, dict[Any, dict[str, Any]]]] = {}

    def save(self, root: torch.nn.Module) -> None:
        """Save a model before its forward."""
        for parameter in root.parameters():
            self._save_gradient(parameter)
        self._buffers += [(module, dict(module._buffers)) for module in root.modules() if module._buffers]

    def save_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Save an optimizer before its step."""
        if id(optimizer) in self._states:
            return
        self._states[id(optimizer)] = optimizer, {key: dict(state) for key, state in optimizer.state.items()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._save_gradient(parameter)

    def restore(self) -> None:
        """Restore gradients, buffers and states that were real before the step. Those created during the step stay
        fake.
        """
        for parameter, gradient in self._gradients.values():
            if isinstance(parameter.grad, FakeTensor):
                parameter.grad = gradient
        for module, buffers in self._buffers:
            if not any(isinstance(tensor, FakeTensor) for tensor in buffers.values()):
                module._buffers.update(buffers)
        for optimizer, state in self._states.values():
            if any(
                not isinstance(tensor, FakeTensor) for group in optimizer.param_groups for tensor in group["params"]
            ):
                optimizer.state.clear()
                optimizer.state.update(state)

    def _save_gradient(self, parameter: torch.Tensor) -> None:
        if not isinstance(parameter, FakeTensor) and id(parameter) not in self._gradients:
            before = None if isinstance(parameter.grad, FakeTensor) else parameter.grad
            self._gradients[id(parameter)] = parameter, before
