# pyright: strict
"""Memory use over a step: the peak, live bytes at the peak by op, and the devices with enough memory.

The profiler recorded the numbers, or they are inferred from the sizes and lifetimes of the step's results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from math import gcd
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from opreplay.replay.arguments.shrink.pools import TABLES, pools_of
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import readable, tensor_bytes
from opreplay.replay.ir.step import PYTHON
from opreplay.replay.plan.step.lifetimes import Lifetimes, lifetimes, makes_no_memory
from opreplay.replay.plan.step.linking import (
    NO_VIEWS,
    PRODUCTS,
    Linked,
    Outside,
    Value,
    linked_step,
    results_of,
    tensors_of,
)
from opreplay.traces import Trace
from opreplay.traces.activity import MemoryTable
from opreplay.traces.arrays import Floats, Ints, distinct
from opreplay.traces.links.parents import innermost_at
from opreplay.traces.links.steps import Step
from opreplay.traces.model import TensorMeta

MOST_OPS = 20
BEFORE = "(allocated before the step)"
OUTSIDE = "(parameters and inputs)"
BLOCK_BYTES = 512
UNKNOWN = "unknown: no result has a known size"
"""Verdict if no size of the step's results is known."""
_NOT_INFERRED = (
    "not counted: workspaces of libraries, contexts, memory that the framework's allocator reserves; where Python "
    "keeps results after their last use (KV caches, outputs), the peak is closer to the sum of all results"
)
_NOT_RECORDED = "not counted: memory that the framework's allocator reserves, and contexts of libraries"


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Live bytes over one step."""

    source: Literal["recorded", "inferred"] = "recorded"
    """Source of the numbers: "recorded" or "inferred".

    Recorded numbers are the allocations on the busiest device (`profile_memory=True`). Inferred numbers assume that
    results live from their call to their last use, and parameters and inputs all the time. They do not count workspaces
    and the framework's cache.
    """
    on_device: bool
    """Whether the numbers describe a device's memory. False if the trace has only allocations on the host."""
    begin_bytes: int
    peak_bytes: int
    low_bytes: int | None = None
    """Lowest estimate of an inferred peak.

    External tensors are tensors that no call makes. Parameters that may be the same tensor count once. Other external
    tensors live only during their uses. In contrast, `peak_bytes` counts each use of an external tensor as a separate
    tensor that is always alive.
    """
    high_bytes: int | None = None
    """Highest estimate of an inferred peak. It assumes that the step frees none of its results before it ends.

    This covers results that Python keeps: KV caches, outputs, and saved activations that no recorded call reads.
    """
    pool_bytes: int = 0
    """Part of the peak that is KV caches, each counted once. A serving engine sizes them to fill its device."""
    peak_at_us: float | None
    """Time of the peak after the step's start; None if inferred."""
    end_bytes: int
    allocations: int
    at_peak_by_op: dict[str, int]
    """Op → bytes that it allocated and that are live at the peak, largest first."""
    fits: dict[str, bool | None]
    """Whether the peak fits the memory of each simulated device; None if no result size is known.

    The framework's reserve is not included.
    """
    verdicts: dict[str, str] = {}
    """Verdict for each simulated device as text with its condition.

    For example, only part of the range fits, or all but the KV caches fits.
    """
    notes: tuple[str, ...] = ()


def memory_of(
    trace: Trace, step: Step, devices: Sequence[DeviceProfile], plan: ReplayPlan | None = None
) -> MemoryUse | None:
    """Return memory use over a step; None if the trace records no allocations in it. `plan` identifies KV caches."""
    assert trace.activity is not None
    table = trace.activity.memory
    rows, live = _allocations(table, step)
    if not len(rows):
        return None
    on_device, change = bool(table.on_device[rows[0]]), table.bytes[rows]
    peak = int(live.argmax())
    whole = int(live[peak])
    by_op = _live_by_op(trace, rows[: peak + 1])
    before = whole - sum(by_op.values())
    if before > 0:
        by_op[BEFORE] = before
    of_plan = None if plan is None else inferred_memory(plan, (), on_device=on_device)
    pool = 0 if of_plan is None else min(whole, of_plan.pool_bytes)
    fits, verdicts = _fitting(devices, whole, whole, whole, pool)
    return MemoryUse(
        on_device=on_device,
        begin_bytes=int(live[0] - change[0]),
        peak_bytes=whole,
        peak_at_us=float(table.time_ns[rows[peak]] - step.start_ns) / 1e3,
        end_bytes=int(live[-1]),
        allocations=int((change > 0).sum()),
        at_peak_by_op=_largest(by_op.items()),
        pool_bytes=pool,
        fits=fits,
        verdicts=verdicts,
        notes=(_NOT_RECORDED,) * bool(devices),
    )


