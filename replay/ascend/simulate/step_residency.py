# pyright: strict
"""Derives the cache contents at each op from the calls of a recorded step and the identity of their tensors.

Goes through the calls of the step. The step is assumed to repeat, so that a parameter was last used one step ago.
`residency` computes reuse distances and models the caches. `sequence.linking` finds the result that an argument comes
from.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Sequence
from functools import cached_property
from math import prod

import msgspec

from opreplay.replay.ascend.cost.predict import MOVES_ALL, family_of
from opreplay.replay.ascend.cost.residency import Codes, Held, Stream, Touch, resident_of
from opreplay.replay.ascend.custom.estimators import CustomOpError
from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import KernelCall, TensorSpec
from opreplay.replay.ir.model import RecordedSequence, ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import extent, itemsize
from opreplay.replay.ops.work.contents import Contents, ContentsOf
from opreplay.replay.plan.step.linking import Linked, Source, Value, linked_step, results_of, tensors_of

HeldByOp = dict[str, tuple[Held, ...]]
"""Op id → cache contents at the start of each of the op's kernels, averaged over the calls in the step."""

READS_ALL = MOVES_ALL | {"matmul", "conv"}
"""Forms of kernels that read every byte of their operands."""

_Place = tuple[int, int]
"""(index of the op, number of the kernel within the op)."""
_Tensor = tuple[int, str, Hashable]
"""(elements, dtype, identity of the tensor)."""


