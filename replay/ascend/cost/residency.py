# pyright: strict
"""Estimates how much of each kernel's data is still in L2, from the kernel sequence and the tensor sizes.

A kernel table has no addresses. Each operand is therefore assumed to be the most recently used tensor with its number
of elements and dtype. No tensor is assigned to two operands of a kernel. The reuse distance is the number of bytes
accessed between two uses of a tensor. Weights and caches of layers are an exception: each has its own memory
(`owned_operands`). A caller that knows which tensor an operand is passes the tensor's identity.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from math import gcd, prod
from typing import NamedTuple

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import KernelCall, State, TensorSpec, itemsize

Touch = tuple[float, float | None]
"""(bytes of a tensor, bytes accessed since its last use); the second is None for a tensor not seen before."""

MAX_DISTANCE_RATIO = 1e9
"""Maximum ratio of the reuse distance to the reach of L2. At this ratio nothing is found in L2, and powers of larger
ratios would overflow.
"""
MAX_DESCRIBED = 50_000
"""Maximum number of kernels whose tensor sizes are cached."""
BEYOND_OPERANDS = "beyond the tensors"
"""Used in place of a dtype for memory that a kernel reads beyond its operands."""
MAX_REMEMBERED = 64
"""Maximum number of past uses stored per tensor size. Data of older uses are no longer in any cache."""


class Stream:
    """Tracks when each tensor was last used by the kernels of a device, in launch order.

    Time is counted in bytes accessed. If a tensor has an identity, its last use is the last use of that identity. If it
    has none, it is assumed to be the most recently used tensor of its size and dtype, because the allocator reuses
    freed memory.
    """

    def __init__(self) -> None:
        self._clock = 0.0
        self._by_size: dict[tuple[int, str], list[float]] = {}
        self._by_identity: dict[Hashable, float] = {}
        self._described: dict[int, tuple[KernelCall, list[tuple[int, str]], list[float]]] = {}

    def touch(
        self,
        call: KernelCall,
        inputs: Sequence[Hashable] = (),
        outputs: Sequence[Hashable] = (),
        beyond: Hashable = None,
    ) -> tuple[Touch, ...]:
        """Return the tensors of the next kernel with their reuse distances, which include the kernel's own bytes.

        If the kernel moves bytes beyond its tensors, e.g. cache pages that attention reads, the last entry covers them.
        `inputs` and `outputs` identify each tensor. `beyond` identifies the memory of the extra bytes. None means that
        the identity is unknown. A tensor that the kernel writes is matched to memory by its size.
        """
        keys, sizes = self._tensors(call)
        kernel_bytes = sum(sizes)
        specs = sum(spec is not None for spec in call.inputs + call.outputs)
        names = _names(call, inputs, outputs) if inputs or outputs else [(None, False)] * specs
        if len(names) < len(keys):
            names = [*names, (beyond, True)]
        touches: list[Touch] = []
        stacks = [self._by_size.setdefault(key, []) for key in keys]
        for stack, size, (name, is_read) in zip(stacks, sizes, names, strict=True):
            before = stack.pop() if stack else None
            if is_read and name is not None:
                before = self._by_identity.get(name)
            touches.append((size, None if before is None else self._clock - before + kernel_bytes))
        clock = self._clock = self._clock + kernel_bytes
        for stack, (name, _) in zip(stacks, names, strict=True):
            stack.append(clock)
            if len(stack) > MAX_REMEMBERED:
                del stack[0]
            if name is not None:
                self._by_identity[name] = clock
        return tuple(touches)

    def _tensors(self, call: KernelCall) -> tuple[list[tuple[int, str]], list[float]]:
        """Return two lists for a kernel's tensors: their (elements, dtype), and their bytes.

        Memory that the kernel moves beyond its tensors comes last in both. Results are cached, because most kernels
        repeat. A lookup table counts at most as many bytes as the kernel moves.
        """
        described = self._described.get(id(call))
        if described is None or described[0] is not call:
            keys = [(prod(s.shape), s.dtype) for s in call.inputs + call.outputs if s is not None]
            sizes = [float(n * itemsize(dtype)) for n, dtype in keys]
            moved = call.attrs.get("moved_bytes")
            if isinstance(moved, int | float):
                beyond = moved - sum(sizes)
                sizes = [min(size, float(moved)) for size in sizes]
                if beyond > 0:
                    keys, sizes = [*keys, (int(beyond), BEYOND_OPERANDS)], [*sizes, beyond]
            described = call, keys, sizes
            if len(self._described) >= MAX_DESCRIBED:
                self._described.clear()
            self._described[id(call)] = described
        return described[1], described[2]


def _names(call: KernelCall, inputs: Sequence[Hashable], outputs: Sequence[Hashable]) -> list[tuple[Hashable, bool]]:
    """Return a pair for each tensor of a kernel: (identity of the tensor, whether the kernel reads it)."""
    read = [(name, True) for name in _padded(inputs, len(call.inputs))]
    written = [(name, False) for name in _padded(outputs, len(call.outputs))]
    specs = call.inputs + call.outputs
    return [name for name, spec in zip(read + written, specs, strict=True) if spec is not None]


def _padded(names: Sequence[Hashable], length: int) -> list[Hashable]:
    return [*names, *[None] * (length - len(names))]


def reuse_distances(calls: Iterable[KernelCall | None]) -> list[tuple[Touch, ...]]:
    """Return each kernel's tensors with their reuse distances, in launch order.

    A distance includes the kernel's own bytes. None in `calls` is a kernel of unknown shapes (a collective), which is
    assumed to use no memory.
    """
    launches, stream = list(calls), Stream()
    owned = owned_operands(launches)
    # A step repeats the one before it, and so its distances: each combination is kept once.
    distinct: dict[tuple[Touch, ...], tuple[Touch, ...]] = {}
    touched = (() if call is None else stream.touch(call, owned.get(place, ())) for place, call in enumerate(launches))
    return [distinct.setdefault(touches, touches) for touches in touched]


_PRODUCT = re.compile(r"Mat[Mm]ul|Gemm|^(Depthwise|Deformable)?Conv\dD")
_ATTENTION = re.compile(r"Attention|FlashDecode|^Mla")
_IN_PLACE = re.compile(r"Scatter|IndexPut|Cache")
"""Types of kernels that write some rows of their first operand, which is also their output."""
_BLOCKED = re.compile(r"FRACTAL|C0")
"""Formats that are not row-major."""
_Kind = tuple[int, str, str]
"""(elements, dtype, blocked format) of a tensor."""


def owned_operands(launches: Sequence[KernelCall | None]) -> dict[int, list[Hashable]]:
    """Map each kernel that reads weights or caches, by its position in launch order, to the identities of its inputs.

    Weights are the second and later operands of products; caches are the keys and values of attention. Both count as
    such only if no kernel in the table writes a tensor of the same size, dtype and format. Each layer has its own
    weights and caches and reads them once per step. In a table of several steps, it reads them again in the next step.
    Other inputs have the identity None.
    """
    written = {_kind(spec) for call in launches if call is not None for spec in _written(call)}
    reads: dict[_Kind, list[tuple[int, int]]] = {}
    for place, call in enumerate(launches):
        for at in () if call is None else _owned_places(call):
            spec = call.inputs[at] if call is not None else None
            if spec is not None and (kind := _kind(spec)) not in written:
                reads.setdefault(kind, []).append((place, at))
    steps = _steps_told([len(places) for places in reads.values()])
    names: dict[int, list[Hashable]] = {}
    for kind, places in reads.items():
        layers = len(places) // steps
        for number, (place, at) in enumerate(places):
            call = launches[place]
            inputs: list[Hashable] = [None] * len(call.inputs if call is not None else ())
            names.setdefault(place, inputs)[at] = (kind, number % layers)
    return names


def _owned_places(call: KernelCall) -> range:
    """Return the positions of inputs that are weights or caches unless another kernel writes them."""
    if _ATTENTION.search(call.type):
        return range(1, min(3, len(call.inputs)))
    return range(1, len(call.inputs)) if _PRODUCT.search(call.type) else range(0)


def _written(call: KernelCall) -> Sequence[TensorSpec]:
    """Return the tensors that a kernel overwrites completely."""
    outputs = call.outputs[1:] if is_update(call) else call.outputs
    return [spec for spec in outputs if spec is not None]


def is_update(call: KernelCall) -> bool:
    """Check whether a kernel writes some rows of its first operand in place."""
    return bool(_IN_PLACE.search(call.type)) and bool(call.outputs) and call.inputs[:1] == call.outputs[:1]


def _kind(spec: TensorSpec) -> _Kind:
    return prod(spec.shape), spec.dtype, spec.format if _BLOCKED.search(spec.format) else ""


MOST_ALIKE = 5
"""Number of reads of equally sized weights per step from which the weights must belong to several layers. One layer can
have four projections of equal size, but not five.
"""


def _steps_told(counts: Sequence[int]) -> int:
    """Return the number of steps in a table, derived from how often weights of each size are read; 1 if it is
    ambiguous.

    The result is the greatest common divisor of these counts, if two conditions hold. First, weights of some size (a
    head, the last layer) are read once per step. Second, weights of another size are read more often per step than one
    layer reads them. Without the second condition, a single step of a few layers would look like several steps.
    """
    steps = gcd(*counts) if counts else 1
    return steps if steps > 1 and min(counts) == steps and max(counts) >= MOST_ALIKE * steps else 1


def touches_in(calls: Sequence[KernelCall], state: State) -> list[tuple[Touch, ...]]:
    """Return the tensors of an op's kernels with their reuse distances if the op starts in `state`.

    In the state "cold", L2 was cleared. In "warm", the same op ran just before. In "network", nothing is known about
    the tensors.
    """
    if state == "network":
        return [() for _ in calls]
    stream = Stream()
    if state == "warm":
        for call in calls:
            stream.touch(call)
    return [stream.touch(call) for call in calls]


def written_back(call: KernelCall, touches: tuple[Touch, ...]) -> tuple[Touch, ...]:
    """Return an isolated kernel's `touches` with a reuse distance for its outputs.

    Outputs stay in L2 if the kernel's tensors fit, whether or not the inputs were there. Attention is returned
    unchanged, because it reads more than the tensors it names (`moved_bytes`).
    """
    kernel_bytes, reads = sum(size for size, _ in touches), sum(spec is not None for spec in call.inputs)
    if len(touches) > reads + sum(spec is not None for spec in call.outputs):
        return touches
    written = touches[reads:] or _in_place(touches)
    return (*touches[:reads], *((size, distance or kernel_bytes) for size, distance in written))


def _in_place(touches: tuple[Touch, ...]) -> tuple[Touch, ...]:
    """Return the tensors written by a kernel that names no outputs, such as an optimizer.

    They are all tensors of the largest size except one. This one is assumed to be the gradient.
    """
    largest = max((size for size, _ in touches), default=0.0)
    return tuple((size, None) for size, _ in touches if size == largest)[:-1]


class Held(NamedTuple):
    """Contents of the caches when a kernel starts."""

    resident: float | None = None
    """Share of the kernel's bytes that is in L2; None if unknown."""
    loaded: float = 0.0
    """Share of the kernel's launches for which its code is in the instruction caches."""


