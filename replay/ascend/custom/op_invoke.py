# pyright: strict
"""An op call as passed to user functions, and the types that these functions return.

The call gives the arguments as meta tensors, and the memory traffic. The module also contains the registration of op
properties; `custom` contains estimators, priorities and the custom-op folder. torch is imported only when an estimator
or property function looks at arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, TypeVar

from opreplay.initializers.user_table import UserFunction, UserTable
from opreplay.replay.ascend.custom.registrations import op_name
from opreplay.replay.ir.kernel import itemsize
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta

PropertyFunction = TypeVar("PropertyFunction", bound=Callable[..., Any])

LOOKUPS = frozenset(
    {"index", "index_select", "embedding", "gather", "take", "take_along_dim", "_index_put_impl_", "slice", "select"}
)
"""Ops that read no more bytes of their first tensor than they return."""


@dataclass(slots=True)
class ComputeOps:
    """Number of operations of one dtype; a multiply-add counts as two."""

    mma_ops: float = 0.0
    """Operations on the cube cores."""
    gp_ops: float = 0.0
    """Operations on the vector cores."""


@dataclass(slots=True)
class PerformanceProperties:
    """The work of an op, from which the default estimator computes a time."""

    compute_ops: dict[Any, ComputeOps] = field(default_factory=dict[Any, ComputeOps])
    """Operations by dtype; a key is a torch.dtype or its name."""
    memory_read_bytes: float = 0.0
    memory_write_bytes: float = 0.0
    memory_readwrite_bytes: float = 0.0
    """Bytes updated in place: read and written, and not included in the other two counts."""


class PerformanceModel:
    """Namespace for the result type of estimators."""

    @dataclass(slots=True)
    class Result:
        """A time estimate in seconds."""

        execution_time_s: float
        statistics: dict[str, Any] = field(default_factory=dict[str, Any])


class OpInvokeInfo:
    """One call of an op, as passed to estimators and property functions."""

    ComputeOps = ComputeOps
    PerformanceProperties = PerformanceProperties

    properties: UserTable[UserFunction] = UserTable("properties", remedy="override=True replaces it")
    """User property functions by op name."""

    def __init__(self, op: ReplayOp) -> None:
        self.op = op
        self.assumed_out = False
        """Whether user code read a result of unknown size, through `out` or `get_memory_access_properties`."""

    @classmethod
    def register_op_properties(cls, op: Any, override: bool = False) -> Callable[[PropertyFunction], PropertyFunction]:
        """Register a function from OpInvokeInfo to PerformanceProperties for an op.

        `op` is torch.ops.ns.name, one of its overloads, or "ns::name". Raises ValueError if the user already registered
        a property function for the op, unless `override` is set.
        """

        name = op_name(op)

        def register(function: PropertyFunction) -> PropertyFunction:
            cls.properties.add(UserFunction(ops=(name,), function=function), replace=override)
            return function

        return register

    @property
    def name(self) -> str:
        """The op's name as "ns::name", as recorded."""
        return self.op.name

    @cached_property
    def func(self) -> Any:
        """The torch op that was called. It is an overload if the overload can be identified, and None if torch does not
        have the op.
        """
        from opreplay.replay.resolve.names import known_overload

        return known_overload(self.op)

    @cached_property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments in order: meta tensors, lists of them, numbers."""
        return tuple(_value(arg) for arg in self.op.args if not arg.keyword_only)

    @cached_property
    def kwargs(self) -> dict[str, Any]:
        """Keyword-only arguments by name."""
        return {arg.name: _value(arg) for arg in self.op.args if arg.keyword_only}

    @cached_property
    def out(self) -> Any:
        """Return the result as a meta tensor, a tuple of meta tensors for several results, or None if the op returns
        nothing.

        An unknown result is assumed to match the tensor that the op updates or, if there is none, the first tensor
        argument.
        """
        results = tuple(None if meta is None else _empty(meta) for meta in self._results())
        return results[0] if len(results) == 1 else results or None

    def _results(self) -> Sequence[TensorMeta | None]:
        """Return the results of the op, known or assumed. Sets `assumed_out` if they are assumed to match the first
        tensor argument.
        """
        if self.op.outputs is not None:
            return self.op.outputs
        if self.op.recorded_outputs is not None:
            return self.op.recorded_outputs
        changed = [t for arg in self.op.args if arg.mutated for t in arg.tensors if t is not None]
        if changed:
            return changed[:1]
        self.assumed_out = True
        return [t for arg in self.op.args for t in arg.tensors if t is not None][:1]

    def get_memory_access_properties(self) -> PerformanceProperties:
        """Return the bytes moved if every argument is read once and every result is written once.

        A tensor that is updated in place counts as read once and written once. A lookup reads as many bytes of its
        table as it returns. An unknown result, e.g. of an op without a fake kernel, is assumed to match the updated
        tensor or, if there is none, the first tensor argument.
        """
        base = self.op.name.partition("::")[2].split(".")[0]
        changed = [t for arg in self.op.args if arg.mutated for t in arg.tensors if t is not None]
        read = [t for arg in self.op.args if not arg.mutated for t in arg.tensors if t is not None]
        results = [t for t in self._results() if t is not None]
        for meta in changed:
            # An in-place op returns the tensor that it updates: the same memory.
            same = next((t for t in results if (t.shape, t.dtype) == (meta.shape, meta.dtype)), None)
            if same is not None:
                results.remove(same)
        written = float(sum(map(_bytes, results)))
        sizes = [float(_bytes(t)) for t in read]
        if base in LOOKUPS and sizes and results:
            sizes[0] = min(sizes[0], written)
        return PerformanceProperties(
            memory_read_bytes=sum(sizes),
            memory_write_bytes=written,
            memory_readwrite_bytes=float(sum(map(_bytes, changed))),
        )


def register_op_properties(op: Any, override: bool = False) -> Callable[[PropertyFunction], PropertyFunction]:
    """Register op properties: `OpInvokeInfo.register_op_properties` as a plain function, like the other decorators."""
    return OpInvokeInfo.register_op_properties(op, override=override)


def _bytes(meta: TensorMeta) -> int:
    # A dimension of stride 0 repeats what lies in memory once.
    shape = meta.shape
    if meta.strides is not None and len(meta.strides) == len(shape):
        shape = tuple(1 if stride == 0 and n > 1 else n for n, stride in zip(shape, meta.strides, strict=True))
    return prod(shape) * itemsize(meta.dtype)


def _empty(meta: TensorMeta) -> Any:
    import torch

    from opreplay.replay.arguments.tensors import DTYPES

    dtype = DTYPES.get(meta.dtype, torch.float32)
    if meta.strides is None or len(meta.strides) != len(meta.shape):
        return torch.empty(meta.shape, dtype=dtype, device="meta")
    return torch.empty_strided(meta.shape, meta.strides, dtype=dtype, device="meta")


def _value(arg: ReplayArg) -> Any:
    if arg.tensors:
        metas = [None if meta is None else _empty(meta) for meta in arg.tensors]
        return metas if arg.type.endswith("[]") else metas[0]
    if arg.type == "str" or arg.value is None or isinstance(arg.value, bool | int | float):
        return arg.value
    import torch

    from opreplay.replay.arguments.tensors import scalar_value

    return scalar_value(arg, device=torch.device("meta"))
