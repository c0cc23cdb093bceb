# pyright: strict
"""Finds the source of each argument of a sequence: a result of an earlier call, or a tensor from outside the sequence.

`lifetimes` determines how long tensors live and which memory they use. Needs no torch.

If an ExecutionTrace records the memory of each tensor, tensors in the same memory are one tensor.

Other traces record sizes but not identities. There, an argument is assumed to be an earlier result of equal dtype,
shape and strides. If several results are equal, the latest one is taken, unless `roles` gives a better candidate. If no
result is equal, the argument is assumed to be a view of a contiguous result with as many elements. The sequence does
not contain the call that made this view. All other arguments come from outside: parameters and inputs of the model.
They are separate for each call of an op, because each layer has its own weights.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir.model import RecordedSequence, ReplayOp
from opreplay.replay.ir.names import names_in
from opreplay.replay.plan.step.roles import DECAYED, FACTORS, MADE_BY, SCALED, SQUARED, is_backward, is_number, is_saved
from opreplay.traces.garbage import collector_off
from opreplay.traces.model import TensorMeta, contiguous_strides

PARAMETERS = frozenset({"weight", "weights", "bias", "running_mean", "running_var", "gamma", "beta"})
"""Names of arguments that are model parameters.

Such an argument comes from outside even if an earlier result has the same size. The only exception is a result that an
op of `CASTS` has just created from a parameter: the argument may be that result.
"""
CASTS = frozenset({"aten::to", "aten::_to_copy", "aten::t", "aten::transpose", "aten::detach", "aten::contiguous"})
"""Ops that a model applies to a parameter before using it."""
NO_VIEWS = PARAMETERS | {"mat2"}
"""Names of arguments that are never views of a result. A parameter may happen to have as many elements as a result."""
PRODUCTS = frozenset({"aten::bmm", "aten::baddbmm", "aten::matmul"})
"""Matrix products of two activations."""
VIEWS = names_in(
    """
    view view_as _unsafe_view _reshape_alias alias as_strided expand expand_as permute transpose t numpy_T mT mH
    adjoint swapaxes swapdims movedim moveaxis squeeze unsqueeze select slice narrow split split_with_sizes chunk
    tensor_split unbind unfold diagonal detach flatten unflatten view_as_real view_as_complex real imag lift_fresh
    broadcast_to hsplit vsplit
    """,
    "aten::",
)
"""Ops whose results share the memory of their first argument."""

UNKNOWN = -1
"""Memory number of a tensor whose memory was not recorded."""
Memories = tuple[tuple[int, ...], tuple[int, ...]]
"""(memory numbers of a call's arguments, memory numbers of its results), without absent tensors."""
Key = tuple[tuple[int, ...], str, tuple[int, ...]]
"""(shape, dtype, strides)."""
Size = tuple[str, int]
"""(dtype, elements)."""


class Value(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One result of a call."""

    call: int
    """Position of the call in the sequence."""
    output: int
    """Index among the call's results, with lists flattened."""


class Source(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where one tensor argument comes from."""

    kind: Literal["result", "view", "outside", "own", "absent"]
    """"view": a result read with the argument's shape and strides; "own": created for this call only."""
    value: Value | None = None
    number: int = -1
    """Number of an outside tensor."""
    seen: bool = False
    """Whether the outside tensor is read through a view with the argument's shape and strides."""


_ABSENT = Source("absent")


class Outside(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tensor that no call of the sequence creates."""

    op: int
    """Index of the op whose initializer fills the tensor."""
    argument: int
    """Index of the argument among the op's tensor arguments, with lists flattened."""
    occurrence: int
    """Index of the first call that uses the tensor, among the step's calls of that op."""
    memory: int = UNKNOWN
    """Number of the tensor's recorded memory; `UNKNOWN` if not recorded."""


class Linked(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a sequence, with the source of every tensor argument."""

    calls: tuple[int, ...]
    """Index of the op of each call."""
    sources: tuple[tuple[Source, ...], ...]
    """For each call, one source per tensor argument, with lists flattened."""
    outside: tuple[Outside, ...]
    recorded: int = 0
    """Number of arguments whose memory was recorded, so that their source is certain."""


@collector_off()
def link(
    ops: Sequence[ReplayOp],
    calls: Sequence[int],
    *,
    memories: Sequence[Memories] = (),
    fixed_integers: Collection[str] = (),
    own: Collection[str] = (),
    unknown: Collection[tuple[str, int]] = (),
    exact: bool = False,
    gaps: bool = False,
) -> Linked:
    """Return the source of every tensor argument of `calls`, which are indices into `ops`.

    `memories` holds the memory numbers of each call's arguments and results, if a trace records them; tensors in the
    same memory are then one tensor. `fixed_integers` holds ids of ops whose integer tensors are indices, which must
    come from the op's initializer. `own` holds ids of ops that use no results of other ops. `unknown` holds (id,
    output) of results that differ from the plan. With `gaps`, an argument with non-contiguous elements is assumed to be
    part of a result that is as large as the span of these elements. This determines the argument's memory, but not its
    position there.
    """
    linker = _Linker(ops, set(fixed_integers), set(own), set(unknown), exact=exact, gaps=gaps)
    sources: list[tuple[Source, ...]] = []
    for place, index in enumerate(calls):
        following = calls[place + 1] if place + 1 < len(calls) else None
        sources.append(linker.next(place, index, following, memories[place] if memories else ((), ())))
    return Linked(calls=tuple(calls), sources=tuple(sources), outside=tuple(linker.outside), recorded=linker.recorded)


def linked_step(ops: Sequence[ReplayOp], sequence: RecordedSequence) -> tuple[list[ReplayOp], list[int], Linked]:
    """Return the ops that a step calls, its calls as indices into these ops, and the links between their tensors.

    Calls of ops that are not in `ops` are skipped.
    """
    by_id = {op.id: op for op in ops}
    called = [by_id[id_] for id_ in sequence.ids if id_ in by_id]
    place = {op.id: index for index, op in enumerate(called)}
    known_calls = [at for at, index in enumerate(sequence.calls) if sequence.ids[index] in place]
    calls = [place[sequence.ids[sequence.calls[at]]] for at in known_calls]
    memories = [sequence.memories[at] for at in known_calls] if sequence.memories else ()
    return called, calls, link(called, calls, memories=memories, gaps=True)


def _aligned(metas: Sequence[TensorMeta | None], memories: Sequence[int]) -> list[int]:
    """Return the memory number of each tensor. If the number of memories differs from the number of tensors, all are
    `UNKNOWN`.
    """
    there = [place for place, meta in enumerate(metas) if meta is not None]
    aligned = [UNKNOWN] * len(metas)
    if len(there) == len(memories):
        for place, memory in zip(there, memories, strict=True):
            aligned[place] = memory
    return aligned


def tensors_of(op: ReplayOp) -> list[tuple[str, bool, TensorMeta | None]]:
    """Return (argument name, whether the op writes to it, metadata) of all tensor arguments, in order.

    Lists are flattened. The metadata of an absent tensor is None.
    """
    return [(arg.name, arg.mutated, meta) for arg in op.args for meta in arg.tensors]


def results_of(op: ReplayOp) -> tuple[TensorMeta | None, ...]:
    """Return the metadata of the expected results, with lists flattened; empty if the plan does not contain it."""
    return op.outputs or op.recorded_outputs or ()


class _Tensor(msgspec.Struct, frozen=True, gc=False):
    """The properties of an argument or result that determine whether two tensors may be the same."""

    name: str
    meta: TensorMeta | None
    key: int
    size: int
    """Number that a tensor shares with its views, which have the same `Size`; -1 for a tensor without a `Size`.

    The number in `key`, in contrast, is shared only by tensors that are equal in shape, dtype and strides.
    """
    linkable: bool
    viewable: bool
    saved: bool = False
    """Whether the forward pass saved the argument. If so, the argument is not a gradient."""
    made_by: Collection[str] | None = None
    """Ops that may have created the tensor; None for any op."""


class _Looks(dict[TensorMeta, tuple[int, int]]):
    """Cache that maps metadata to (its key number, its size number); the size number is -1 without a size. It helps
    because most tensors repeat.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[Key | Size, int] = {}

    def reach(self, meta: TensorMeta) -> int:
        """Return the size number of a contiguous tensor that is as large as this tensor with its gaps; -1 if
        unknown.
        """
        if meta.strides is None or 0 in meta.strides or not meta.shape:
            return -1
        reach = max(size * step for size, step in zip(meta.shape, meta.strides, strict=True))
        return self._numbers.setdefault((meta.dtype, reach), len(self._numbers))

    def __missing__(self, meta: TensorMeta) -> tuple[int, int]:
        numbers, size = self._numbers, _size(meta)
        key = numbers.setdefault(key_of(meta), len(numbers))
        self[meta] = look = key, -1 if size is None else numbers.setdefault(size, len(numbers))
        return look


class _Form:
    """The tensor arguments and results of an op, as far as they affect linking."""

    __slots__ = (
        "backward",
        "forward",
        "metas",
        "multiplies",
        "name",
        "results",
        "scales",
        "squared",
        "tensors",
        "views",
    )

    def __init__(
        self,
        op: ReplayOp,
        fixed_integers: bool,
        own: bool,
        unknown: Collection[tuple[str, int]],
        looks: _Looks,
        gaps: bool,
    ) -> None:
        shared = {name for members in aliasing.groups(op.args).values() for name, _ in members}
        self.tensors: list[_Tensor] = []
        for name, _, meta in tensors_of(op):
            first = self.tensors[0].meta if self.tensors else None
            number = meta is not None and bool(self.tensors) and is_number(name, meta, first)
            fixed = meta is not None and fixed_integers and not aliasing.is_floating(meta.dtype)
            alone = own or fixed or number or name in shared
            self.tensors.append(_tensor(op, name, meta, looks, alone=alone, gaps=gaps))
        self.metas = results_of(op)
        self.name, self.backward = op.name, is_backward(op.name)
        self.multiplies, self.scales = op.name in FACTORS, op.name == SCALED
        self.views = op.name in VIEWS or op.name in CASTS
        keys = [tensor.key for tensor in self.tensors]
        # What is multiplied with itself is recorded twice, one after the other.
        self.squared = 2 if op.name == SQUARED and keys[1:2] == keys[2:3] else -1
        self.forward = any(tensor.name in PARAMETERS for tensor in self.tensors)
        self.results = [
            (output, _Tensor("", meta, *looks[meta], True, True))
            for output, meta in enumerate(self.metas)
            if meta is not None and (op.id, output) not in unknown
        ]

    def is_state_of(self, following: _Form) -> bool:
        """Check whether a tensor that this op scales in place is a parameter or optimizer state.

        This is the case if the next call (`following`) runs an op in `DECAYED` whose first tensor is equal to the
        scaled one.
        """
        if following.name not in DECAYED or not self.tensors or not following.tensors:
            return False
        return following.tensors[0].key == self.tensors[0].key


def _tensor(op: ReplayOp, name: str, meta: TensorMeta | None, looks: _Looks, *, alone: bool, gaps: bool) -> _Tensor:
    """Return the properties of an argument. With `alone`, the argument is never linked to a result of another call."""
    if meta is None:
        return _Tensor(name, None, -1, -1, False, False)
    key, size = looks[meta]
    if gaps and size < 0:
        size = looks.reach(meta)
    linkable = not alone and 0 not in meta.shape
    # Of one element there are too many: a scalar is no view of another one.
    parameter = name in NO_VIEWS and not (gaps and op.name in PRODUCTS)
    viewable = linkable and not parameter and size >= 0 and math.prod(meta.shape) > 1
    made_by = MADE_BY.get(op.name, {}).get(name)
    return _Tensor(name, meta, key, size, linkable, viewable, is_saved(op.name, name), made_by)


class _Linker:
    """Links the calls of a sequence, one after the other."""

    def __init__(
        self,
        ops: Sequence[ReplayOp],
        fixed_integers: Collection[str],
        own: Collection[str],
        unknown: Collection[tuple[str, int]],
        *,
        exact: bool,
        gaps: bool,
    ) -> None:
        self._ops, self._fixed_integers, self._own, self._unknown = ops, fixed_integers, own, unknown
        self._exact, self._gaps = exact, gaps
        self._forms: dict[int, _Form] = {}
        self._looks, self._alive, self._known, self._taken = _Looks(), _Alive(), _Known(), _Taken()
        self._seen = [0] * len(ops)
        self.outside: list[Outside] = []
        self.recorded = 0
        """Number of arguments whose memory was recorded."""

    def next(self, place: int, index: int, following: int | None, memories: Memories) -> tuple[Source, ...]:
        """Return the sources of the tensor arguments of the next call, and register the call's results."""
        form = self._form_of(index)
        decayed = form.scales and following is not None and form.is_state_of(self._form_of(following))
        lies_in = _aligned([tensor.meta for tensor in form.tensors], memories[0]) if memories[0] else None
        self._taken.clear()
        gradient, sources = False, list[Source]()
        for argument, tensor in enumerate(form.tensors):
            memory = lies_in[argument] if lies_in and (self._exact or tensor.linkable) else UNKNOWN
            self.recorded += memory >= 0
            source = _ABSENT if tensor.meta is None else self._known.find(memory, tensor)
            if source is None and memory < 0 and not decayed:
                source = self._inferred(form, argument, sources, gradient=gradient)
            if source is None:
                source = self._from_outside(index, argument, memory)
            elif source.value is not None:
                self._taken.values.add(source.value)
            sources.append(source)
            gradient = gradient or source.value in self._alive.gradients
        self._seen[index] += 1
        self._add_results(place, form, sources, memories[1], gradient=gradient)
        return tuple(sources)

    def _form_of(self, index: int) -> _Form:
        form = self._forms.get(index)
        if form is None:
            op = self._ops[index]
            fixed, own = op.id in self._fixed_integers, op.id in self._own
            form = self._forms[index] = _Form(op, fixed, own, self._unknown, self._looks, self._gaps)
        return form

    def _inferred(self, form: _Form, argument: int, before: Sequence[Source], *, gradient: bool) -> Source | None:
        """Return the result that an argument probably is, judged by its metadata and role; None if no result fits.

        `before` holds the sources of the preceding arguments of the call. `gradient` says whether one of them is a
        gradient.
        """
        tensor = form.tensors[argument]
        if tensor.made_by is not None:
            return self._alive.made_by(tensor.made_by, tensor, self._taken)
        if argument == form.squared and before[0].kind == "result":
            return before[-1]
        source = self._alive.find(tensor, self._taken, plain=tensor.saved or (gradient and form.multiplies))
        seen_again = source is not None and source.kind == "view" and source.value in self._alive.outer
        return None if form.views and seen_again else source

    def _from_outside(self, index: int, argument: int, memory: int) -> Source:
        source = Source("outside", number=len(self.outside))
        self.outside.append(Outside(op=index, argument=argument, occurrence=self._seen[index], memory=memory))
        self._known.add(memory, source, self._form_of(index).tensors[argument])
        return source

    def _add_results(
        self, place: int, form: _Form, sources: Sequence[Source], memories: tuple[int, ...], *, gradient: bool
    ) -> None:
        lies_in = _aligned(form.metas, memories) if memories else None
        alive = self._alive
        of_outer = form.views and bool(sources) and (sources[0].kind == "outside" or sources[0].value in alive.outer)
        for output, result in form.results:
            value = Value(place, output)
            alive.add(value, result, form.name, gradient=form.backward or (gradient and not form.forward))
            if of_outer:
                alive.outer.add(value)
            if lies_in:
                self._known.add(lies_in[output], Source("result", value), result)


class _Known:
    """The last known source of each recorded memory, separately for each shape in which it was used."""

    def __init__(self) -> None:
        self._exact: dict[tuple[int, int], Source] = {}
        self._dense: dict[tuple[int, int], Source] = {}

    def add(self, memory: int, source: Source, tensor: _Tensor) -> None:
        if memory < 0 or tensor.meta is None:
            return
        self._exact[memory, tensor.key] = source
        if tensor.size >= 0:
            self._dense[memory, tensor.size] = source

    def find(self, memory: int, tensor: _Tensor) -> Source | None:
        """Return the source of the tensor in this memory. The tensor is the known one itself or a view of it with as
        many elements.
        """
        if memory < 0 or tensor.meta is None:
            return None
        if (exact := self._exact.get((memory, tensor.key))) is not None:
            return exact
        dense = self._dense.get((memory, tensor.size))  # nothing has the size -1
        if dense is None:
            return None
        return Source("view", dense.value) if dense.kind == "result" else msgspec.structs.replace(dense, seen=True)


class _Taken:
    """The results that the current call already uses, and how far each list of results has been searched."""

    def __init__(self) -> None:
        self.values: set[Value] = set()
        self._below: dict[tuple[bool, int], int] = {}

    def clear(self) -> None:
        """Reset for the next call."""
        self.values.clear()
        self._below.clear()

    def latest(self, look: tuple[bool, int], values: Sequence[Value]) -> Value | None:
        """Return the last of `values` that the call does not use yet; None if there is none. A search continues where
        the previous one stopped, because lists grow only between calls.
        """
        below = self._below.get(look, len(values))
        while below and values[below - 1] in self.values:
            below -= 1
        self._below[look] = below
        return values[below - 1] if below else None


class _Alive:
    """All results so far, in the order of calls, indexed by their metadata."""

    def __init__(self) -> None:
        self._exact: dict[int, list[Value]] = defaultdict(list)
        self._sizes: dict[int, list[Value]] = defaultdict(list)
        self._plain_exact: dict[int, list[Value]] = defaultdict(list)
        self._plain_sizes: dict[int, list[Value]] = defaultdict(list)
        """Size number → the results of this size that are not gradients."""
        self.gradients: set[Value] = set()
        """Results that are gradients or were computed from gradients by ops without parameters."""
        self.outer: set[Value] = set()
        """Views and casts of outside tensors. No argument is assumed to be a view of one of these that a missing call
        made. For example, of two transposed weights, neither is a view of the other.
        """
        self._cast: set[Value] = set()
        self._made: dict[tuple[str, int], Value] = {}
        """(op name, key number) → the latest result of this op with this key."""

    def add(self, value: Value, tensor: _Tensor, op: str, *, gradient: bool) -> None:
        if gradient:
            self.gradients.add(value)
        for exact, sizes in ((self._exact, self._sizes), (self._plain_exact, self._plain_sizes))[: 2 - gradient]:
            exact[tensor.key].append(value)
            if tensor.size >= 0:
                sizes[tensor.size].append(value)
        if op in CASTS:
            self._cast.add(value)
        self._made[op, tensor.key] = value

    def made_by(self, ops: Collection[str], tensor: _Tensor, taken: _Taken) -> Source | None:
        """Return the latest result of these ops that can be the argument; None if there is none."""
        candidates = [value for op in ops if (value := self._made.get((op, tensor.key))) and value not in taken.values]
        return Source("result", max(candidates)) if candidates and tensor.linkable else None

    def find(self, tensor: _Tensor, taken: _Taken, *, plain: bool) -> Source | None:
        """Return the latest result that the argument may be; None if there is none.

        With `plain`, results that are gradients are left out. A call uses each result only once.
        """
        if not tensor.linkable or tensor.meta is None:
            return None
        of_key, of_size = (self._plain_exact, self._plain_sizes) if plain else (self._exact, self._sizes)
        exact = taken.latest((plain, tensor.key), of_key.get(tensor.key, ()))
        if exact is not None and (tensor.name not in PARAMETERS or exact in self._cast):
            return Source("result", exact)
        if not tensor.viewable:
            return None
        seen = taken.latest((plain, ~tensor.size), of_size.get(tensor.size, ()))
        return None if seen is None else Source("view", seen)


def key_of(meta: TensorMeta) -> Key:
    """Return the metadata that are the same for equal tensors; unknown strides count as contiguous."""
    strides = contiguous_strides(meta.shape) if meta.strides is None else meta.strides
    # Strides of dimensions of one element mean nothing and differ from op to op.
    plain = tuple(0 if size == 1 else step for size, step in zip(meta.shape, strides, strict=True))
    return meta.shape, meta.dtype, plain


def _size(meta: TensorMeta) -> Size | None:
    """Return (dtype, number of elements) of a tensor whose elements fill its memory without gaps or repetitions, in any
    order of dimensions. None for other tensors.
    """
    if meta.strides is not None:
        expected = 1
        for step, size in sorted(
            (step, size) for size, step in zip(meta.shape, meta.strides, strict=True) if size != 1
        ):
            if step != expected:
                return None
            expected *= size
    return meta.dtype, math.prod(meta.shape)


def counts(linked: Linked) -> Mapping[str, int]:
    """Return the number of tensor arguments for each kind of source; absent arguments are not counted."""
    by_kind = {"result": 0, "view": 0, "outside": 0, "own": 0}
    for sources in linked.sources:
        for source in sources:
            if source.kind != "absent":
                by_kind[source.kind] += 1
    return by_kind