CODES_KEPT = 3
"""Maximum number of other kernels that may run between two launches of a kernel. If more run, its code does not stay in
the instruction caches.

The median `aiv_icache_miss_rate` of a Qwen step on a 910B4 is 0.000 if up to two kernels ran in between, 0.003 after
three, and 0.02 to 0.05 after more.
"""


class Codes:
    """Derives, from the order of launches, which kernels find their code in the instruction caches."""

    def __init__(self) -> None:
        self._number = 0
        self._last: dict[tuple[str, ...], int] = {}

    def launch(self, call: KernelCall | None) -> bool:
        """Check whether the caches hold the next kernel's code.

        They do if at most `CODES_KEPT` other kernels ran since the last kernel of the same type and dtypes. None is an
        unknown kernel.
        """
        self._number += 1
        if call is None:
            return False
        key = (call.type, *(spec.dtype for spec in call.inputs if spec is not None))
        before, self._last[key] = self._last.get(key), self._number
        return before is not None and self._number - before <= CODES_KEPT + 1


def codes_kept(calls: Iterable[KernelCall | None]) -> list[bool]:
    """Return, for each kernel in launch order, whether the instruction caches still hold its code."""
    codes = Codes()
    return [codes.launch(call) for call in calls]


def resident_of(touches: tuple[Touch, ...], device: DeviceProfile) -> float | None:
    """Return the share of a kernel's bytes found in L2; None if nothing is known about its tensors.

    A tensor is found with probability 1 / (1 + (reuse distance / (`sequence_reach` * L2)) ** `sequence_sharpness`).
    """
    rates = device.rates
    reach = rates.sequence_reach * device.l2_bytes
    total = resident_bytes = 0.0
    for size, distance in touches:
        total += size
        if distance is not None:
            resident_bytes += size / (1 + min(distance / reach, MAX_DISTANCE_RATIO) ** rates.sequence_sharpness)
    return resident_bytes / total if total > 0 else None
