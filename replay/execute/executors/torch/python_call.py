"""Calls ATen ops as a Python program does, through torch's own bindings.

Calls through `torch.ops` box their arguments, which costs 1 to 4 us per call. There are no tensors in this module, and
it measures no times.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_NAMESPACES = ("_VariableFunctions", "TensorBase", "_nn", "_linalg", "_fft", "_special", "_sparse", "_nested")
"""Attributes of torch._C whose functions and methods torch's Python modules call."""

_Spelling = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""Form of a call: (function, positional arguments, named arguments)."""


def python_call(call: partial[Any]) -> partial[Any]:
    """Return the same call through a torch binding, without arguments that have their default value.

    `call` is an overload of torch.ops with its arguments, possibly inside `with_gradients`. A binding is used only if
    it dispatches to the same overload with the same arguments, which is checked without running anything. If there is
    no such binding, e.g. for ops outside ATen, the result is `call`.
    """
    function, args, named = call.func, call.args, call.keywords
    gradients = function is with_gradients
    if gradients:
        function, *args = args
    if not isinstance(function, torch._ops.OpOverload) or function.namespace != "aten":
        return call
    wanted = _first_dispatch(function, tuple(args), named)
    if wanted is None:
        return call
    for binding, short_args, short_named in _spellings(function, tuple(args), named):
        if _same(_first_dispatch(binding, short_args, short_named), wanted):
            before = (with_gradients, binding) if gradients else (binding,)
            return partial(*before, *short_args, **short_named)
    return call


def _spellings(overload: torch._ops.OpOverload, args: tuple[Any, ...], named: dict[str, Any]) -> Iterator[_Spelling]:
    """Yield torch functions and methods with the op's name, with their arguments. The most common form comes first."""
    if overload is torch.ops.aten.slice.Tensor and len(args) == len(overload._schema.arguments):
        tensor, dim, start, end, step = args
        if dim >= 0:
            place = slice(start, end, None if step == 1 else step)
            yield torch._C.TensorBase.__getitem__, (tensor, (*[slice(None)] * dim, place) if dim else place), {}
    args, named = _without_defaults(overload, args, named)
    numbers = tuple(_as_number(value, args) for value in args)
    for spelled in (numbers, args) if any(map(operator.is_not, numbers, args)) else (args,):
        yield from _by_name(overload, spelled, named)


def _by_name(overload: torch._ops.OpOverload, args: tuple[Any, ...], named: dict[str, Any]) -> Iterator[_Spelling]:
    name = overload._schema.name.partition("::")[2]
    for namespace in _NAMESPACES:
        binding = getattr(getattr(torch._C, namespace, None), name, None)
        if not callable(binding):
            continue
        if args and isinstance(args[-1], list) and all(type(item) is int for item in args[-1]):
            yield binding, (*args[:-1], *args[-1]), named  # x.view(2, 8)
        yield binding, args, named


def _as_number(value: Any, args: tuple[Any, ...]) -> Any:
    """Return the Python number from which the dispatcher made this tensor, as in `x * 2.0`.

    Any other value is returned unchanged. A float is recorded as 0-dim float64 and an int as 0-dim int64, whatever the
    dtype of the other argument.
    """
    if not isinstance(value, torch.Tensor) or value.dim() or value.device.type != "cpu" or value.requires_grad:
        return value
    dtypes = {other.dtype for other in args if isinstance(other, torch.Tensor) and other is not value}
    is_number = value.dtype in (torch.float64, torch.int64)
    return value.item() if dtypes and is_number and value.dtype not in dtypes else value


def _without_defaults(
    overload: torch._ops.OpOverload, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Drop arguments that equal the schema's defaults: all named arguments, and positional arguments at the end."""
    schema = overload._schema.arguments
    count = len(args)
    while count and _is_default(schema[count - 1], args[count - 1]):
        count -= 1
    by_name = {argument.name: argument for argument in schema}
    options = {name: value for name, value in named.items() if not _is_default(by_name[name], value)}
    return args[:count], _without_usual_options(options)


def _is_default(argument: Any, value: Any) -> bool:
    if not argument.has_default_value() or isinstance(value, torch.Tensor):
        return False
    default = argument.default_value
    return value is default or (type(value) is type(default) and bool(value == default))


def _without_usual_options(named: dict[str, Any]) -> dict[str, Any]:
    """Drop tensor-creation options (dtype, layout, device, pin_memory) that equal torch's defaults."""
    usual = {
        "dtype": torch.get_default_dtype(),
        "layout": torch.strided,
        "device": torch.get_default_device(),
        "pin_memory": False,
    }
    return {name: value for name, value in named.items() if name not in usual or value != usual[name]}


_Dispatched = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""Call to the dispatcher: (overload, positional arguments, named arguments)."""


class _Stop(Exception):
    """Raised instead of running the dispatched call."""

    def __init__(self, dispatched: _Dispatched) -> None:
        super().__init__()
        self.dispatched = dispatched


class _Stopper(TorchDispatchMode):
    """Raises `_Stop` at the first dispatched call."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. To exclude torch's compiler from this mode would import it, which takes more than a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise _Stop((func, args, _without_usual_options(kwargs or {})))


def _first_dispatch(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> _Dispatched | None:
    """Return a function's first dispatcher call, without running it; None if it raises or makes no such call."""
    try:
        with _Stopper():
            function(*args, **named)
    except _Stop as stop:
        return stop.dispatched
    except Exception:  # whatever it raises: it has other parameters than the overload, or refuses these arguments
        return None
    return None


def _same(dispatched: _Dispatched | None, wanted: _Dispatched) -> bool:
    return dispatched is not None and all(map(_equal, dispatched, wanted))


def _equal(value: Any, other: Any) -> bool:
    """Check whether two arguments are the same tensor, or equal."""
    if isinstance(value, torch.Tensor):
        return value is other
    if isinstance(other, torch.Tensor):  # a number is handed to the dispatcher's modes as the number
        return isinstance(value, int | float) and not other.dim() and bool(other == value)
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_equal, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_equal(item, other[name]) for name, item in value.items())
    return type(value) is type(other) and bool(value == other)


_NO_GRADIENT = re.compile(r"not differentiable with respect to argument '(\w+)'")


def with_gradients(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make one call with gradients enabled and restore the mode afterwards. Costs 0.3 µs."""
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(True)  # pyright: ignore[reportPrivateUsage]
    try:
        return function(*args, **kwargs)
    finally:
        torch._C._set_grad_enabled(before)  # pyright: ignore[reportPrivateUsage]


def require_gradients(values: Iterable[Any]) -> None:
    """Enable gradients for every floating-point or complex tensor among a call's arguments, including lists."""
    for value in values:
        items: list[Any] = list(value) if isinstance(value, list | tuple) else [value]  # pyright: ignore
        for tensor in items:
            if isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
                tensor.requires_grad_()


def without_gradient(error: RuntimeError) -> str | None:
    """Return the argument that, according to torch's error, cannot require a gradient; None for other errors."""
    match = _NO_GRADIENT.search(str(error))
    return match[1] if match else None