class StepKernels(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a step, the identity of each argument's tensor, and the kernels that each op launches."""

    ops: list[ReplayOp]
    calls: list[int]
    """Index in `ops` of the op of each call, in call order."""
    linked: Linked
    kernels: list[tuple[KernelCall, ...]]
    """Kernels of each op."""


class PlannedStep(msgspec.Struct, dict=True):
    """A plan and the expected contents of its arguments. Kernels and cache contents are computed once and kept."""

    plan: ReplayPlan
    contents: ContentsOf | None = None
    _held: list[tuple[DeviceProfile, HeldByOp]] = msgspec.field(default_factory=list["tuple[DeviceProfile, HeldByOp]"])
    """Cache contents found so far, for each device object. A changed device may have the same name."""

    @cached_property
    def kernels(self) -> StepKernels | None:
        """The kernels of the plan's step; None for a plan without a recorded order."""
        sequence = self.plan.sequence
        return None if sequence is None else step_kernels(self.plan.ops, sequence, self.contents)

    def held(self, devices: Sequence[DeviceProfile]) -> list[HeldByOp] | list[None]:
        """Return the cache contents for the kernels of each op, by device; None for a plan without a recorded order."""
        if self.kernels is None:
            return [None] * len(devices)
        missing = [device for device in devices if all(device is not known for known, _ in self._held)]
        if missing:
            self._held += zip(missing, held_in_caches(self.kernels, missing), strict=True)
        return [next(held for known, held in self._held if known is device) for device in devices]


def step_kernels(
    ops: Sequence[ReplayOp],
    sequence: RecordedSequence,
    contents: ContentsOf | None = None,
) -> StepKernels:
    """Return the kernels of a recorded or captured step; ops that the step does not call are left out."""
    called, calls, linked = linked_step(ops, sequence)
    kernels = [_kernels(op, contents(op) if contents is not None else None) for op in called]
    return StepKernels(ops=called, calls=calls, linked=linked, kernels=kernels)


def held_in_caches(step: StepKernels, devices: Sequence[DeviceProfile]) -> list[HeldByOp]:
    """Return, for each device, the cache contents for the kernels of each op in the step."""
    launches, loaded, known = Counter[_Place](), Counter[_Place](), Counter[_Place]()
    resident = [defaultdict[_Place, float](float) for _ in devices]
    for index, number, touches, code_cached in _walk(step):
        place = index, number
        launches[place] += 1
        loaded[place] += code_cached
        if any(size for size, _ in touches):
            known[place] += 1
            for device, sums in zip(devices, resident, strict=True):
                sums[place] += resident_of(touches, device) or 0.0

    def share(total: float, count: int) -> float | None:
        return total / count if count else None

    return [
        {
            op.id: tuple(
                Held(share(sums[i, k], known[i, k]), share(loaded[i, k], launches[i, k]) or 0.0)
                for k in range(len(step.kernels[i]))
            )
            for i, op in enumerate(step.ops)
        }
        for sums in resident
    ]


def outside_bytes(step: StepKernels, device: DeviceProfile, predicted: Container[str]) -> int:
    """Return the bytes of distinct tensors that the step's kernels read in full but the step's calls do not create.

    Most are parameters. All of them are loaded from HBM in each step, except what L2 still holds from the previous
    step. Tensors that may be read only in part, as in lookups and attention, do not count. Neither do tensors of ops
    without a prediction.
    """
    sizes: dict[Hashable, int] = {}
    reads: list[list[int]] = []
    for op, kernels in zip(step.ops, step.kernels, strict=True):
        tensors = [(prod(meta.shape), meta.dtype, at) for at, (_, _, meta) in enumerate(tensors_of(op)) if meta]
        full = [call for call in kernels if family_of(call, device).form in READS_ALL] if op.id in predicted else []
        reads.append([at for call in full for at in _matched(call.inputs, tensors) if isinstance(at, int)])
    origin: dict[Value, Source] = {}
    """Result of a view → source of the viewed tensor."""
    for place, (index, sources) in enumerate(zip(step.calls, step.linked.sources, strict=True)):
        of = [origin.get(source.value, source) if source.value is not None else source for source in sources]
        if not step.kernels[index] and of:
            origin.update((Value(place, output), of[0]) for output in range(len(results_of(step.ops[index]))))
        arguments = tensors_of(step.ops[index]) if reads[index] else []
        for at in reads[index]:
            meta = arguments[at][2]
            if of[at].kind == "outside" and meta is not None:
                number = of[at].number
                memory = step.linked.outside[number].memory
                key = ("memory", memory) if memory >= 0 else number
                sizes[key] = max(sizes.get(key, 0), min(prod(meta.shape), extent(meta)) * itemsize(meta.dtype))
    return sum(sizes.values())


def _kernels(op: ReplayOp, contents: Contents | None) -> tuple[KernelCall, ...]:
    """Return the kernels that an op launches. If a user's rule fails, there are none; the op's prediction reports the
    failure.
    """
    try:
        return lower(op, contents).kernels
    except CustomOpError:
        return ()


def _walk(step: StepKernels) -> Iterable[tuple[int, int, tuple[Touch, ...], bool]]:
    """Yield (op index, kernel number, tensor uses, whether the kernel's code is cached) for each launch of a step.

    The step is assumed to have run once before.
    """
    ops, calls, linked, kernels = step.ops, step.calls, step.linked, step.kernels
    arguments = [[meta for _, _, meta in tensors_of(op)] for op in ops]
    stream, codes = Stream(), Codes()
    same: dict[Hashable, Hashable] = {}
    for counted in (False, True):
        for place, index in enumerate(calls):
            identities = [_identity(source, same) for source in linked.sources[place]]
            inputs: list[_Tensor] = [
                (prod(meta.shape), meta.dtype, identity)
                for meta, identity in zip(arguments[index], identities, strict=True)
                if meta is not None
            ]
            results: list[_Tensor] = [
                (prod(meta.shape), meta.dtype, (place, output))
                for output, meta in enumerate(results_of(ops[index]))
                if meta is not None
            ]
            if not kernels[index] and inputs:
                # A view: its result lies in the memory of its first argument.
                same.update((identity, inputs[0][2]) for _, _, identity in results)
            for number, call in enumerate(kernels[index]):
                given, made = _matched(call.inputs, inputs), _matched(call.outputs, results)
                touches = stream.touch(call, given, made, beyond=(place, number))
                code_cached = codes.launch(call)
                if counted:
                    yield index, number, touches, code_cached


def _identity(source: Source, same: dict[Hashable, Hashable]) -> Hashable:
    if source.value is not None:
        key: Hashable = (source.value.call, source.value.output)
        return same.get(key, key)
    return ("outside", source.number) if source.kind == "outside" else None


def _matched(specs: Sequence[TensorSpec | None], tensors: Sequence[_Tensor]) -> list[Hashable]:
    """Match each tensor of a kernel to an op's tensor, and return the identities of the matched tensors.

    The match is the first op tensor with the same dtype and number of elements that is not matched yet. A tensor
    without a match has the identity None.
    """
    unmatched = list(tensors)
    out: list[Hashable] = []
    for spec in specs:
        at = -1
        if spec is not None:
            n = prod(spec.shape)
            at = next((i for i, (size, dtype, _) in enumerate(unmatched) if size == n and dtype == spec.dtype), -1)
        out.append(unmatched.pop(at)[2] if at >= 0 else None)
    return out
