# pyright: strict
"""Roofline of a trace: work, rates and share of the device's peak for each op and shape, sorted by lost time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from opreplay.replay.ir.describe import describe_signature
from opreplay.replay.ops.recorded.layers import MOST_TOP_K, Evidence, work_of_call
from opreplay.replay.ops.recorded.sizes import COMMUNICATION, CallWork, is_layer, kind_of, work_of
from opreplay.traces.arrays import Bools, Floats, Ints
from opreplay.traces.links.iterations import BatchIndex
from opreplay.traces.literals import is_whole_numbers, parse_literal
from opreplay.traces.model import OpSignature, Trace
from opreplay.traces.reading.grids import grid_sizes
from opreplay.traces.times.breakdown import (
    classes_of_launches,
    median_us_of_calls,
    medians_of,
    result_allocation_us,
    self_time_us,
)
from opreplay.traces.times.doubts import Doubts, doubts_of
from opreplay.traces.times.kernel_classes import CLASSES, class_of_op, may_multiply
from opreplay.traces.times.peaks import TF32, Peak, is_tf32, knows_roof, peak_of

NO_OP = "no op is recorded for this kernel"
IN_A_GRAPH = "its op was recorded at graph capture, which this trace does not contain"
COPY_OVER_LINK = "copy between host and device: limited by the link"
DOUBTFUL = 1.05
"""Share of the peak above which rates cannot be right; the row then gives a reason."""
MOST_CACHES = 4
"""Calls that move up to this many times the last-level cache's size may get part of their bytes from that cache."""
LEAST_OWN = 0.9
"""Minimum share of a host op's time that lies outside of nested ops. Below it, no rates are reported."""
MOST_KERNELS = 64
_OPAQUE = re.compile(r"CatArrayBatchedCopy\w*<.*?OpaqueType<(\d+)u?")
_OVER_LINK = re.compile(r"Memcpy (HtoD|DtoH)")
_ROUTING = re.compile(r"top_?k|gating|sorttokens", re.IGNORECASE)
Rows = Ints
Bound = Literal["compute", "memory", ""]


