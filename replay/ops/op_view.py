# pyright: strict
"""An op's arguments as lowering rules want them: tensors by name or position, numbers, outputs, layout fix-ups."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from math import isfinite, prod
from typing import Any, cast

from opreplay.replay.ir.kernel import KernelCall, TensorSpec, broadcast, itemsize
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ops.work.contents import Contents
from opreplay.traces.model import TensorMeta, contiguous_strides

_UNNAMED = re.compile(r"arg\d+")
"""Names of the arguments of an op that is not resolved."""
_RANK = {"bool": 0, "uint8": 1, "int8": 1, "int16": 2, "int32": 3, "int64": 4}


class DoesNotFit(Exception):
    """Arguments that a rule makes no sense of: a trace may record anything under a known name."""


def spec(shape: Iterable[int], dtype: str, layout: str = "ND") -> TensorSpec:
    """A tensor as a kernel sees it; sizes below 0 (never recorded by a sound profiler) count as 0."""
    return TensorSpec(shape=tuple(max(0, int(s)) for s in shape), dtype=dtype, format=layout)


def kernel(
    kernel_type: str,
    inputs: Iterable[TensorSpec | None],
    outputs: Iterable[TensorSpec | None],
    count: int = 1,
    **attrs: int | float | bool | str | tuple[int, ...],
) -> KernelCall:
    """A kernel call."""
    return KernelCall(type=kernel_type, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs, count=count)


def whole(number: float) -> int:
    """A number without its fraction. Raises DoesNotFit for one that is not finite."""
    if not isfinite(number):
        raise DoesNotFit(f"{number} where a whole number belongs")
    return int(number)


def is_contiguous(meta: TensorMeta) -> bool:
    """Whether elements lie in row-major order without gaps; sizes of 1 may have any stride."""
    if meta.strides is None or len(meta.strides) != len(meta.shape) or 0 in meta.shape:
        return True
    pairs = zip(meta.shape, meta.strides, contiguous_strides(meta.shape), strict=True)
    return all(size == 1 or stride == expected for size, stride, expected in pairs)


def is_dense(meta: TensorMeta) -> bool:
    """Whether elements fill their memory in some order of the dimensions, so that elementwise kernels take them."""
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
    """The shape with dimensions of stride 0 reduced to 1: what really lies in memory."""
    if meta.strides is None or len(meta.strides) != len(meta.shape):
        return meta.shape
    return tuple(1 if stride == 0 and size > 1 else size for size, stride in zip(meta.shape, meta.strides, strict=True))


def promote(dtypes: Iterable[str]) -> str:
    """Result dtype of mixed operands: the widest float where there is one, else the widest integer."""
    best = "bool"
    for dtype in dtypes:
        if dtype in _RANK:
            best = dtype if best in _RANK and _RANK[dtype] > _RANK[best] else best
        elif best in _RANK or itemsize(dtype) > itemsize(best):
            best = dtype
    return best


def _is_result(arg: ReplayArg) -> bool:
    """Whether an argument is the `out` of an out variant: written, and not read."""
    return arg.keyword_only and arg.mutated


class OpView:
    """Read access to one op while it is lowered; collects kernels that make operands contiguous, and notes."""

    def __init__(
        self,
        op: ReplayOp,
        contents: Contents | None = None,
        *,
        by_order: bool = False,
        known: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """`by_order`: where the op's library is not here, its arguments have no names; a name that is asked for then
        means the next tensor, or the next other argument, that none was asked for yet, and a note says so. `known`: all
        names that the op's arguments have; to ask for none of them is then a KeyError."""
        self.op = op
        self._known = known
        self._by_order = by_order and bool(op.args) and all(_UNNAMED.fullmatch(arg.name) for arg in op.args)
        self.contents = contents
        """What the arguments' values amount to, where known."""
        self.args: dict[str, ReplayArg] = {arg.name: arg for arg in op.args}
        self.prologue: list[KernelCall] = []
        self.notes: list[str] = []
        self.placed: dict[str, int] = {}
        """Names that were asked for → places of the arguments without names that were given for them."""
        self.assumed = False
        self.invented = False
        self.unbounded = ""
        self._tensors: list[TensorMeta] = [t for a in op.args if not _is_result(a) for t in a.tensors if t is not None]

    @property
    def tensors(self) -> list[TensorMeta]:
        """All tensors among the arguments but those of out variants, lists flattened, in order."""
        return self._tensors

    def meta(self, *names: str, at: int | None = None) -> TensorMeta | None:
        """The first tensor found under one of `names`; else the tensor at place `at` among all, where none is named."""
        if at is None:
            self._take(names, tensor=True)
        for name in names:
            arg = self.args.get(name)
            if arg is not None:
                return next((t for t in arg.tensors if t is not None), None)
        return self._tensors[at] if at is not None and at < len(self._tensors) else None

    def need(self, *names: str, at: int | None = None, rank: int = 0) -> TensorMeta:
        """`meta` of an argument that the rule cannot do without, of at least `rank` dimensions. Raises DoesNotFit."""
        meta = self.meta(*names, at=at)
        if meta is None or len(meta.shape) < rank:
            wanted = " or ".join(names) or f"tensor {at}"
            raise DoesNotFit(f"{wanted} is no tensor of {rank} dimensions" if rank else f"{wanted} is not recorded")
        return meta

    def widest(self, *, rank: int = 0) -> TensorMeta:
        """The first of the tensors with most elements, of at least `rank` dimensions. Raises DoesNotFit without one."""
        metas = [meta for meta in self._tensors if len(meta.shape) >= rank]
        if not metas:
            raise DoesNotFit(f"no tensor of {rank} dimensions is recorded" if rank else "no tensor is recorded")
        return max(metas, key=elements)

    def axis(self, *names: str, rank: int) -> int | None:
        """A dimension, counted from the first, of a tensor of `rank`; None when absent, or of a scalar.

        Raises DoesNotFit for one that the tensor does not have.
        """
        if rank == 0 or self.number(*names) is None:
            return None
        dim = self.integer(*names, default=0)
        if not -rank <= dim < rank:
            raise DoesNotFit(f"dimension {dim} of a tensor of {rank}")
        return dim % rank

    def metas(self, name: str) -> list[TensorMeta]:
        """The tensors of a list argument; all tensors when the argument is not there."""
        self._take((name,), tensor=True)
        arg = self.args.get(name)
        return [t for t in arg.tensors if t is not None] if arg is not None else self._tensors

    def value(self, *names: str) -> object:
        """The value of the first argument that is there, None otherwise."""
        self._take(names, tensor=False)
        for name in names:
            arg = self.args.get(name)
            if arg is not None:
                return arg.value
        return None

    def _take(self, names: tuple[str, ...], *, tensor: bool) -> None:
        """Give the first of `names` to the next unnamed argument, where arguments have no names."""
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
            self.assume(f"its library is not here, so arguments have no names: {names[0]} is taken for number {place}")

    def number(self, *names: str) -> float | None:
        """A numeric argument; None when absent or not a number."""
        value = self.value(*names)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def integer(self, *names: str, default: int) -> int:
        """An integer argument. Raises DoesNotFit for one that is not finite."""
        number = self.number(*names)
        return whole(number) if number is not None else default

    def flag(self, *names: str, default: bool = False) -> bool:
        """A boolean argument."""
        value = self.value(*names)
        return bool(value) if isinstance(value, bool | int) else default

    def integers(self, *names: str) -> tuple[int, ...]:
        """A list of integers (an integer counts as a list of one); empty when absent. Raises as `integer` does."""
        value = self.value(*names)
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        if isinstance(value, tuple | list):
            items = cast("Sequence[Any]", value)
            return tuple(whole(v) for v in items if isinstance(v, int | float))
        return ()

    def dense(self, *names: str, at: int | None = None) -> TensorSpec | None:
        """A tensor as a vector kernel takes it; a copy is charged first when its elements do not lie densely."""
        meta = self.meta(*names, at=at)
        return None if meta is None else self.packed(meta)

    def packed(self, meta: TensorMeta, *, row_major: bool = False) -> TensorSpec:
        """`dense` for a tensor at hand; with `row_major` any permutation of dimensions is copied too."""
        real = without_expanded(meta)
        if real != meta.shape and not row_major:
            return spec(real, meta.dtype)
        if real == meta.shape and (is_contiguous(meta) or (not row_major and is_dense(meta))):
            return spec(meta.shape, meta.dtype)
        self.prologue.append(strided_copy(meta))
        return spec(meta.shape, meta.dtype)

    def outputs(self, *fallback: TensorSpec) -> tuple[TensorSpec, ...]:
        """Outputs from the run on meta tensors, else `fallback`."""
        return tuple(spec(t.shape, t.dtype) for t in self.op.outputs or () if t is not None) or fallback

    def output(self, fallback: TensorSpec) -> TensorSpec:
        """The first output."""
        return self.outputs(fallback)[0]

    def broadcast_output(self) -> TensorSpec:
        """What elementwise arithmetic on all tensors gives."""
        shape = broadcast([t.shape for t in self._tensors])
        wide = [t.dtype for t in self._tensors if t.shape] or [t.dtype for t in self._tensors] or ["float32"]
        return self.output(spec(shape, promote(wide)))

    def assume(self, text: str) -> None:
        """Note that sizes were made up which decide the time: the op is then marked uncalibrated."""
        self.assumed = True
        self.note(text)

    def invent(self, text: str) -> None:
        """As `assume`, of sizes that nothing but a bound from the recorded time tells."""
        self.invented = True
        self.assume(text)

    def note(self, text: str) -> None:
        """Something assumed or left out, shown by `plan --explain`."""
        if text not in self.notes:
            self.notes.append(text)


def strided_copy(meta: TensorMeta) -> KernelCall:
    """The kernel that makes a strided tensor contiguous: a transposition, a slice's copy, or an expansion."""
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
    """(rows, columns) of the matrices that making a strided tensor contiguous transposes, dimensions that lie together
    taken as one; None where it does more, or less, than that."""
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
    """The first size of a tensor; `default` where it has none, or is not there."""
    return meta.shape[0] if meta is not None and meta.shape else default


def elements(meta: TensorMeta | TensorSpec) -> int:
    """Number of elements."""
    return prod(meta.shape)
