"""What is captured: a callable, a module, or a whole training step, as a file's function or Python itself gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from opreplay.traces.errors import UsageError

OPTIONS = frozenset({"optimizer", "loss"})
_FORM = (
    'It gives (callable, args), or (module, inputs, {"optimizer": ..., "loss": ...}); '
    "args and inputs are a tuple, or a dictionary of named ones."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Positional and named arguments together."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something to run once."""

    run: Callable[[], Any]
    """The whole step; gives back what the model gives, and the loss beside it where it trains."""
    inputs: Any
    """What the caller gives: tensors in any nesting of lists and dictionaries."""
    root: torch.nn.Module | None = None
    call: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    trains: bool = False


def step_of(made: Any) -> Step:
    """The step that a user's `make()` describes. Raises UsageError for what describes none."""
    if not isinstance(made, tuple | list) or len(made) not in (2, 3) or not callable(made[0]):
        raise UsageError(f"make() gave {_shown(made)}, which is no step", hint=_FORM)
    call, given = made[0], made[1]
    options = dict(made[2]) if len(made) == 3 and isinstance(made[2], Mapping) else {}
    if len(made) == 3 and (not isinstance(made[2], Mapping) or not set(options) <= OPTIONS):
        raise UsageError(f"make() gave options {_shown(made[2])}", hint=f"They are {', '.join(sorted(OPTIONS))}.")
    args, kwargs = arguments_of(given)
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


def arguments_of(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments."""
    if isinstance(given, Call):
        return given.args, dict(given.kwargs)
    if isinstance(given, Mapping):
        return (), {str(name): value for name, value in given.items()}
    return (tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)), {}


def named_tensors(value: Any, prefix: str = "") -> list[tuple[str, torch.Tensor]]:
    """Each tensor in a nesting of lists, dictionaries and what has attributes, with the way to it."""
    found: list[tuple[str, torch.Tensor]] = []
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        name = prefix + pytree.keystr(path)
        if isinstance(leaf, torch.Tensor):
            found.append((name or "[]", leaf))
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | torch.nn.Module) and not callable(leaf):
            inner = {key: one for key, one in vars(leaf).items() if isinstance(one, torch.Tensor | list | tuple | dict)}
            found += named_tensors(inner, name) if inner else []
    return found


def _optimizer(given: Any, module: torch.nn.Module) -> torch.optim.Optimizer | None:
    if given is None or isinstance(given, torch.optim.Optimizer):
        return given
    if callable(given):
        made = given(module.parameters())
        if isinstance(made, torch.optim.Optimizer):
            return made
    raise UsageError(
        f"optimizer {_shown(given)} is none",
        hint="Give a torch.optim.Optimizer, or what makes one of the parameters: torch.optim.AdamW.",
    )


def _trained(
    module: torch.nn.Module, args: Any, kwargs: Any, optimizer: torch.optim.Optimizer | None, loss: Any
) -> tuple[Any, Any]:
    output = module(*args, **kwargs)
    value = loss(output) if loss is not None else getattr(output, "loss", output)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise UsageError(
            "the loss is no tensor of one element",
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
