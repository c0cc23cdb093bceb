# pyright: strict
"""View of an op's arguments for lowering rules: tensors by name or position, numbers, outputs, layout copies."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from math import isfinite, prod
from typing import Any, cast

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.kernel import KernelCall, TensorSpec, broadcast, itemsize
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ops.work.contents import Contents
from opreplay.traces.model import TensorMeta, contiguous_strides

_UNNAMED = re.compile(r"arg\d+")
"""Pattern of the argument names (`arg0`, `arg1`, ...) of an op whose schema is unknown."""
_RANK = {"bool": 0, "uint8": 1, "int8": 1, "int16": 2, "int32": 3, "int64": 4}


class DoesNotFit(Exception):
    """Raised for arguments that a rule cannot interpret, because a trace may record anything under a known name."""


def spec(shape: Iterable[int], dtype: str, layout: str = "ND") -> TensorSpec:
    """Return a kernel's tensor as a `TensorSpec`.

    Negative sizes, which a correct profiler never records, count as 0.
    """
    return TensorSpec(shape=tuple(max(0, int(s)) for s in shape), dtype=dtype, format=layout)


def kernel(
    kernel_type: str,
    inputs: Iterable[TensorSpec | None],
    outputs: Iterable[TensorSpec | None],
    count: int = 1,
    **attrs: int | float | bool | str | tuple[int, ...],
) -> KernelCall:
    """Return a kernel call."""
    return KernelCall(type=kernel_type, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs, count=count)


def whole(number: float) -> int:
    """Return a number without its fraction. Raises DoesNotFit for a number that is not finite."""
    if not isfinite(number):
        raise DoesNotFit(f"{number} is not an integer")
    return int(number)


def is_contiguous(meta: TensorMeta) -> bool:
    """Check whether elements are in row-major order without gaps. Dimensions of size 1 may have any stride."""
    if meta.strides is None or len(meta.strides) != len(meta.shape) or 0 in meta.shape:
        return True
    pairs = zip(meta.shape, meta.strides, contiguous_strides(meta.shape), strict=True)
    return all(size == 1 or stride == expected for size, stride, expected in pairs)


def is_dense(meta: TensorMeta) -> bool:
    """Check whether elements fill their memory in some order of the dimensions, as elementwise kernels require."""
    if is_contiguous(meta):
        return True
    assert meta.strides is not None
    expected = 1
    for stride, size in sorted((st, sz) for sz, st in zip(meta.shape, meta.strides, strict=True) if sz != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def without_expanded(meta: TensorMeta) -> tuple[int, ...]:
    """Return the shape in memory: dimensions of stride 0 have size 1."""
    if meta.strides is None or len(meta.strides) != len(meta.shape):
        return meta.shape
    return tuple(1 if stride == 0 and size > 1 else size for size, stride in zip(meta.shape, meta.strides, strict=True))


def promote(dtypes: Iterable[str]) -> str:
    """Return the result dtype of mixed operands.

    It is the widest float if there is one, otherwise the widest integer.
    """
    best = "bool"
    for dtype in dtypes:
        if dtype in _RANK:
            best = dtype if best in _RANK and _RANK[dtype] > _RANK[best] else best
        elif best in _RANK or itemsize(dtype) > itemsize(best):
            best = dtype
    return best


def _is_result(arg: ReplayArg) -> bool:
    """Check whether an argument is the `out` of an out variant: written, but not read."""
    return arg.keyword_only and arg.mutated


class OpView:
    """Read access to one op during lowering. It also collects notes, and the kernels that make operands contiguous."""

    def __init__(
        self,
        op: ReplayOp,
        contents: Contents | None = None,
        *,
        by_order: bool = False,
        known: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """If `by_order` is set, the op's library is not installed, so its arguments have no names. A requested name is
        then assigned to the next unassigned tensor, or to the next other unassigned argument, and a note is added.

        `known` returns all names that the op's arguments can have. If it is given, a request for unknown names only
        raises KeyError.
        """
        self.op = op
        self._known = known
        self._by_order = by_order and bool(op.args) and all(_UNNAMED.fullmatch(arg.name) for arg in op.args)
        self.contents = contents
        """Summary of the arguments' values, if they are known."""
        self.args = Call({arg.name: arg for arg in op.args})
        self.prologue: list[KernelCall] = []
        self.notes: list[str] = []
        self.placed: dict[str, int] = {}
        """Requested names → positions of the unnamed arguments that were assigned to them."""
        self.assumed = False
        self.invented = False
        self.unbounded = ""
        self._tensors: list[TensorMeta] = [t for a in op.args if not _is_result(a) for t in a.tensors if t is not None]

    @property
    def tensors(self) -> list[TensorMeta]:
        """Return all tensor arguments in order, with lists flattened.

        The `out` arguments of out variants are left out.
        """
        return self._tensors

    def meta(self, *names: str, at: int | None = None) -> TensorMeta | None:
        """Return the first tensor named in `names`, or the tensor at position `at` if none of the names exists."""
        if at is None:
            self._take(names, tensor=True)
        for name in names:
            arg = self.args.get(name)
            if arg is not None:
                return next((t for t in arg.tensors if t is not None), None)
        return self._tensors[at] if at is not None and at < len(self._tensors) else None

    def need(self, *names: str, at: int | None = None, rank: int = 0) -> TensorMeta:
        """Return the first tensor whose name is in `names`, or the tensor at position `at`. Raises DoesNotFit if there
        is none, or if it has fewer than `rank` dimensions.
        """
        meta = self.meta(*names, at=at)
        if meta is None or len(meta.shape) < rank:
            wanted = " or ".join(names) or f"tensor {at}"
            raise DoesNotFit(f"{wanted} is not a tensor of rank {rank}" if rank else f"{wanted} was not recorded")
        return meta

    def widest(self, *, rank: int = 0) -> TensorMeta:
        """Return the first of the largest tensors with at least `rank` dimensions. Raises DoesNotFit if there is
        none.
        """
        metas = [meta for meta in self._tensors if len(meta.shape) >= rank]
        if not metas:
            raise DoesNotFit(f"no tensor of rank {rank} was recorded" if rank else "no tensor was recorded")
        return max(metas, key=elements)

    def axis(self, *names: str, rank: int) -> int | None:
        """Return a dimension argument as a non-negative index for a tensor of `rank` dimensions.

        Returns None if the argument is absent or `rank` is 0. Raises DoesNotFit for a dimension that the tensor does
        not have.
        """
        if rank == 0 or self.number(*names) is None:
            return None
        dim = self.integer(*names, default=0)
        if not -rank <= dim < rank:
            raise DoesNotFit(f"dimension {dim} does not exist in a tensor of rank {rank}")
        return dim % rank

    def metas(self, name: str) -> list[TensorMeta]:
        """Return the tensors of a list argument, or all tensors if the argument is absent."""
        self._take((name,), tensor=True)
        arg = self.args.get(name)
        return [t for t in arg.tensors if t is not None] if arg is not None else self._tensors

    def value(self, *names: str) -> object:
        """Return the value of the first of these arguments that is present, or None if there is none."""
        self._take(names, tensor=False)
        return self.args.value(*names)

    def _take(self, names: tuple[str, ...], *, tensor: bool) -> None:
        """Give the next unnamed argument the first name in `names`, if the op's arguments have no names."""
        if not names or any(name in self.args for name in names):
            return
        if not self._by_order:
            known = self._known() if self._known is not None else ()
            if known and set(known).isdisjoint(names):
                raise KeyError(f"{self.op.called} has no argument {' or '.join(names)}, it has {', '.join(known)}")
            return
        named = {id(arg) for name, arg in self.args.items() if name != arg.name}
        unnamed = (i for i, arg in enumerate(self.op.args) if bool(arg.tensors) == tensor and id(arg) not in named)
        place = next(unnamed, None)
        if place is not None:
            self.args[names[0]] = self.op.args[place]
            self.placed[names[0]] = place
            self.assume(f"its library is not installed: unnamed argument {place} is assumed to be {names[0]}")

    def number(self, *names: str) -> float | None:
        """Return a numeric argument, or None if it is absent or not a number."""
        value = self.value(*names)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def integer(self, *names: str, default: int) -> int:
        """Return an integer argument. Raises DoesNotFit if it is not finite."""
        number = self.number(*names)
        return whole(number) if number is not None else default

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return a boolean argument."""
        value = self.value(*names)
        return bool(value) if isinstance(value, bool | int) else default

    def integers(self, *names: str) -> tuple[int, ...]:
        """Return the integers of a list argument, or () if it is absent.

        A single integer counts as a list of one. Raises DoesNotFit like `integer`.
        """
        value = self.value(*names)
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        if isinstance(value, tuple | list):
            items = cast("Sequence[Any]", value)
            return tuple(whole(v) for v in items if isinstance(v, int | float))
        return ()

    def dense(self, *names: str, at: int | None = None) -> TensorSpec | None:
        """Return the spec of a tensor as a vector kernel reads it.

        If the tensor is not dense, a kernel that copies it is added.
        """
        meta = self.meta(*names, at=at)
        return None if meta is None else self.packed(meta)

    def packed(self, meta: TensorMeta, *, row_major: bool = False) -> TensorSpec:
        """Return the spec of a given tensor as `dense` does.

        With `row_major`, tensors with permuted dimensions are copied as well.
        """
        real = without_expanded(meta)
        if real != meta.shape and not row_major:
            return spec(real, meta.dtype)
        if real == meta.shape and (is_contiguous(meta) or (not row_major and is_dense(meta))):
            return spec(meta.shape, meta.dtype)
        self.prologue.append(strided_copy(meta))
        return spec(meta.shape, meta.dtype)

    def outputs(self, *fallback: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the outputs that the op had on meta tensors, or `fallback` if they are unknown."""
        return tuple(spec(t.shape, t.dtype) for t in self.op.outputs or () if t is not None) or fallback

    def output(self, fallback: TensorSpec) -> TensorSpec:
        """Return the first output, or `fallback`."""
        return self.outputs(fallback)[0]

    def broadcast_output(self) -> TensorSpec:
        """Return the output of elementwise arithmetic on all tensors."""
        shape = broadcast([t.shape for t in self._tensors])
        wide = [t.dtype for t in self._tensors if t.shape] or [t.dtype for t in self._tensors] or ["float32"]
        return self.output(spec(shape, promote(wide)))

    def assume(self, text: str) -> None:
        """Add a note that sizes on which the time depends were assumed. The op is also marked as uncalibrated."""
        self.assumed = True
        self.note(text)

    def invent(self, text: str) -> None:
        """Do the same as `assume`, for sizes of which only a bound is known.

        The bound is derived from the recorded time.
        """
        self.invented = True
        self.assume(text)

    def note(self, text: str) -> None:
        """Add a note about an assumption or omission, shown by `plan --explain`."""
        if text not in self.notes:
            self.notes.append(text)


