# pyright: strict
"""What of each kernel's data is still in L2, judged from the sequence of kernels and the sizes of their tensors.

A kernel table names no addresses. A tensor is taken to be the one of the same number of elements and dtype that was
touched last and has not been taken yet by another operand of the same kernel; what lies between the two touches is the
reuse distance. Where a caller knows which tensor is which, it says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import prod
from typing import NamedTuple

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import KernelCall, State, itemsize

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
    stream = Stream()
    # A step repeats the one before it, and so its distances: each combination is kept once.
    distinct: dict[tuple[Touch, ...], tuple[Touch, ...]] = {}
    launches = (() if call is None else stream.touch(call) for call in calls)
    return [distinct.setdefault(touches, touches) for touches in launches]


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