class RooflineRow(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one op with the same shapes, or all launches of a kernel without an op."""

    id: str = ""
    """Id of the op in a run or a plan; "" in a trace."""
    name: str
    inputs: str
    calls: int
    time_us: float
    median_us: float | None = None
    """Median device time of a call, summed over the call's launches; on the host, the median self time."""
    share: float
    """Share of the total time."""
    lost_us: float | None = None
    """Time beyond what the device's peak allows: time × (1 − share of the peak).

    None if the share is unknown or too large to be right.
    """
    flops: float | None = None
    """Floating-point operations of all calls."""
    bytes: float | None = None
    """Bytes that all calls move if each argument is read once and each result is written once."""
    tflops_per_s: float | None = None
    gb_per_s: float | None = None
    peak_share: float | None = None
    """Share of the roofline: the larger of the shares of the arithmetic peak and of the memory bandwidth."""
    bound: Bound = ""
    """Which of the two peaks limits the row."""
    peak_kind: str = ""
    """dtype of the arithmetic peak that limits the row, or "memory"."""
    kind: str = ""
    """Class of the row's work, such as "GEMM" or "attention"."""
    why: str = ""
    """Reason why a number is missing."""
    assumed: str = ""
    """What was assumed because it is not recorded, or the reason why the numbers cannot be right."""

    @property
    def is_complete(self) -> bool:
        """Return whether operations, bytes and lost time are all known."""
        return self.flops is not None and self.bytes is not None and self.lost_us is not None

    @property
    def rank_us(self) -> float:
        """Return the time by which rows are sorted: the lost time, or the whole time if the lost time is unknown."""
        return self.time_us if self.lost_us is None else self.lost_us


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """Rows sorted by lost time, largest first."""

    clock: Literal["device", "host"]
    total_us: float
    rows: tuple[RooflineRow, ...]
    peak: Peak | None = None
    note: str = ""
    doubts: Doubts = Doubts()
    """Reasons why the recorded times are not valid timings; if there are any, no row has a rate."""

    @property
    def complete_share(self) -> float:
        """Return the share of the total time in rows whose operations, bytes and share of the peak are all known."""
        return sum(row.share for row in self.rows if row.is_complete)


def roofline(trace: Trace, peak: Peak | None = None) -> Roofline:
    """Return the roofline of a trace. `peak` describes the recorded device; by default it follows from the device's
    name.
    """
    peak = peak or peak_of(trace.info.device_names)
    if len(trace.kernels):
        rows, total_us, note = _of_device(trace, peak), float(trace.kernels.dur_ns.sum(dtype=np.int64)) / 1e3, ""
    else:
        rows, total_us = _of_host(trace)
        peak, note = None, "no device work is recorded: times are host times of ops, without nested ops"
    kinds = [*dict.fromkeys(trace.info.device_names)]
    if peak is None and len(trace.kernels) and len(kinds) > 1:
        note = (
            f"the trace has devices of several kinds ({', '.join(kinds)}), so no peak applies; choose one with "
            "--peak NAME"
        )
    doubts = doubts_of(trace)
    if doubts.mistimed or (not len(trace.kernels) and doubts.zero_ops):
        rows = [_without_rates(row) for row in rows]
    else:
        doubts = Doubts()
    ranked = tuple(sorted(rows, key=lambda row: (-row.rank_us, -row.time_us, row.name)))
    return Roofline(
        clock="device" if len(trace.kernels) else "host",
        total_us=total_us,
        rows=ranked,
        peak=peak,
        note=note,
        doubts=doubts,
    )


def _without_rates(row: RooflineRow) -> RooflineRow:
    """Return the row with its work but without rates, because its time is not a valid timing."""
    return msgspec.structs.replace(
        row,
        lost_us=None,
        tflops_per_s=None,
        gb_per_s=None,
        peak_share=None,
        bound="",
        peak_kind="",
        why=row.why or "its times are not reliable",
        assumed="",
    )


def rated(
    row: RooflineRow, work: CallWork, peak: Peak | None, *, in_tf32: float = 0.0, call_bytes: float | None = None
) -> RooflineRow:
    """Return a row with the rates for `work`, which is the work of all its calls.

    `in_tf32` is the share of the row's time that is spent in calls that multiply in TF32. `call_bytes` is the number of
    bytes that one call moves.
    """
    tflops = speed = share = None
    bound: Bound = ""
    kind, assumed = "", work.assumed
    if row.time_us > 0:
        tflops = None if work.flops is None else work.flops / row.time_us / 1e6
        speed = None if work.bytes is None else work.bytes / row.time_us / 1e3
    shares = [] if peak is None else _peak_shares(peak, tflops, speed, work.dtype, in_tf32)
    # Without its operations or their rate, a product may be far nearer to the other roof.
    multiplies = may_multiply(row.kind, row.name)
    knows = peak is not None and knows_roof(peak, work.flops, work.dtype, multiplies=multiplies)
    if shares and work.bytes is not None and knows:
        share, bound, kind = max(shares)
    lost_us = None if share is None else row.time_us * max(0.0, 1.0 - share)
    if share is not None and peak is not None and share > DOUBTFUL:
        caches = None if call_bytes is None else call_bytes / (peak.cache_mib << 20)
        doubt = "the count or the time is not reliable"
        if caches is None or bound != "memory" or caches > MOST_CACHES:
            lost_us = None
        else:
            doubt = f"{'its data fits' if caches <= 1 else 'part of its data fits'} in the {peak.cache_mib} MiB cache"
        assumed = "; ".join(filter(None, (f"above the peak: {doubt}", assumed)))
    why = work.why
    if not why and work.bytes is not None and peak is None:
        why = "the peak of the device is unknown"
    elif not why and work.flops is not None and peak is not None and not knows:
        why = f"the peak of the {peak.device} for {work.dtype or 'several types'} is unknown"
    return msgspec.structs.replace(
        row,
        flops=work.flops,
        bytes=work.bytes,
        tflops_per_s=tflops,
        gb_per_s=speed,
        peak_share=share,
        lost_us=lost_us,
        bound=bound,
        peak_kind=kind,
        why=why,
        assumed=assumed,
    )


def _peak_shares(
    peak: Peak, tflops: float | None, gb_per_s: float | None, dtype: str, in_tf32: float
) -> list[tuple[float, Bound, str]]:
    """Return (share of a peak, bound, which peak) for this dtype's arithmetic and for memory, if known."""
    shares: list[tuple[float, Bound, str]] = []
    best, kind = peak.rate_of(dtype), dtype
    if tflops is not None and best is not None:
        if dtype == "float32" and in_tf32 and TF32 in peak.tflops:
            best = in_tf32 * peak.tflops[TF32] + (1 - in_tf32) * best
            kind = TF32 if in_tf32 > 1 - 1e-9 else f"{TF32}, {dtype}"
        shares.append((tflops / best, "compute", kind))
    if gb_per_s is not None:
        shares.append((gb_per_s / peak.gb_per_s, "memory", "memory"))
    return shares


def _of_device(trace: Trace, peak: Peak | None) -> list[RooflineRow]:
    kernels = trace.kernels
    time_us = kernels.dur_ns.astype(np.float64) / 1e3
    total_us = float(time_us.sum()) or 1.0
    owner = kernels.owner.astype(np.int64)
    count = len(trace.signatures)
    # Rows are signatures, then kernels without an op.
    at = np.where(owner >= 0, trace.ops.signature[np.maximum(owner, 0)] if len(trace.ops) else 0, count + kernels.name)
    at = at.astype(np.int64)
    sums = np.bincount(at, weights=time_us)
    launches = np.bincount(at)
    over_link = np.bincount(at, weights=time_us * _named(trace, _OVER_LINK), minlength=len(sums))
    of_graph = np.zeros(len(kernels), bool)
    if trace.graphs is not None:
        of_graph[trace.graphs.kernels] = True
    in_graphs = np.bincount(at, weights=time_us * of_graph, minlength=len(sums))
    in_tf32 = _time_in_tf32(trace, at, time_us, len(sums))
    kinds = _kinds(trace, at, len(sums))
    works = works_of(trace)
    medians = median_us_of_calls(trace, at, len(sums))
    rows: list[RooflineRow] = []
    for index in np.flatnonzero(launches).tolist():
        whole_us = float(sums[index])
        if index >= count:
            name, inputs, calls = trace.kernel_names[index - count], "", int(launches[index])
            why = IN_A_GRAPH if in_graphs[index] > whole_us / 2 else NO_OP
            total, one = CallWork(flops=None, bytes=None, dtype="", why=why), None
        else:
            signature = trace.signatures[index]
            name, inputs = signature.name, describe_signature(signature)
            calls, total = works[index]
            one = None if total.bytes is None else total.bytes / max(1, calls)
        if kinds[index] == "communication":
            total = CallWork(flops=None, bytes=None, dtype="", why=COMMUNICATION)
        elif over_link[index] > whole_us / 2:
            total = CallWork(flops=0.0, bytes=None, dtype="", why=COPY_OVER_LINK)
        row = RooflineRow(
            name=name,
            inputs=inputs,
            calls=calls,
            time_us=whole_us,
            median_us=medians[index],
            share=whole_us / total_us,
            kind=kinds[index],
        )
        rows.append(rated(row, total, peak, in_tf32=float(in_tf32[index]), call_bytes=one))
    return rows


def works_of(trace: Trace) -> dict[int, tuple[int, CallWork]]:
    """Return {signature: (number of calls, their total work)}.

    Only signatures whose calls launched device work are included.
    """
    kernels, ops = trace.kernels, trace.ops
    owned = np.flatnonzero(kernels.owner >= 0)
    if not len(owned):
        return {}
    owner = kernels.owner[owned].astype(np.int64)
    calls, which = np.unique(owner, return_inverse=True)
    call_us = np.bincount(which.reshape(-1), weights=kernels.dur_ns[owned] / 1e3)
    batches = BatchIndex(trace)
    signature = ops.signature[calls].astype(np.int64)
    depends = np.array([kind_of(call.name) == "attention" for call in trace.signatures] or [False])
    context = np.where(depends[signature], batches.of_row[calls].astype(np.int64), -1)
    keys, group = np.unique(signature * (len(batches.contexts) + 1) + context + 1, return_inverse=True)
    by_group = np.argsort(group.reshape(-1), kind="stable")
    bounds = np.searchsorted(group.reshape(-1)[by_group], np.arange(len(keys) + 1))
    element_bytes, top_k = _element_bytes(trace), _top_k_by_layer(trace)
    by_owner = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[by_owner], calls)
    found: defaultdict[int, list[tuple[int, CallWork]]] = defaultdict(list)
    numbers: list[int] = keys.tolist()
    for number, key in enumerate(numbers):
        index, batch = divmod(key, len(batches.contexts) + 1)
        members = by_group[bounds[number] : bounds[number + 1]]
        call = trace.signatures[index]
        begin = int(first[members[0]])
        call_rows = owned[by_owner[begin : begin + MOST_KERNELS]]
        evidence = Evidence(
            batch=batches.contexts[batch - 1] if batch else None,
            kernels=_kernels_of(trace, call_rows, int(calls[members[0]])),
            top_k=top_k.get(_sizes_of_layer(call)) if is_layer(call) else None,
            shortest_us=float(call_us[members].min()),
            longest_us=float(call_us[members].max()),
        )
        found[index].append((len(members), work_of_call(call, evidence, element_bytes.get(index))))
    return {index: _together(parts) for index, parts in found.items()}