def strided_copy(meta: TensorMeta) -> KernelCall:
    """Return the kernel that makes a strided tensor contiguous: a transpose, a copy of a slice, or an expansion."""
    out = spec(meta.shape, meta.dtype)
    real = without_expanded(meta)
    if real != meta.shape:
        return kernel("BroadcastTo", [spec(real, meta.dtype)], [out])
    strides = meta.strides or contiguous_strides(meta.shape)
    order = sorted((i for i, s in enumerate(meta.shape) if s != 1), key=lambda i: -strides[i])
    if order != sorted(order):
        inner = next((i for i in reversed(range(len(meta.shape))) if meta.shape[i] != 1), 0)
        run = meta.shape[inner] if order and order[-1] == inner else 1
        source = spec([meta.shape[i] for i in order], meta.dtype)
        if (swapped := swapped_rows(meta.shape, strides)) is not None:
            return kernel("Transpose", [source], [out], run=run, swapped=swapped)
        return kernel("Transpose", [source], [out], run=run)
    return kernel("Slice", [out], [out])


def swapped_rows(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """Return (rows, columns) of the matrices that a copy to contiguous memory transposes.

    Returns None if the copy does not transpose matrices. Dimensions that are adjacent in memory are merged.
    """
    merged: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size != 1 and merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        elif size != 1:
            merged.append((size, stride))
    if len(merged) not in (2, 3) or merged[-2][1] != 1 or (len(merged) == 3 and merged[0][1] < merged[2][1]):
        return None
    return merged[-1][0], merged[-2][0]


def length(meta: TensorMeta | None, default: int = 1) -> int:
    """Return the first size of a tensor, or `default` if it has no dimensions or is None."""
    return meta.shape[0] if meta is not None and meta.shape else default


def elements(meta: TensorMeta | TensorSpec) -> int:
    """Return the number of elements."""
    return prod(meta.shape)