def memory_over_step(trace: Trace, step: Step) -> tuple[Floats, Ints]:
    """Return (µs after the step's start, bytes in use) at each recorded change on the busiest device."""
    assert trace.activity is not None
    table = trace.activity.memory
    rows, live = _allocations(table, step)
    return (table.time_ns[rows] - step.start_ns) / 1e3, live


def _allocations(table: MemoryTable, step: Step) -> tuple[Ints, Ints]:
    """Return (rows of the step in time order, bytes in use after each row) for the busiest device.

    If no device has rows, the rows of the host are used.
    """
    inside = (table.time_ns >= step.start_ns) & (table.time_ns < step.end_ns)
    on_device = bool((inside & table.on_device).any())
    inside &= table.on_device if on_device else ~table.on_device
    numbers, counts = np.unique(table.device[inside], return_counts=True)
    rows = np.flatnonzero(inside & np.isin(table.device, numbers[counts == counts.max(initial=0)][:1]))
    rows = rows[np.argsort(table.time_ns[rows], kind="stable")]
    in_use = table.allocated_bytes[rows]
    # Where the allocator does not say how much is in use, only what the step adds is known.
    return rows, in_use if (in_use >= 0).all() else np.cumsum(table.bytes[rows])


def inferred_memory(plan: ReplayPlan, devices: Sequence[DeviceProfile], *, on_device: bool) -> MemoryUse | None:
    """Return a plan step's memory use, inferred from the lifetimes of its tensors; None without a step."""
    sequence = plan.sequence
    if sequence is None or not sequence.calls:
        return None
    ops, calls, linked = linked_step(plan.ops, sequence)
    results = [list(map(_block, results_of(op))) for op in ops]
    owned = lifetimes(ops, linked)
    size = {value: results[calls[value.call]][value.output] for value in owned.until}
    passing = _passing(ops, linked)
    live = _live_over(calls, results, owned, linked, passing)
    pools = _pools(ops, linked.outside)
    others = set(range(len(linked.outside))) - pools
    pool = _least_outside(ops, linked, others | _views(ops, linked.outside, pools))
    outside = pool + sum(_block(_tensor(ops, linked.outside[number])[2]) for number in others)
    shared_bytes = pool + _least_outside(ops, linked, pools | passing.keys(), repeated=True)
    whole = live.peak + outside
    lowest, high = min(live.low + shared_bytes, whole), max(outside + sum(size.values()), whole)
    at_peak = [
        (ops[calls[value.call]].name, size[value])
        for value, last in owned.until.items()
        if value.call <= live.peak_at <= last
    ]
    unknown = sum(not results[index] and not makes_no_memory(ops[index]) for index in calls)
    note = f"the results of {unknown} of {len(calls)} calls have unknown sizes: they count as 0 bytes"
    has_sizes = not unknown or any(map(any, map(results.__getitem__, calls)))
    fits, verdicts = _fitting(devices, lowest, whole, high, pool, has_sizes=has_sizes)
    return MemoryUse(
        source="inferred",
        on_device=on_device,
        begin_bytes=outside,
        peak_bytes=whole,
        low_bytes=lowest,
        high_bytes=high,
        pool_bytes=pool,
        peak_at_us=None,
        end_bytes=live.end + outside,
        allocations=len(owned.until),
        at_peak_by_op=_largest([*at_peak, (OUTSIDE, outside)]),
        fits=fits,
        verdicts=verdicts,
        notes=(*[note] * bool(unknown), _NOT_INFERRED),
    )


