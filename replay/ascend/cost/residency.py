# pyright: strict
"""What of each kernel's data is still in L2, judged from the sequence of kernels and the sizes of their tensors.

A kernel table names no addresses. A tensor is taken to be the one of the same number of elements and dtype that was
touched last and has not been taken yet by another operand of the same kernel; what lies between the two touches is the
reuse distance. Weights and caches of layers are not: each is memory of its own (`owned_operands`). Where a caller knows
which tensor is which, it says so.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from math import gcd, prod
from typing import NamedTuple

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import KernelCall, State, TensorSpec, itemsize

Touch = tuple[float, float | None]
"""(bytes of a tensor, bytes touched since it was last touched); None for a tensor not seen before."""

FAR = 1e9
"""Times the reach of L2, beyond which nothing is found; greater powers are no numbers."""
MAX_DESCRIBED = 50_000
"""Kernels whose sizes are kept."""
BEYOND = "beyond the tensors"
"""In place of a dtype: memory that a kernel reads and does not name."""
MAX_REMEMBERED = 64
"""Touches of one size that are kept; older ones are far beyond any cache."""


class Stream:
    """The kernels of a device in launch order, and when each tensor was last touched; the clock counts bytes.

    A tensor whose identity is given was last touched when that one was; of any other it is taken that the one of its
    size and dtype touched last is meant, as memory that was freed is given out again.
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
        """The tensors of the next kernel with their reuse distances, its own bytes included; last the bytes that it
        moves beyond its tensors, if there are any: pages of a cache that attention reads.

        `inputs` and `outputs` say which tensor each is, `beyond` which memory the further bytes are of; None where that
        is not known. What a kernel writes gets its memory by size.
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
        """Return (elements, dtype) and bytes of a kernel's tensors, and of the memory that it moves beyond them.

        They are kept, as most kernels come again. Of a table that it looks up a kernel touches no more than it moves.
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
                    keys, sizes = [*keys, (int(beyond), BEYOND)], [*sizes, beyond]
            described = call, keys, sizes
            if len(self._described) >= MAX_DESCRIBED:
                self._described.clear()
            self._described[id(call)] = described
        return described[1], described[2]


def _names(call: KernelCall, inputs: Sequence[Hashable], outputs: Sequence[Hashable]) -> list[tuple[Hashable, bool]]:
    """(which tensor, whether it is read) of the tensors that a kernel has."""
    read = [(name, True) for name in _padded(inputs, len(call.inputs))]
    written = [(name, False) for name in _padded(outputs, len(call.outputs))]
    specs = call.inputs + call.outputs
    return [name for name, spec in zip(read + written, specs, strict=True) if spec is not None]


def _padded(names: Sequence[Hashable], length: int) -> list[Hashable]:
    return [*names, *[None] * (length - len(names))]


def reuse_distances(calls: Iterable[KernelCall | None]) -> list[tuple[Touch, ...]]:
    """For each kernel in launch order, its tensors with their reuse distances, the kernel's own bytes included.

    None stands for a kernel of unknown shapes (a collective): it is taken to touch nothing.
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
"""Kernels that write some rows of their first operand and name it as their output."""
_BLOCKED = re.compile(r"FRACTAL|C0")
"""Formats that are not row-major."""
_Kind = tuple[int, str, str]
"""Elements, dtype and blocked format of a tensor."""


def owned_operands(launches: Sequence[KernelCall | None]) -> dict[int, list[Hashable]]:
    """Return which tensor each input is, by place in launch order, of kernels that read weights or caches.

    Operands behind the first of products, and keys and values of attention, are weights or caches where no kernel in
    the table writes a tensor of that kind: each layer has its own, and a layer reads them once in a step. Where the
    table holds several steps, the same layer's is read one step later. Inputs that may be any tensor are None.
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
    """Return the places of inputs that are weights or caches unless another kernel writes them."""
    if _ATTENTION.search(call.type):
        return range(1, min(3, len(call.inputs)))
    return range(1, len(call.inputs)) if _PRODUCT.search(call.type) else range(0)


def _written(call: KernelCall) -> Sequence[TensorSpec]:
    """Return what a kernel writes in full."""
    outputs = call.outputs[1:] if is_update(call) else call.outputs
    return [spec for spec in outputs if spec is not None]


