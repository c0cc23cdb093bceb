"""Rewrites a captured plan to the kernels of vLLM-Ascend and MindIE.

Norms, rotary embeddings, SwiGlu, attention and experts become the fused kernels of torch_npu. Calls that match a fused
kernel are found by following their inputs. They are fused under two conditions: no other call uses their intermediate
results, and the inputs of the fused kernel still have the same values when it runs. This module rewrites a plan;
`fusions` determines which calls form a kernel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from typing import Any

import msgspec

from opreplay.replay.ir.captured import Capture, Kind, PhasePeak, StepPhase, peaks_of
from opreplay.replay.ir.model import NOT_RECORDED, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import itemsize, tensors_of
from opreplay.replay.plan.passes import by_recorded_time
from opreplay.replay.plan.step.linking import VIEWS, Memories
from opreplay.replay.resolve.names import candidates
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.schema import ArgSpec, named_after_gaps
from opreplay.replay.resolve.written.unfit import published_specs
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta, contiguous_strides

CACHE_WRITES = frozenset({"aten::index_copy_", "npu::_npu_reshape_and_cache"})
"""Calls that write to a cache."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a call, identified by its storage, position and version."""

    storage: int
    memory: int
    """Number of the memory location at which the tensor begins."""
    version: int
    """Number of writes to the storage before this tensor is read or returned."""
    meta: TensorMeta = field(compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.meta.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The recorded strides; if none are recorded, those of a row-major tensor."""
        return self.meta.strides or contiguous_strides(self.meta.shape)


def seen_as(tensor: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """Return a view of a tensor with another shape and strides."""
    meta = msgspec.structs.replace(tensor.meta, shape=shape, strides=strides)
    return Tensor(tensor.storage, tensor.memory, tensor.version, meta)


def dense(shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> TensorMeta:
    """Return the metadata of a tensor: row-major unless `strides` are given."""
    return TensorMeta(shape=shape, dtype=dtype, strides=strides or contiguous_strides(shape))


class Call(msgspec.Struct, eq=False):
    """One call of the step that allocates or writes memory. Views are not included."""

    place: int
    name: str
    """Name with overload: "aten::add.Tensor"."""
    values: dict[str, Any]
    """Argument → its value: a Tensor, a list of tensors, or a plain value."""
    results: list[Tensor]

    def tensors(self) -> list[Tensor]:
        return [each for value in self.values.values() for each in _tensors(value) if isinstance(each, Tensor)]


class New(msgspec.Struct, frozen=True, eq=False):
    """A new tensor that a fusion adds to the step."""

    meta: TensorMeta
    parts: tuple[Tensor, ...] = ()
    """Parameters that are concatenated into this tensor when the model is loaded."""


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a fused kernel, or a call that prepares its arguments."""

    name: str
    """Name of the kernel, e.g. "npu::npu_swiglu"."""
    values: Mapping[str, Any]
    """Values by argument."""
    results: Sequence[Tensor | New]
    """Results: tensors that other calls use, or new ones."""
    written: Sequence[Tensor] = ()
    """Arguments that the kernel writes to, with their versions after the call."""
    exchange: Call | None = None
    """The collective that the kernel performs internally."""

    def given(self) -> Iterable[Tensor | New]:
        return [each for value in self.values.values() for each in _tensors(value)]


class Fusion(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a step and the kernels that replace them."""

    kernels: Sequence[Kernel]
    """Kernels, in order of execution."""
    calls: frozenset[Call]
    dropped: Sequence[Tensor] = ()
    """Outputs of the step that are removed because a server computes them on the host (counters)."""
    is_early: bool = False
    """Whether the kernels run at the position of the first replaced call. Otherwise they run at the position of the
    last one.
    """
    loaded: Sequence[Tensor] = ()
    """Results of replaced calls that already exist before the step, e.g. weights cast when the model is loaded."""
    shared: Mapping[Hashable, New] = msgspec.field(default_factory=dict[Hashable, New])
    """Tensors that the fusion creates and later fusions may use, see `Graph.shared`."""

    @property
    def place(self) -> int:
        places = [call.place for call in self.calls]
        return min(places) if self.is_early else max(places)


class Pattern(msgspec.Struct, frozen=True):
    """Matches a call that has this name and whose arguments were created by calls that match the given patterns."""

    key: str
    """Name under which `Graph.matched` returns the matched call."""
    name: str
    of: Mapping[str, Sequence[Pattern | None]]
    """Argument → for each of its tensors, a pattern for the call that created it; None matches any tensor."""


def made_by(key: str, name: str, **of: Pattern | tuple[Pattern | None, ...]) -> Pattern:
    """Return a pattern for a call, with patterns for the calls that created its arguments."""
    return Pattern(
        key, name, {argument: (part,) if isinstance(part, Pattern) else part for argument, part in of.items()}
    )


class Between(msgspec.Struct, frozen=True):
    """The chain of calls from the result of one call to a tensor."""

    start: Call
    calls: Sequence[Call]
    """Calls in order of execution."""

    @property
    def kernels(self) -> list[Kernel]:
        """The same calls in the form of kernels, so that they can be moved to another position."""
        return [Kernel(name=call.name, values=call.values, results=call.results) for call in self.calls]


Matcher = Callable[["Graph", Call], "Fusion | None"]


class Graph:
    """The calls of a step, linked by the tensors that they create and read. Views are skipped."""

    def __init__(self, plan: ReplayPlan) -> None:
        assert plan.sequence is not None
        assert plan.capture is not None
        self.sequence = plan.sequence
        self.ops = {op.id: op for op in plan.ops}
        self.calls: list[Call] = []
        self._writes: defaultdict[int, list[int]] = defaultdict(list)
        self._maker: dict[tuple[int, int], Call] = {}
        self._readers: defaultdict[tuple[int, int], list[Call]] = defaultdict(list)
        self._outputs = {self.sequence.places[output.memory][0] for output in plan.capture.outputs}
        self.rank = plan.capture.rank
        self.parameters = {each.storage: each for each in plan.capture.storages if each.kind == "parameter"}
        self.shared: dict[Hashable, New] = {}
        """Key → tensor that several fusions use; equal tensors have the same key."""
        for place in range(len(self.sequence.calls)):
            self._add(place)

    def op_at(self, place: int) -> ReplayOp:
        return self.ops[self.sequence.ids[self.sequence.calls[place]]]

    def _add(self, place: int) -> None:
        op = self.op_at(place)
        taken, given = self.sequence.memories[place]
        memories = iter(taken)
        values: dict[str, Any] = {}
        for arg in op.args:
            tensors = [self._tensor(next(memories), meta) for meta in arg.tensors if meta is not None]
            plain = arg.value is not None or not arg.tensors
            values[arg.name] = arg.value if plain else tensors if arg.type == "Tensor[]" else tensors[0]
        if op.name in VIEWS:
            return
        mutated = {each.storage for arg in op.args if arg.mutated for each in _tensors(values[arg.name])}
        call = Call(place, f"{op.name}.{op.overload}".rstrip("."), values, [])
        for tensor in call.tensors():
            self._readers[tensor.storage, tensor.version].append(call)
        written = mutated | {self.sequence.places[memory][0] for memory in given}
        for storage in written:
            self._writes[storage].append(place)
            self._maker[storage, len(self._writes[storage])] = call
        metas = [meta for meta in op.outputs or () if meta is not None]
        results = (self._tensor(memory, meta) for memory, meta in zip(given, metas, strict=False))
        call.results += [result for result in results if result is not None]
        self.calls.append(call)

    def _tensor(self, memory: int, meta: TensorMeta) -> Tensor | None:
        if memory < 0:
            return None
        storage = self.sequence.places[memory][0]
        return Tensor(storage, memory, len(self._writes[storage]), meta)

    def maker(self, tensor: Any, *names: str) -> Call | None:
        """Return the call that created a tensor. None if that call is unknown, or if it has none of these names."""
        call = self._maker.get((tensor.storage, tensor.version)) if isinstance(tensor, Tensor) else None
        return call if call is not None and call.name in names else None

    def matched(self, call: Call, pattern: Pattern) -> dict[str, Call] | None:
        """Return the calls that match a pattern, by the pattern's keys. They are `call` and the calls that created its
        inputs. None if they do not match.
        """
        if call.name != pattern.name:
            return None
        calls = {pattern.key: call}
        for argument, parts in pattern.of.items():
            value = call.values.get(argument)
            tensors = value if isinstance(value, list) else [value]
            if len(tensors) != len(parts):
                return None
            for tensor, part in zip(tensors, parts, strict=True):
                if part is not None:
                    maker = self.maker(tensor, part.name)
                    before = None if maker is None else self.matched(maker, part)
                    if before is None:
                        return None
                    calls |= before
        return calls

    def readers(self, tensor: Tensor) -> list[Call]:
        return self._readers[tensor.storage, tensor.version]

    def reader(self, call: Call, *names: str) -> Call | None:
        """Return the only call that reads the result of `call`, if it has one of these names; otherwise None."""
        readers = set(self.readers(call.results[0])) if call.results else set[Call]()
        only = next(iter(readers)) if len(readers) == 1 else None
        return only if only is not None and only.name in names else None

    def between(self, tensor: Any, *names: str, most: int = 16) -> Between | None:
        """Return the calls that compute a tensor, back to a call with one of these names.

        None if no call or several calls with such a name are found, or if more than `most` calls lie in between.
        """
        waiting, calls, starts = [tensor], dict[int, Call](), set[Call]()
        while waiting:
            each = waiting.pop()
            maker = self._maker.get((each.storage, each.version)) if isinstance(each, Tensor) else None
            if maker is None or maker.place in calls:
                continue
            if maker.name in names:
                starts.add(maker)
                continue
            calls[maker.place] = maker
            waiting += maker.tensors()
            if len(calls) > most:
                return None
        if len(starts) != 1:
            return None
        return Between(starts.pop(), [calls[place] for place in sorted(calls)])

    def name_of(self, tensor: Tensor) -> str:
        """Return the name of a parameter that no call has written to; "" for any other tensor."""
        parameter = self.parameters.get(tensor.storage) if not tensor.version else None
        return parameter.names[0] if parameter is not None and parameter.names else ""

    def before_cast(self, tensor: Any) -> tuple[Any, set[Call]]:
        """Return (tensor before a cast, {casting call}); if there is no cast, (the tensor itself, empty set)."""
        cast = self.maker(tensor, "aten::_to_copy")
        return (tensor, set()) if cast is None else (cast.values["self"], {cast})

    def is_sound(self, fusion: Fusion) -> bool:
        """Check that a fusion does not change results.

        No other call may use an intermediate result of the replaced calls. No input of the kernels may be overwritten
        before they run.
        """
        results = [
            each for kernel in fusion.kernels for each in (*kernel.results, *kernel.written) if isinstance(each, Tensor)
        ]
        kept = {(each.storage, each.version) for each in (*results, *fusion.dropped, *fusion.loaded)}
        for tensor in (tensor for call in fusion.calls for tensor in call.results):
            others = [reader for reader in self.readers(tensor) if reader not in fusion.calls]
            if (tensor.storage, tensor.version) in kept:
                if any(reader.place < fusion.place for reader in others):
                    return False
            elif others or tensor.storage in self._outputs:
                return False
        replaced = {call.place for call in fusion.calls}
        made = {(each.storage, each.version) for each in results}
        taken = [each for kernel in fusion.kernels for each in kernel.given() if isinstance(each, Tensor)]
        return all(
            sum(place < fusion.place for place in self._writes[each.storage] if place not in replaced) == each.version
            or (each.storage, each.version) in made
            for each in taken
        )

    def is_output(self, memory: int) -> bool:
        return 0 <= memory < len(self.sequence.places) and self.sequence.places[memory][0] in self._outputs


def _tensors(value: Any) -> list[Any]:
    """Return the tensors of an argument, with lists flattened."""
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, Tensor | New)]


def fused(plan: ReplayPlan, matchers: Sequence[Matcher]) -> ReplayPlan:
    """Return the plan with fused kernels in place of the calls that they replace.

    Raises UsageError for a plan that does not have all calls of its step.
    """
    before = _created_peak(plan)
    plan, counts = rewritten(plan, matchers)
    capture = plan.capture
    if not counts or capture is None:
        return plan
    peaks = _after_fusion(capture.peaks, before, _created_peak(plan))
    capture = msgspec.structs.replace(capture, kernels=dict(Counter(capture.kernels) + counts), fused=True, peaks=peaks)
    return by_recorded_time(msgspec.structs.replace(plan, capture=capture))


def _created_peak(plan: ReplayPlan) -> int:
    """Return the most bytes that storages created by the step's calls take at once, if each is freed after its last
    use. Outputs and caches are kept.
    """
    sequence, capture = plan.sequence, plan.capture
    if sequence is None or capture is None:
        return 0
    outside = {storage.storage for storage in capture.storages}
    kept = {sequence.places[output.memory][0] for output in capture.outputs if output.memory >= 0}
    ops = {op.id: op for op in plan.ops}
    size, created, used = dict[int, int](), dict[int, int](), dict[int, int]()
    for place, (index, (taken, given)) in enumerate(zip(sequence.calls, sequence.memories, strict=False)):
        op = ops[sequence.ids[index]]
        metas = [meta for meta in op.outputs or () if meta is not None]
        for memory, meta in zip(given, metas, strict=False):
            storage, offset = sequence.places[memory] if memory >= 0 else (-1, 0)
            if memory >= 0 and storage not in outside and 0 not in meta.shape:
                strides = meta.strides or contiguous_strides(meta.shape)
                elements = 1 + sum((length - 1) * stride for length, stride in zip(meta.shape, strides, strict=True))
                size[storage] = max(size.get(storage, 0), offset + elements * itemsize(meta.dtype))
                created.setdefault(storage, place)
        used |= {sequence.places[memory][0]: place for memory in (*taken, *given) if memory >= 0}
        if op.name in CACHE_WRITES:
            written = [arg.mutated for arg in op.args for _ in arg.tensors]
            kept |= {sequence.places[memory][0] for memory, is_cache in zip(taken, written, strict=False) if is_cache}
    changes: list[tuple[int, Kind, int]] = []
    for storage, bytes_ in size.items():
        changes.append((created[storage], "activation", bytes_))
        if storage not in kept:
            changes.append((used[storage] + 1, "activation", -bytes_))
    phases: list[StepPhase] = ["forward"] * len(sequence.calls)
    return max((peak.peak_bytes for peak in peaks_of(changes, phases)), default=0)


def _after_fusion(peaks: tuple[PhasePeak, ...], before: int, after: int) -> tuple[PhasePeak, ...]:
    """Return the peak of an inference step with fewer activations, in the ratio of the bytes that calls create before
    and after fusion. Peaks of other steps stay.
    """
    if len(peaks) != 1 or after >= before:
        return peaks
    (peak,) = peaks
    activations = peak.by_kind.get("activation", 0)
    saved = activations - activations * after // before
    kinds = {**peak.by_kind, "activation": activations - saved}
    return (msgspec.structs.replace(peak, peak_bytes=peak.peak_bytes - saved, by_kind=kinds),)


def rewritten(plan: ReplayPlan, matchers: Sequence[Matcher]) -> tuple[ReplayPlan, Counter[str]]:
    """Return (the plan with calls replaced as the matchers say, how often each new kernel was used).

    Raises UsageError for a plan that does not have all calls of its step.
    """
    if plan.sequence is None or plan.capture is None or plan.sequence.cut:
        raise UsageError(f"{plan.source} does not contain every call of one step", hint="Capture a smaller step.")
    counts: Counter[str] = Counter()
    graph = Graph(plan)
    for matcher in matchers:  # each sees what those before it have made
        replaced = set[Call]()
        fusions: dict[int, Fusion] = {}
        earlier = set(counts)
        for call in graph.calls:
            fusion = matcher(graph, call)
            if fusion is not None and not replaced & fusion.calls and graph.is_sound(fusion):
                replaced |= fusion.calls
                graph.shared.update(fusion.shared)
                fusions[fusion.place] = fusion
                counts.update(kernel.name for kernel in fusion.kernels if kernel.name.startswith("npu::"))
        # Kernels of earlier matchers that this one replaced are no longer in the plan.
        names = (graph.op_at(call.place).name for call in replaced)
        counts.subtract(name for name in names if name in earlier)
        if fusions:
            plan = _Rewriting(plan, graph).rewritten(fusions, {call.place for call in replaced})
            graph = Graph(plan)
    return plan, +counts


class _Rewriting:
    """State of the rewriting of one plan."""

    def __init__(self, plan: ReplayPlan, graph: Graph) -> None:
        self._plan, self._graph = plan, graph
        self._places = list(graph.sequence.places)
        self._storages = 1 + max((storage for storage, _ in self._places), default=-1)
        self._memories: dict[New, int] = {}
        self._merged: dict[frozenset[int], tuple[int, New]] = {}
        """Storages of merged parameters → (new storage, new tensor)."""
        self._ops: dict[str, ReplayOp] = {}
        self._rows: list[_Row] = []

    def rewritten(self, fusions: Mapping[int, Fusion], replaced: set[int]) -> ReplayPlan:
        sequence = self._graph.sequence
        for place in range(len(sequence.calls)):
            if place in fusions:
                for number, kernel in enumerate(fusions[place].kernels):
                    before = [self._graph.op_at(call.place).flops or 0 for call in fusions[place].calls]
                    last = number == len(fusions[place].kernels) - 1
                    op = _op(kernel, sum(before) or None if last else None)
                    if kernel.exchange is not None:
                        like = self._graph.op_at(kernel.exchange.place)
                        op = msgspec.structs.replace(op, collective=like.collective, ranks=like.ranks)
                    given = [each for arg in op.args for each in _tensors(kernel.values[arg.name])]
                    memories = tuple(map(self._memory, given)), tuple(map(self._memory, kernel.results))
                    self._append(place, op, memories)
            elif place not in replaced:
                self._append(place, self._graph.op_at(place), sequence.memories[place])
        rows = self._without_unused_calls()
        counts = Counter(row.op.id for row in rows)
        numbers = {id_: number for number, id_ in enumerate(counts)}

        def at(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[row.place] for row in rows) if values else ()

        new = msgspec.structs.replace(
            sequence,
            ids=tuple(counts),
            calls=tuple(numbers[row.op.id] for row in rows),
            memories=tuple(row.memories for row in rows),
            host_us=at(sequence.host_us),
            phases=at(sequence.phases),
            modules=at(sequence.modules),
            places=tuple(self._places),
        )
        ops = tuple(msgspec.structs.replace(self._ops[id_], count=count) for id_, count in counts.items())
        capture = self._capture(rows, list(fusions.values()))
        return msgspec.structs.replace(self._plan, ops=ops, sequence=new, capture=capture)

    def _append(self, place: int, op: ReplayOp, memories: Memories) -> None:
        self._rows.append(_Row(place, self._ops.setdefault(op.id, op), memories))

    def _memory(self, tensor: Tensor | New) -> int:
        if isinstance(tensor, Tensor):
            return tensor.memory
        if tensor.parts:
            key = frozenset(part.storage for part in tensor.parts)
            self._merged.setdefault(key, (self._storages, tensor))
        if tensor not in self._memories:
            self._memories[tensor] = len(self._places)
            self._places.append((self._storages, 0))
            self._storages += 1
        return self._memories[tensor]

    def _without_unused_calls(self) -> list[_Row]:
        """Return the calls whose results are used. Results that only a removed call reads do not count as used."""
        views, storages = set[tuple[int, tuple[int, ...]]](), set[int]()
        rows: list[_Row] = []
        for row in reversed(self._rows):
            taken, given = row.memories
            results = [
                (memory, meta.shape)
                for memory, meta in zip(given, (meta for meta in row.op.outputs or () if meta), strict=False)
            ]
            wanted = any(self._graph.is_output(memory) for memory, _ in results) or (
                any(result in views for result in results)
                if row.op.name in VIEWS
                else not _only_makes(row.op) or any(self._places[memory][0] in storages for memory, _ in results)
            )
            if wanted:
                metas = tensors_of(row.op)
                views.update((memory, meta.shape) for memory, meta in zip(taken, metas, strict=True))
                storages.update(self._places[memory][0] for memory in taken if memory >= 0)
                rows.append(row)
        return rows[::-1]

    def _capture(self, rows: Sequence[_Row], fusions: Sequence[Fusion]) -> Capture:
        """Return the `Capture` of the rewritten step. Parameters are as servers load them, and dropped outputs are left
        out.
        """
        capture = self._plan.capture
        assert capture is not None
        used = {self._places[memory][0] for row in rows for memory in row.memories[0] if memory >= 0}
        listed = {storage.storage: storage for storage in capture.storages}
        for parts, (number, new) in self._merged.items():
            whole = [listed[part] for part in parts]
            listed[number] = msgspec.structs.replace(
                whole[0],
                storage=number,
                names=(" + ".join(name for part in new.parts for name in listed[part.storage].names[:1]),),
                size_bytes=prod(new.meta.shape) * itemsize(new.meta.dtype),
            )
        dropped = {each.storage for fusion in fusions for each in fusion.dropped}
        gone = {part for parts in self._merged for part in parts} - used
        for fusion in fusions:
            for each in fusion.loaded:
                (before,) = (tensor.storage for call in fusion.calls for tensor in call.tensors())
                size = prod(each.shape) * itemsize(each.meta.dtype)
                listed[each.storage] = msgspec.structs.replace(listed[before], storage=each.storage, size_bytes=size)
                gone |= {before} - used
        return msgspec.structs.replace(
            capture,
            storages=tuple(storage for number, storage in listed.items() if number not in gone),
            outputs=tuple(each for each in capture.outputs if self._places[each.memory][0] not in dropped),
        )


def _only_makes(op: ReplayOp) -> bool:
    """Check whether a call only creates its results: it is an aten op that writes to no argument and has no FLOPs."""
    makes = any(meta is not None for meta in op.outputs or ())
    return makes and not op.flops and op.name.startswith("aten::") and not any(arg.mutated for arg in op.args)


class _Row(msgspec.Struct, frozen=True):
    place: int
    """Position of the call in the sequence before rewriting."""
    op: ReplayOp
    memories: Memories


def _argument(arg: ArgSpec, value: Any, shared: Mapping[int, int]) -> ReplayArg:
    """Return an argument of a kernel in the form of the IR. `shared` maps storages that several tensors use
    to numbers.
    """
    tensors = _tensors(value)
    metas = [
        msgspec.structs.replace(each.meta, storage=shared.get(each.storage) if isinstance(each, Tensor) else None)
        for each in tensors
    ]
    return ReplayArg(
        name=arg.name,
        type=arg.kind,
        tensors=tuple(metas),
        value=None if tensors else value,
        keyword_only=arg.keyword_only,
        mutated=arg.mutated,
    )


def _op(kernel: Kernel, flops: int | None) -> ReplayOp:
    """Return the op of a kernel, with torch_npu's or torch's schema. If it cannot run here, the op holds the reason."""
    resolution = candidates(kernel.name, Policy())
    name, _, overload = kernel.name.partition(".")
    spec = next(spec for spec in resolution.specs or published_specs(name) if spec.overload == overload)
    storages = Counter(each.storage for each in kernel.given() if isinstance(each, Tensor))
    shared = {storage: number for number, storage in enumerate(each for each in storages if storages[each] > 1)}
    args: list[ReplayArg] = []
    for arg in spec.args:
        if arg.name not in kernel.values:
            continue
        args.append(_argument(arg, kernel.values[arg.name], shared))
    return ReplayOp(
        id=blake2b(msgspec.json.encode([spec.full_name, args]), digest_size=6).hexdigest(),
        name=spec.name,
        count=1,
        recorded=NOT_RECORDED,
        resolved_by=resolution.resolved_by,
        via=resolution.via,
        reason=resolution.reason,
        overload=spec.overload,
        schema=spec.text,
        args=tuple(named_after_gaps(spec, args)),
        outputs=tuple(each.meta for each in kernel.results),
        flops=flops,
    )