class _Live(NamedTuple):
    """How many bytes of results are live during the calls of a step."""

    peak: int
    peak_at: int
    """Number of the call at which the peak is first reached."""
    low: int
    """Peak if activations from outside the step are alive only while calls use them."""
    end: int


def _live_over(
    calls: Sequence[int],
    results: Sequence[Sequence[int]],
    owned: Lifetimes,
    linked: Linked,
    passing: Mapping[int, int],
) -> _Live:
    """Return the live bytes of results over the calls of a step.

    `results` [op][output] has the bytes of each result. `passing` has the bytes of each external activation by its
    number.
    """
    ends: defaultdict[int, list[Value]] = defaultdict(list)
    for value, last in owned.until.items():
        ends[last].append(value)
    live, peak, peak_at, low = 0, 0, 0, 0
    for at, index in enumerate(calls):
        values = (Value(at, output) for output in range(len(results[index])))
        live += sum(results[index][value.output] for value in values if owned.within[value] == value)
        if live > peak:
            peak, peak_at = live, at
        numbers = {source.number for source in linked.sources[at] if source.kind == "outside"}
        low = max(low, live + sum(passing[number] for number in numbers & passing.keys()))
        live -= sum(results[calls[value.call]][value.output] for value in ends[at])
    return _Live(peak, peak_at, low, live)


def _fitting(
    devices: Sequence[DeviceProfile], low: int, peak: int, high: int, pool: int, *, has_sizes: bool = True
) -> tuple[dict[str, bool | None], dict[str, str]]:
    """Return, by device, whether `peak` bytes fit, and a verdict as text.

    If no result has a known size, results would still add to the peak. Then only "does not fit" is certain.
    """
    fits: dict[str, bool | None] = {device.name: peak <= device.hbm_bytes for device in devices}
    verdicts = {device.name: _verdict(device.hbm_bytes, low, peak, high, pool) for device in devices}
    unsure = [] if has_sizes else [name for name, is_fitting in fits.items() if is_fitting]
    return fits | dict.fromkeys(unsure), verdicts | dict.fromkeys(unsure, UNKNOWN)


def _verdict(room: float, low: int, peak: int, high: int, pool: int) -> str:
    """Return whether a range of bytes fits into `room`, as text that also names conditions."""
    if high <= room:
        return "fits"
    if peak <= room:
        return "fits if results are freed after their last use"
    if low <= room:
        return "may fit"
    if pool and low - pool <= room:
        return (
            f"does NOT fit with KV caches of {readable(pool)}, which an engine sizes to fill its device; without "
            "them the step fits"
        )
    return "does NOT fit"


def _pools(ops: Sequence[ReplayOp], outside: Sequence[Outside]) -> set[int]:
    """Return the numbers of external tensors that are KV caches of a serving engine.

    KV caches are divided into blocks. The tables of a model are not KV caches.
    """
    return {
        number
        for number, tensor in enumerate(outside)
        if ops[tensor.op].name not in TABLES and _tensor(ops, tensor)[0] in pools_of(ops[tensor.op])
    }


def _views(ops: Sequence[ReplayOp], outside: Sequence[Outside], pools: Iterable[int]) -> set[int]:
    """Return the KV caches that are views of other KV caches. They have the same bytes and dtype, but a rarer shape."""
    by_shape: dict[tuple[int, str], dict[tuple[int, ...], set[int]]] = {}
    for number in pools:
        if (meta := _tensor(ops, outside[number])[2]) is not None:
            shapes = by_shape.setdefault((tensor_bytes(meta), meta.dtype), {})
            shapes.setdefault(meta.shape, set()).add(number)
    return {n for shapes in by_shape.values() for group in sorted(shapes.values(), key=len)[:-1] for n in group}


def _tensor(ops: Sequence[ReplayOp], tensor: Outside) -> tuple[str, bool, TensorMeta | None]:
    """Return (argument name, whether the op writes to it, metadata) of an external tensor."""
    return tensors_of(ops[tensor.op])[tensor.argument]