def is_update(call: KernelCall) -> bool:
    """Return whether a kernel puts some rows into its first operand, in place."""
    return bool(_IN_PLACE.search(call.type)) and bool(call.outputs) and call.inputs[:1] == call.outputs[:1]


def _kind(spec: TensorSpec) -> _Kind:
    return prod(spec.shape), spec.dtype, spec.format if _BLOCKED.search(spec.format) else ""


MOST_ALIKE = 5
"""Weights of one size that a layer has at most, and one more: four projections of equal size, but not five."""


def _steps_told(counts: Sequence[int]) -> int:
    """Return how many steps a table holds, told by how often weights of each kind are read; 1 where that tells none.

    Every kind is read a multiple of that often, some kind (a head, the last layer) once a step, and some more often in
    a step than in any one layer: a few layers by themselves look like steps, but for that.
    """
    steps = gcd(*counts) if counts else 1
    return steps if steps > 1 and min(counts) == steps and max(counts) >= MOST_ALIKE * steps else 1


def touches_in(calls: Sequence[KernelCall], state: State) -> list[tuple[Touch, ...]]:
    """For the kernels of one op, their tensors with reuse distances when the op starts in `state`.

    That is after L2 was cleared, or when the same op ran just before. Nothing is known of them in a network.
    """
    if state == "network":
        return [() for _ in calls]
    stream = Stream()
    if state == "warm":
        for call in calls:
            stream.touch(call)
    return [stream.touch(call) for call in calls]


def written_back(call: KernelCall, touches: tuple[Touch, ...]) -> tuple[Touch, ...]:
    """The touches of a kernel by itself: what it writes stays in L2 as far as that holds the kernel's tensors, wherever
    what it reads comes from. Of attention, which reads more than the tensors it names (`moved_bytes`), that says
    nothing."""
    kernel_bytes, reads = sum(size for size, _ in touches), sum(spec is not None for spec in call.inputs)
    if len(touches) > reads + sum(spec is not None for spec in call.outputs):
        return touches
    written = touches[reads:] or _in_place(touches)
    return (*touches[:reads], *((size, distance or kernel_bytes) for size, distance in written))


def _in_place(touches: tuple[Touch, ...]) -> tuple[Touch, ...]:
    """What a kernel writes that names no outputs, as optimizers: all of its largest tensors but one, the gradient."""
    largest = max((size for size, _ in touches), default=0.0)
    return tuple((size, None) for size, _ in touches if size == largest)[:-1]


class Held(NamedTuple):
    """What the caches hold of a kernel when it starts."""

    resident: float | None = None
    """Share of its bytes that is in L2; None where nothing is known."""
    loaded: float = 0.0
    """How often its code is in the instruction caches, as a share of its launches."""


CODES_KEPT = 3
"""Other kernels that may run before the code of one has left the instruction caches: the median `aiv_icache_miss_rate`
of a Qwen step on a 910B4 is 0.000 where up to two ran in between, 0.003 after three, 0.02 to 0.05 after more."""


class Codes:
    """Whose code the instruction caches hold, told by the order of launches."""

    def __init__(self) -> None:
        self._number = 0
        self._last: dict[tuple[str, ...], int] = {}

    def launch(self, call: KernelCall | None) -> bool:
        """Whether the caches hold the next kernel's code: its type and dtypes ran no more than `CODES_KEPT` others ago.

        None stands for a kernel of which nothing is known.
        """
        self._number += 1
        if call is None:
            return False
        key = (call.type, *(spec.dtype for spec in call.inputs if spec is not None))
        before, self._last[key] = self._last.get(key), self._number
        return before is not None and self._number - before <= CODES_KEPT + 1


def codes_kept(calls: Iterable[KernelCall | None]) -> list[bool]:
    """For each kernel in launch order, whether the instruction caches still hold its code."""
    codes = Codes()
    return [codes.launch(call) for call in calls]


def resident_of(touches: tuple[Touch, ...], device: DeviceProfile) -> float | None:
    """Share of a kernel's bytes found in L2; None when nothing is known of its tensors.

    A tensor is found with probability 1 / (1 + (distance / (reach * L2)) ** sharpness).
    """
    rates = device.rates
    reach = rates.sequence_reach * device.l2_bytes
    total = resident_bytes = 0.0
    for size, distance in touches:
        total += size
        if distance is not None:
            resident_bytes += size / (1 + min(distance / reach, FAR) ** rates.sequence_sharpness)
    return resident_bytes / total if total > 0 else None