def _together(parts: Sequence[tuple[int, CallWork]]) -> tuple[int, CallWork]:
    """Return the number of calls and the sum of their work. The sum is None if the work of some call is unknown."""
    flops = [None if work.flops is None else n * work.flops for n, work in parts]
    moved = [None if work.bytes is None else n * work.bytes for n, work in parts]
    whys = dict.fromkeys(work.why for _, work in parts if work.why)
    notes = dict.fromkeys(work.assumed for _, work in parts if work.assumed)
    dtypes = {work.dtype for _, work in parts}
    return sum(n for n, _ in parts), CallWork(
        flops=None if None in flops else sum(one or 0.0 for one in flops),
        bytes=None if None in moved else sum(one or 0.0 for one in moved),
        dtype=dtypes.pop() if len(dtypes) == 1 else "",
        why=next(iter(whys), ""),
        assumed="; ".join([*notes][:2]),
    )


def _kernels_of(trace: Trace, rows: Rows, call: int) -> tuple[tuple[str, tuple[int, int, int] | None], ...]:
    """Return the name and grid of the kernels in `rows` that belong to the call, in order of time."""
    kernels = trace.kernels
    mine = rows[kernels.owner[rows] == call]
    mine = mine[np.argsort(kernels.start_ns[mine], kind="stable")]
    names: list[int] = kernels.name[mine].tolist()
    grids: list[int] = [-1] * len(mine) if kernels.grid is None else kernels.grid[mine].tolist()
    return tuple((trace.kernel_names[name], grid_sizes(grid)) for name, grid in zip(names, grids, strict=True))


