# pyright: strict
"""What the caches hold of each op when it runs, judged from the calls of a recorded step and which tensor is which.

Owns the walk over the step; `residency` owns reuse distances and what a device makes of them, `sequence.linking` says
which result an argument is. A step is taken to follow itself: a parameter was last touched one step ago.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import prod

from opreplay.replay.arguments.work.amounts import Contents
from opreplay.replay.ascend.cost.residency import Codes, Held, Stream, Touch, resident_of
from opreplay.replay.ascend.custom.estimators import CustomOpError
from opreplay.replay.ascend.kernel import KernelCall, TensorSpec
from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.model import RecordedSequence, ReplayOp
from opreplay.replay.plan.step.linking import Source, link, results_of, tensors_of

HeldByOp = dict[str, tuple[Held, ...]]
"""Op id → what the caches hold of each of its kernels, over the calls of the step."""

_Tensor = tuple[int, str, Hashable]
"""(elements, dtype, which tensor it is)."""


def held_in_caches(
    ops: Sequence[ReplayOp],
    sequence: RecordedSequence,
    devices: Sequence[DeviceProfile],
    contents: Callable[[ReplayOp], Contents | None] | None = None,
) -> list[HeldByOp]:
    """For each device, what its caches hold of each op; ops that the step does not call are left out."""
    by_id = {op.id: op for op in ops}
    called = [by_id[id_] for id_ in sequence.ids if id_ in by_id]
    place = {op.id: i for i, op in enumerate(called)}
    calls = [place[sequence.ids[i]] for i in sequence.calls if sequence.ids[i] in place]
    kernels = [_kernels(op, contents(op) if contents is not None else None) for op in called]
    sums = [[[0.0] * len(made) for made in kernels] for _ in devices]
    known = [[0] * len(made) for made in kernels]
    ran = [[0] * len(made) for made in kernels]
    loaded = [[0] * len(made) for made in kernels]
    for index, number, touches, kept in _walk(called, calls, kernels):
        ran[index][number] += 1
        loaded[index][number] += kept
        if not any(size for size, _ in touches):
            continue
        known[index][number] += 1
        for at, device in enumerate(devices):
            sums[at][index][number] += resident_of(touches, device) or 0.0
    return [
        {
            op.id: tuple(
                Held(total / n if n else None, kept / runs if runs else 0.0)
                for total, n, kept, runs in zip(of_device[i], known[i], loaded[i], ran[i], strict=True)
            )
            for i, op in enumerate(called)
        }
        for of_device in sums
    ]


def _kernels(op: ReplayOp, contents: Contents | None) -> tuple[KernelCall, ...]:
    """What an op launches; nothing where a user's rule fails, which its prediction says."""
    try:
        return lower(op, contents).kernels
    except CustomOpError:
        return ()


def _walk(
    ops: Sequence[ReplayOp], calls: Sequence[int], kernels: Sequence[tuple[KernelCall, ...]]
) -> Iterable[tuple[int, int, tuple[Touch, ...], bool]]:
    """(op, kernel, touches, whether its code is kept) of every launch of a step that has run once before."""
    linked = link(ops, calls)
    arguments = [[meta for _, _, meta in tensors_of(op)] for op in ops]
    stream, codes = Stream(), Codes()
    same: dict[Hashable, Hashable] = {}
    for counted in (False, True):
        for place, index in enumerate(calls):
            found = [_identity(source, same) for source in linked.sources[place]]
            inputs: list[_Tensor] = [
                (prod(meta.shape), meta.dtype, one)
                for meta, one in zip(arguments[index], found, strict=True)
                if meta is not None
            ]
            results: list[_Tensor] = [
                (prod(meta.shape), meta.dtype, (place, output))
                for output, meta in enumerate(results_of(ops[index]))
                if meta is not None
            ]
            if not kernels[index] and inputs:
                # A view: its result lies in the memory of its first argument.
                same.update((one, inputs[0][2]) for _, _, one in results)
            for number, call in enumerate(kernels[index]):
                touches = stream.touch(call, _matched(call.inputs, inputs), _matched(call.outputs, results))
                kept = codes.launch(call)
                if counted:
                    yield index, number, touches, kept


def _identity(source: Source, same: dict[Hashable, Hashable]) -> Hashable:
    if source.value is not None:
        key: Hashable = (source.value.call, source.value.output)
        return same.get(key, key)
    return ("outside", source.number) if source.kind == "outside" else None


def _matched(specs: Sequence[TensorSpec | None], tensors: Sequence[_Tensor]) -> list[Hashable]:
    """Which of an op's tensors each of a kernel's is: the first of as many elements and the same dtype, each once."""
    left = list(tensors)
    out: list[Hashable] = []
    for spec in specs:
        at = -1
        if spec is not None:
            n = prod(spec.shape)
            at = next((i for i, (size, dtype, _) in enumerate(left) if size == n and dtype == spec.dtype), -1)
        out.append(left.pop(at)[2] if at >= 0 else None)
    return out