def _block(meta: TensorMeta | None) -> int:
    """Return the bytes that an accelerator's caching allocator uses for a tensor: a multiple of 512 (kMinBlockSize)."""
    return 0 if meta is None else -(-tensor_bytes(meta) // BLOCK_BYTES) * BLOCK_BYTES


def _passing(ops: Sequence[ReplayOp], linked: Linked) -> dict[int, int]:
    """Return, by number, the bytes of external tensors that look like activations from an unknown producer.

    They are passed as arguments without a parameter's name, and their op does not write them.
    """
    out: dict[int, int] = {}
    for number, tensor in enumerate(linked.outside):
        name, written, meta = _tensor(ops, tensor)
        weight = name in NO_VIEWS and ops[tensor.op].name not in PRODUCTS
        if meta is not None and not weight and not written and tensor.memory < 0:
            out[number] = tensor_bytes(meta)
    return out


def _least_outside(ops: Sequence[ReplayOp], linked: Linked, left_out: Container[int], *, repeated: bool = False) -> int:
    """Return the least number of bytes that external tensors can take.

    Tensors of the same shape and dtype count as one tensor where possible. A shape counts as often as the calls of one
    op use it. The reason: a layer's weight is used in forward, backward and the optimizer, but layers of the same size
    have separate weights.

    With `repeated`, the step can be n passes through one model, e.g. a step that decodes several tokens. This is
    assumed if the number of uses of every weight is a multiple of n.
    """
    count: defaultdict[tuple[tuple[tuple[int, ...], str], int], int] = defaultdict(int)
    size: dict[tuple[tuple[int, ...], str], int] = {}
    named: set[tuple[tuple[int, ...], str]] = set()
    known: set[int] = set()
    total = 0
    for number, tensor in enumerate(linked.outside):
        name, _, meta = _tensor(ops, tensor)
        if meta is None or number in left_out:
            continue
        if tensor.memory >= 0:
            total += tensor_bytes(meta) * (tensor.memory not in known)
            known.add(tensor.memory)
            continue
        key = meta.shape, meta.dtype
        size[key] = tensor_bytes(meta)
        if name in NO_VIEWS:
            named.add(key)
        count[key, tensor.op] += 1
    needed: defaultdict[tuple[tuple[int, ...], str], int] = defaultdict(int)
    for (key, _), n in count.items():
        needed[key] = max(needed[key], n)
    passes = max(1, gcd(*(needed[key] for key in named))) if repeated else 1
    return total + sum(n * size[key] for key, n in needed.items()) // passes


def _largest(bytes_of_ops: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sum bytes by op; return the `MOST_OPS` largest sums."""
    by_op: defaultdict[str, int] = defaultdict(int)
    for name, size in bytes_of_ops:
        by_op[name] += size
    return dict(sorted(by_op.items(), key=lambda item: -item[1])[:MOST_OPS])


def _live_by_op(trace: Trace, rows: np.ndarray) -> dict[str, int]:
    """Return the bytes that are allocated and not freed in these rows, by the op that allocated them."""
    assert trace.activity is not None
    table, ops = trace.activity.memory, trace.ops
    live: dict[int, int] = {}
    for row in rows.tolist():
        if table.bytes[row] > 0:
            live[int(table.address[row])] = row
        else:
            live.pop(int(table.address[row]), None)
    alive = np.array(sorted(live.values()), np.int64)
    out: defaultdict[str, int] = defaultdict(int)
    for track in distinct(table.track[alive]):
        here = alive[table.track[alive] == track]
        of_track = np.flatnonzero(ops.track == track)
        owner = np.full(len(here), -1, np.int64)
        if len(of_track):
            owner = innermost_at(
                table.time_ns[here], of_track, ops.start_ns[of_track], ops.dur_ns[of_track].astype(np.int64)
            )
        for row, op in zip(here.tolist(), owner.tolist(), strict=True):
            out[trace.signatures[int(ops.signature[op])].name if op >= 0 else PYTHON] += int(table.bytes[row])
    return dict(out)