def _sizes_of_layer(signature: OpSignature) -> tuple[int, int]:
    """Return (tokens, experts) of a layer with hidden states and router logits; (0, 0) for other arguments."""
    shapes = [dims for dims in signature.dims or () if is_whole_numbers(dims) and len(dims) == 2]
    return (shapes[0][0], shapes[1][1]) if len(shapes) > 1 and shapes[0][0] == shapes[1][0] else (0, 0)


def _top_k_by_layer(trace: Trace) -> dict[tuple[int, int], int]:
    """Map (tokens, experts) of a layer to the experts per token that its routing ops select.

    Sizes for which routing ops disagree are left out.
    """
    found: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for signature in trace.signatures:
        if _ROUTING.search(signature.name):
            for tokens, experts, chosen in _routings(signature):
                found[tokens, experts].add(chosen)
    return {sizes: chosen.pop() for sizes, chosen in found.items() if len(chosen) == 1}


def _routings(signature: OpSignature) -> Iterator[tuple[int, int, int]]:
    """Yield (tokens, experts, experts per token) of a routing op, from a tensor of selected experts or from a
    number.
    """
    shapes = [dims for dims in signature.dims or () if is_whole_numbers(dims) and len(dims) == 2]
    widths = {shape[1] for shape in shapes if shape[0] == shapes[0][0]}
    if len(widths) == 2 and min(widths) <= MOST_TOP_K:
        yield shapes[0][0], max(widths), min(widths)
    elif len(widths) == 1 and shapes:
        values = [parse_literal(text) for text in signature.concrete or () if text]
        numbers = [n for n in values if isinstance(n, int) and not isinstance(n, bool) and 0 < n <= MOST_TOP_K]
        if numbers and numbers[0] < shapes[0][1]:
            yield shapes[0][0], shapes[0][1], numbers[0]


