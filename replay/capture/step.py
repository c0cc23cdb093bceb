"""The step to capture: a callable, a module, or a whole training step, described in a file or from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch.utils import _pytree as pytree

from opreplay.traces.errors import UsageError

OPTIONS = frozenset({"optimizer", "loss"})
_FORM = (
    'make() must return (callable, args), or (module, inputs, {"optimizer": ..., "loss": ...}); '
    "args and inputs are a tuple, or a dictionary by argument name."
)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A function to be run once, with its arguments."""

    run: Callable[[], Any]
    """Runs the whole step and returns the model's output; if the step trains, also the loss."""
    inputs: Any
    """Inputs from the caller: tensors in any nesting of lists and dictionaries."""
    root: torch.nn.Module | None = None
    call: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    trains: bool = False
    program: Any = None
    """An exported program that the step runs instead of `call`."""


def step_of(description: Any) -> Step:
    """Return the step that a user's `make()` describes. Raises UsageError for an invalid description."""
    if not isinstance(description, tuple | list) or len(description) not in (2, 3) or not callable(description[0]):
        raise UsageError(f"make() returned {_shown(description)}, which is not a step", hint=_FORM)
    call, arguments = description[0], description[1]
    options = dict(description[2]) if len(description) == 3 and isinstance(description[2], Mapping) else {}
    if len(description) == 3 and (not isinstance(description[2], Mapping) or not set(options) <= OPTIONS):
        unknown = ", ".join(repr(key) for key in options if key not in OPTIONS) or _shown(description[2])
        raise UsageError(
            f"make() returned unknown options: {unknown}", hint=f"Options are {', '.join(sorted(OPTIONS))}."
        )
    return called_step(call, *arguments_of(arguments), options)


def called_step(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
) -> Step:
    """Return the step that calls a function or module.

    If `options` has an optimizer or a loss, the step trains the module. Raises UsageError if `call` is not callable,
    and if there are options but `call` is not a module.
    """
    if not callable(call):
        raise UsageError(f"{_shown(call)} is not a step", hint=_FORM)
    inputs = (args, kwargs) if args and kwargs else kwargs or args
    root = call if isinstance(call, torch.nn.Module) else None
    if options and root is None:
        raise UsageError("a step with an optimizer or a loss needs a module", hint=_FORM)
    if not options:
        return Step(
            run=lambda: call(*args, **kwargs),
            inputs=inputs,
            root=root,
            call=call,
            args=args,
            kwargs=kwargs,
        )
    assert root is not None
    optimizer, loss = _optimizer(options.get("optimizer"), root), options.get("loss")
    return Step(
        run=lambda: _trained(root, args, kwargs, optimizer, loss),
        inputs=inputs,
        root=root,
        call=root,
        args=args,
        kwargs=kwargs,
        trains=True,
    )


def arguments_of(arguments: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (positional arguments, keyword arguments). `arguments` is a mapping of keyword arguments, a sequence of
    positional ones, or a single argument.
    """
    if isinstance(arguments, Mapping):
        return (), {str(name): value for name, value in arguments.items()}
    return (
        tuple(arguments) if isinstance(arguments, Sequence) and not isinstance(arguments, str) else (arguments,)
    ), {}


def named_tensors(value: Any, prefix: str = "") -> list[tuple[str, torch.Tensor]]:
    """Return each tensor in nested lists, dictionaries and objects with attributes, as (path, tensor)."""
    tensors: list[tuple[str, torch.Tensor]] = []
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        name = prefix + pytree.keystr(path)
        if isinstance(leaf, torch.Tensor):
            tensors.append((name or "[]", leaf))
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | torch.nn.Module) and not callable(leaf):
            inner = {
                key: value for key, value in vars(leaf).items() if isinstance(value, torch.Tensor | list | tuple | dict)
            }
            tensors += named_tensors(inner, name) if inner else []
    return tensors


def _optimizer(optimizer: Any, module: torch.nn.Module) -> torch.optim.Optimizer | None:
    if optimizer is None or isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    if callable(optimizer):
        optimizer = optimizer(module.parameters())
        if isinstance(optimizer, torch.optim.Optimizer):
            return optimizer
    raise UsageError(
        f"optimizer {_shown(optimizer)} is not an optimizer",
        hint=("Pass a torch.optim.Optimizer, or a factory that takes the parameters, such as torch.optim.AdamW."),
    )


def _trained(
    module: torch.nn.Module, args: Any, kwargs: Any, optimizer: torch.optim.Optimizer | None, loss: Any
) -> tuple[Any, Any]:
    output = module(*args, **kwargs)
    value = loss(output) if loss is not None else getattr(output, "loss", output)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise UsageError(
            "the loss is not a tensor with one element",
            hint='Give {"loss": function of the output}, or a module whose output is its loss or has one as `.loss`.',
        )
    value.backward()
    if optimizer is not None:
        optimizer.step()
    return output, value


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(type(item).__name__ for item in value)})"
    return f"a {type(value).__name__}"
