"""Finds the op that an equivalent calls, so that the op can be replayed with torch alone.

An equivalent is a portable replacement of a recorded op. Its function runs on meta tensors, while the calls of the op
that it declares are recorded. `opreplay.replay.ops.aten` defines which ops have an equivalent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch.overrides import TorchFunctionMode

from opreplay.replay.arguments import tensors
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ops.aten import equivalent_of
from opreplay.replay.resolve.schema import ArgSpec, specs_of
from opreplay.traces.literals import plain_float
from opreplay.traces.model import TensorMeta

_DTYPE_NAMES = {dtype: name for name, dtype in tensors.DTYPES.items()}


def called_instead(op: ReplayOp) -> ReplayOp | None:
    """Return the call that the op's equivalent makes, as an op with the same id. None unless the equivalent calls its
    declared op exactly once.

    The equivalent may derive tensors from the arguments, such as transposed views. Their own shape and strides describe
    them.
    """
    equivalent = equivalent_of(op)
    if equivalent is None or not equivalent.via.startswith("aten::") or " " in equivalent.via:
        return None
    watch = _Watch(equivalent.via.removeprefix("aten::"))
    function = equivalent.load()
    try:
        args = tensors.arguments(op, device=torch.device("meta"))
    except (RuntimeError, ValueError):  # torch refuses what was recorded
        return None
    positional, by_name = op.in_call(args)
    try:
        with torch.no_grad(), watch:
            function(*positional, **by_name)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError, KeyError):
        # Not every equivalent works without values; it is then left to devices that have the op itself.
        return None
    return _as_op(op, equivalent.via, watch.calls)


class _Watch(TorchFunctionMode):
    """Records the calls of one op. They are made through torch.ops, or through torch's function of the same name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.calls: list[tuple[str | None, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = getattr(func, "_schema", None)
        name = schema.name.removeprefix("aten::") if schema is not None else getattr(func, "__name__", "")
        if name == self._name:
            self.calls.append((None if schema is None else schema.overload_name, tuple(args), dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _as_op(op: ReplayOp, via: str, calls: list[tuple[str | None, tuple[Any, ...], dict[str, Any]]]) -> ReplayOp | None:
    if len(calls) != 1:
        return None
    overload, args, kwargs = calls[0]
    spec = next((spec for spec in specs_of(via) if spec.overload == (overload or "")), None)
    if spec is None or len(args) > len(spec.args):
        return None
    passed = {arg.name: value for arg, value in zip(spec.args, args, strict=False)} | kwargs
    known = {arg.name for arg in spec.args}
    if not known >= set(passed) or any(arg.name not in passed and not arg.has_default for arg in spec.args):
        return None
    # What was left out before a given argument has a place in the call all the same.
    arguments = tuple(_argument(arg, passed[arg.name]) if arg.name in passed else _default(arg) for arg in spec.args)
    return msgspec.structs.replace(
        op, name=via, via=None, resolved_by="jit", overload=spec.overload, schema=spec.text, args=arguments
    )


def _default(arg: ArgSpec) -> ReplayArg:
    return ReplayArg(name=arg.name, type=arg.kind, value=arg.default, keyword_only=arg.keyword_only)


def _argument(arg: ArgSpec, value: Any) -> ReplayArg:
    argument = ReplayArg(name=arg.name, type=arg.kind, keyword_only=arg.keyword_only, mutated=arg.mutated)
    if isinstance(value, torch.Tensor):
        return msgspec.structs.replace(argument, tensors=(_meta(value),))
    if isinstance(value, list | tuple) and any(isinstance(item, torch.Tensor) for item in value):
        return msgspec.structs.replace(argument, tensors=tuple(_meta(item) for item in value))
    return msgspec.structs.replace(argument, value=_plain(value))


def _meta(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(
        shape=tuple(tensor.shape),
        dtype=_DTYPE_NAMES[tensor.dtype],
        strides=tuple(tensor.stride()),
        storage_offset=int(tensor.storage_offset()),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, float):
        return plain_float(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format | torch.device):
        return str(value)
    raise TypeError(f"{value!r} cannot be written to a plan")