def _named(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Return a mask of the kernels whose name matches the pattern."""
    matching = np.array([pattern.search(name) is not None for name in trace.kernel_names] or [False], bool)
    return matching[trace.kernels.name]


def _time_in_tf32(trace: Trace, at: Rows, time_us: Floats, length: int) -> Floats:
    """Return, for each row, the share of its time in calls with a kernel whose name contains TF32."""
    kernels = trace.kernels
    is_named = np.array([is_tf32(name) for name in trace.kernel_names] or [False], bool)[kernels.name]
    call = np.where(kernels.owner >= 0, kernels.owner.astype(np.int64), len(trace.ops) + np.arange(len(kernels)))
    of_call = np.isin(call, call[is_named])
    whole = np.bincount(at, weights=time_us, minlength=length)
    return np.bincount(at, weights=time_us * of_call, minlength=length) / np.maximum(whole, 1e-3)


def _kinds(trace: Trace, at: Rows, length: int) -> list[str]:
    """Return, for each row, the class of work with the largest share of the row's time."""
    used, place = np.unique(at, return_inverse=True)
    time = np.zeros((len(used), len(CLASSES)))
    np.add.at(time, (place.reshape(-1), classes_of_launches(trace)), trace.kernels.dur_ns + 1.0)
    kinds = [""] * length
    for index, best in zip(used.tolist(), time.argmax(axis=1).tolist(), strict=True):
        kinds[index] = CLASSES[best]
    return kinds


def _element_bytes(trace: Trace) -> dict[int, int]:
    """Map signatures to the bytes per element that their kernels move.

    Profiles do not record the dtypes in a list of tensors. However, the names of kernels that concatenate tensors
    contain the size of an opaque element. A signature is left out if its kernels' names disagree.
    """
    bytes_by_name = {i: int(match[1]) for i, name in enumerate(trace.kernel_names) if (match := _OPAQUE.search(name))}
    owned = (trace.kernels.owner >= 0) & np.isin(
        trace.kernels.name, np.array([*bytes_by_name], trace.kernels.name.dtype)
    )
    sizes: dict[int, set[int]] = {}
    pairs = zip(
        trace.ops.signature[trace.kernels.owner[owned]].tolist(), trace.kernels.name[owned].tolist(), strict=True
    )
    for signature, name in set(pairs):
        sizes.setdefault(signature, set()).add(bytes_by_name[name])
    return {signature: size.pop() for signature, size in sizes.items() if len(size) == 1}


def _of_host(trace: Trace) -> tuple[list[RooflineRow], float]:
    """Return rows of host ops by their self time. Only ops that do their work themselves have rates."""
    signature = trace.ops.signature.astype(np.int64)
    own = self_time_us(trace)
    count = len(trace.signatures)
    time = np.bincount(signature, weights=own, minlength=count)
    calls = np.bincount(signature, minlength=count)
    medians = medians_of(own, signature, count)
    # Making room for its result is part of an op's work, whatever ops it takes.
    whole = np.bincount(signature, weights=trace.ops.dur_ns / 1e3, minlength=count) - result_allocation_us(trace)
    total_us = float(own.sum())
    listed = {int(trace.ops.signature[one.row]) for one in trace.collectives if one.row >= 0}
    rows: list[RooflineRow] = []
    for index in np.flatnonzero(calls).tolist():
        call, n = trace.signatures[index], int(calls[index])
        kind = "communication" if index in listed else class_of_op(call.name)
        row = RooflineRow(
            name=call.name,
            inputs=describe_signature(call),
            calls=n,
            time_us=float(time[index]),
            median_us=medians[index],
            share=float(time[index]) / (total_us or 1.0),
            kind=kind,
        )
        if time[index] >= LEAST_OWN * whole[index]:
            row = rated(row, _together([(n, work_of(call))])[1], None)
        else:
            alone = time[index] < (1.0 - LEAST_OWN) * whole[index]
            share = "" if alone else "part of "
            row = msgspec.structs.replace(row, why=f"the ops inside it do {share}its work")
        rows.append(row)
    return rows, total_us
