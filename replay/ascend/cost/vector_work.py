# pyright: strict
"""The amount of work of a vector kernel (blocks, elements, rows and bytes), counted by form. Computes no times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2, prod
from typing import cast

import msgspec

from opreplay.replay.ascend.cost.lines import (
    BY_THREADS,
    LINE_CYCLES,
    POSITIONS_TOGETHER,
    SAMPLED_BY_THREADS,
    beyond_l2,
    gathered_lines,
    sampled_lines,
    touched,
)
from opreplay.replay.ascend.cost.sizes import WIDE, Tally, first, last_dim, tensor_bytes, total_bytes
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost
from opreplay.replay.ir.kernel import HALF, KernelCall, TensorSpec, itemsize

VECTOR_FLOATS = 64
"""float32 elements per vector instruction (256 bytes); rows are processed in float32."""

SUMS = frozenset({"ReduceSum", "ReduceSumD", "ReduceMean", "ReduceMeanD", "ReduceMax", "ReduceMin", "ReduceProd"})
"""Reductions in which several cores may compute parts of one result."""
SUMMED_ALONE = 300e3
"""Maximum bytes of a row that one core reduces alone; assumed.

Reading this many bytes takes a core 7 us. Synchronisation between several cores takes as long: it is the difference
between the fitted families. Only rows of 64 KB and rows of 2 MB and more were measured.
"""
SUMMED_ALONE_WIDE = 25e3
"""Maximum bytes of a row of 8-byte integers that one core reduces alone. From about 3,000 elements, several cores are
faster.
"""


def summed_alone(dtype: str) -> float:
    """Return the maximum size, in bytes, of a row of this dtype that one core reduces alone."""
    return SUMMED_ALONE_WIDE if dtype in WIDE else SUMMED_ALONE


PLACES_OF_EXTREMA = frozenset({"ArgMaxV2", "ArgMinV2", "ArgMaxWithValue", "ArgMinWithValue"})
"""Kernel types that split few rows over all cores on a 950PR.

Argmax over a million numbers takes 6 us; on one core, it would take 66 us (hicann/cann-bench). For the types that also
return values, splitting is assumed.
"""
ACROSS, ACROSS_LINE, AGAIN = 3.0, 80.0, 1.6
"""Costs of work along a dimension other than the innermost on a 910B2.

ACROSS is the factor on the cost of an element, compared with the innermost dimension. ACROSS_LINE is the number of
cycles per line, whatever its length. AGAIN is an additional factor per element for slices that a core cannot hold,
because their lines are read again. The values come from 13 softmaxes along dimensions of 127 to 8192. In these, a core
had lines of 5 to 1023 elements (hicann/cann-bench).
"""
REPEATED = 0.05
"""Cycles per element for a one-column operand that is repeated along each row.

The vector pipe's counters of a 910B4 show that sums and products take 0.059 cycles with such an operand instead of
0.020. float16 quotients take 0.21.
"""

SORTED_IN_CORE = 4096
"""Number of elements that a vector core sorts in its own memory, which also holds their indices and a second buffer."""
MERGED = 2.0
"""Cost of a merge level that reads runs from memory and writes them back, relative to a merge level within a core.

Derived from sorting 11 rows of 151,936 on a 910C die, the only long rows measured. This takes 204 us. If the rows were
evenly distributed over the cores, it would take 88 us.
"""

NATIVE_HALF = 0.7
"""Cycles per element of float16 arithmetic, relative to float32.

The vector pipe's counters of a 910B4 in a loop give 0.0137 / 0.020 cycles for sums and products, and 0.0088 / 0.018 for
relu. One instruction processes 128 float16 elements.
"""


class Work(msgspec.Struct, frozen=True, gc=False):
    """The work of one vector kernel."""

    blocks: float
    """Number of vector cores used."""
    elements: float
    """Elements that the busiest core processes."""
    rows: float
    """Rows, runs, images or indices that the busiest core processes."""
    read: float
    """Bytes that the kernel reads."""
    write: float
    """Bytes that the kernel writes."""
    repeated: float = 0.0
    """Elements that the busiest core processes with an operand that is repeated along each row."""
    further: float = 0.0
    """Cycles of the busiest core in addition to those for elements and rows."""
    memory: float = 0.0
    """Replaces the family's factor on the memory time. 0 means that the family's factor is kept."""


def blocks_for(size_bytes: float, device: DeviceProfile) -> float:
    """Return the number of cores used by a kernel whose largest tensor has `size_bytes`.

    The result can have a fraction. The last core counts only with the share of work that it has, because it does not
    make the other cores faster.
    """
    cores = float(device.aiv_cores)
    blocks = size_bytes / device.rates.block_bytes
    return cores if blocks > cores else blocks if blocks > 1.0 else 1.0


def _numel(spec: TensorSpec | None) -> int:
    return prod(spec.shape) if spec is not None else 0


DIVERGING = frozenset({"Gcd"})
"""Kernels whose number of steps depends on the values. For this reason, wider vectors do not process more elements at a
time.
"""


def operations_of(call: KernelCall) -> float:
    """Return the float32 operations that the attr `operations` counts; 0 if the work follows from the elements."""
    operations = call.attrs.get("operations")
    return float(operations) if isinstance(operations, int | float) else 0.0


def _elementwise(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    blocks = blocks_for(tally.most_bytes, device)
    elements = tally.most / blocks
    if call.type in DIVERGING:
        elements *= device.vector_width
    if call.attrs and (operations := operations_of(call)):
        each = max(1.0, dtype_factor(call, family))
        further = operations * each / (blocks * VECTOR_FLOATS * device.vector_width)
        return Work(blocks, elements, 0, tally.read, tally.write, further=further)
    inputs, widest = call.inputs, tally.widest
    if len(inputs) > 1 and widest is not None and (whole := widest.shape) and whole[-1] > 1:
        for spec in inputs:
            if spec is not None and (shape := spec.shape) and shape[-1] == 1 and prod(shape) > 1:
                return Work(blocks, elements, 0, tally.read, tally.write, elements)
    return Work(blocks, elements, 0, tally.read, tally.write)


def _optimizer(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    # Parameters and moments are updated in place; the profiler names no outputs.
    tensors = [s for s in call.inputs if s is not None]
    n = max((prod(s.shape) for s in tensors), default=0)
    state = [s for s in tensors if prod(s.shape) == n]
    write = tally.write or total_bytes(state[:-1] or state)
    blocks = blocks_for(n * 4, device)
    return Work(blocks, n / blocks, 0, tally.read, write)


def _foreach(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    read, write = tally.read, tally.write
    n = sum(_numel(s) for s in call.outputs) or sum(_numel(s) for s in call.inputs)
    blocks = blocks_for(max(read, write), device)
    tensors = sum(1 for s in (call.outputs or call.inputs) if s is not None)
    return Work(blocks, n / blocks, tensors, read, write)


def _rowwise(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    main = tally.main
    if main is None:
        main = max((s for s in call.outputs if s is not None), key=tensor_bytes, default=None)
    if main is None:
        return Work(1, 0, 0, 0, 0)
    recorded_cols = call.attrs.get("cols") if call.attrs else None
    cols = int(recorded_cols) if isinstance(recorded_cols, int) else last_dim(main)
    if cols < 1:
        cols = 1
    if call.attrs and isinstance(call.attrs.get("lines"), int):
        return _in_lines(call, cols, device, tally)
    rows = prod(main.shape) // cols or 1
    row_block = family.row_block
    blocks = ceil(rows / row_block) or 1
    if blocks > device.aiv_cores:
        blocks = device.aiv_cores
    if call.type in PLACES_OF_EXTREMA and blocks < device.aiv_cores and device.vector_width > 1.0:
        blocks = blocks_for(tally.read, device)
        return Work(blocks, rows * cols / blocks, max(1.0, rows / blocks), tally.read, tally.write)
    busiest = ceil(rows / blocks)
    if busiest < row_block:
        busiest = row_block if row_block < rows else rows
    elements = busiest * cols
    inner, further = call.attrs.get("inner"), 0.0
    if isinstance(inner, int) and inner > 1:
        # Lines that lie beside each other are worked on together.
        shared = busiest / min(inner, VECTOR_FLOATS)
        if device.vector_width == 1.0:
            across, further = _across_lines(rows / inner, cols, inner, device)
            elements *= across
    else:
        # Rows shorter than a vector instruction share one.
        shared = busiest * (cols / VECTOR_FLOATS) if cols < VECTOR_FLOATS else busiest
    read = tally.read
    if family.passes > 1.0 and cols * 4 > device.pipes.ub_bytes:
        # A row that a core cannot hold is read again by each pass over it.
        read += (family.passes - 1.0) * tensor_bytes(main)
    return Work(blocks, elements, shared, read, tally.write, further=further)


def _across_lines(outer: float, length: int, inner: int, device: DeviceProfile) -> tuple[float, float]:
    """Return two costs of work along a dimension of `length` that is not innermost.

    There are `outer` slices whose lines have `inner` elements. The first cost is the factor per element, compared with
    work along the innermost dimension. The second is the number of cycles that the busiest core needs for its lines in
    addition, regardless of their length.
    """
    shares = max(1.0, device.aiv_cores / max(1.0, outer))
    held_bytes = length * inner / shares * 4
    lines = max(1.0, outer / device.aiv_cores) * length
    return ACROSS * (AGAIN if held_bytes > device.pipes.ub_bytes else 1.0), lines * ACROSS_LINE


def _in_lines(call: KernelCall, cols: int, device: DeviceProfile, tally: Tally) -> Work:
    """Return the work of a call that processes lines of `cols` elements each, regardless of tensor shapes.

    The attr `lines` is the number of lines, `steps` the number of steps per line, and `each` the arithmetic cost of an
    element.
    """
    lines, steps, each = (call.attrs.get(name) for name in ("lines", "steps", "each"))
    lines = lines if isinstance(lines, int) and lines > 1 else 1
    busiest = ceil(lines / device.aiv_cores)
    walked = busiest * (steps if isinstance(steps, int) else 1)
    elements = busiest * cols * (each if isinstance(each, float) else 1.0)
    return Work(min(lines, device.aiv_cores), elements, walked, tally.read, tally.write)


def _reduce(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    source = first(call.inputs)
    n = _numel(source)
    blocks = blocks_for(tally.read, device)
    rows = _numel(first(call.outputs))
    if 0 < rows < blocks and call.type in SUMS and tally.read <= rows * summed_alone(tally.dtype):
        blocks = blocks if call.attrs.get("across") else rows
    # Along a dimension of one element nothing is summed.
    return Work(blocks, n / blocks, rows / blocks if rows != n else 0, tally.read, tally.write)


def _copy(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    # Only the part that is taken is read: a slice of a large tensor costs no more than a small tensor.
    write = tally.write
    read = min(write, tally.read)
    out = first(call.outputs)
    n = sum(_numel(s) for s in call.outputs)
    blocks = blocks_for(max(read, write), device)
    tensors = call.outputs if family.spreads else call.inputs + call.outputs
    run = min((last_dim(s) for s in tensors if s is not None and len(s.shape) > 1), default=0)
    rows = n / run if run and out is not None and len(out.shape) > 1 else 0
    return Work(blocks, n / blocks, rows / blocks, read, write)


TURNED_TOGETHER = 64
"""Number of elements that a transposition in blocks reads and writes contiguously, for any number of dimensions.

Reversing the dimensions of [67, 67, 17, 13, 11] float16 takes 125 us on a 910B2. If single rows of 11 elements were
moved, it would take 420 us (hicann/cann-bench).
"""
SWAPPED_TOGETHER = 256
"""Value used instead of `TURNED_TOGETHER` if only rows and columns of matrices are swapped. Measured: even 9 rows of
65536 run at memory speed.
"""
BLOCK_BYTES = 32
"""Block size in bytes of a vector core's memory, to which rows are padded."""
TURNED_SINGLY = 0.8
"""Cycles per element to transpose unaligned matrices on a 910B.

Measured: 0.8 to 1.6 for 2- and 4-byte elements of [1023, 1023] to [373, 133221]. Aligned matrices run at memory speed
(hicann/cann-bench). A 950PR has no such cost.
"""
TURNED_BYTES = 9.0
"""Cycles per element to transpose 1-byte elements, for which a 910B has no instruction. [4097, 511] takes 238 us on a
910B, and 9 us on a 950PR.
"""
TURNED_HALVES, MANY_TURNED, MOST_HALVES = 1.4, 256, 16384
"""Extra cost of transposing matrices of 2-byte elements on a 950PR.

TURNED_HALVES is the number of cycles per element. MANY_TURNED is the minimum length that both sides must have for this
cost. MOST_HALVES is the maximum number of elements per core to which it applies. Measured: [256, 256] to [769, 1537]
take 8 to 20 us more. There is no extra cost if one side is 9, 91 or 255, or for 4-byte elements. Beyond MOST_HALVES it
does not grow: 50 million elements show no more of it (cross entropy of [363, 373, 367], hicann/cann-bench).
"""
FEW_TURNED = 16
"""Number of rows below which a core transposes a whole matrix at once and writes it as one run. [2, 9, 65536] takes 15
us and 10 us.
"""
TURNED_MEMORY = 1.38
"""Factor on the memory time of transpositions in blocks, for vectors of 128 and of 256 bytes alike.

[8192, 8192] of 4 bytes moves 0.95 TB/s with either width (hicann/cann-bench). Runs of 256 bytes reach 0.55 TB/s on a
910B2 and 1.4 TB/s on a 950PR.
"""
RUN_BY_RUN = 1.4
"""Cost of moving a run, relative to a row, if several dimensions are reversed on a 950PR, which moves one run at a
time.

A run takes 20 cycles: a million runs of 2 to 11 elements take 176 to 272 us (hicann/cann-bench).
"""


def _transpose(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    source, out = first(call.inputs), first(call.outputs)
    n = max(_numel(source), _numel(out))
    size = n * itemsize(source.dtype if source else "float32")
    run = call.attrs.get("run")
    if source is not None and n > 1 and n in source.shape:
        run = n  # Only one dimension has more than one element: they lie as they did.
    if not isinstance(run, int):
        same = source is not None and out is not None and last_dim(source) == last_dim(out)
        run = last_dim(source) if same and source is not None else 1
    blocks = blocks_for(size, device)
    # Short runs are not moved one by one: blocks of 16 x 16 are turned in the core, and what lies together there is
    # read and written together. What is quicker is taken: of float32 that is moving from about 25 elements on, of
    # halves from about 50.
    swapped = call.attrs.get("swapped")
    narrow = device.vector_width == 1.0
    together = SWAPPED_TOGETHER if swapped else TURNED_TOGETHER if narrow else 1
    rows = sum(n / max(together, last_dim(spec)) for spec in (source, out) if spec is not None)
    if not narrow and not swapped:
        rows *= RUN_BY_RUN
    turning = n * family.cycles * dtype_factor(call, family) / device.vector_width
    if turning < (n / run - rows) * family.row_cycles:
        counted = n / blocks if narrow else min(n / blocks, MOST_HALVES)
        further = counted * _turned_singly(swapped, source, narrow=narrow)
        return Work(blocks, n / blocks, rows / blocks, size, size, further=further, memory=TURNED_MEMORY)
    return Work(blocks, 0, n / run / blocks, size, size, memory=0.0 if narrow else 1.0)


def _turned_singly(swapped: object, source: TensorSpec | None, *, narrow: bool) -> float:
    """Return the extra cycles per element for transposing matrices that the transposing instructions do not support."""
    if source is None or not isinstance(swapped, tuple):
        return 0.0
    size = itemsize(source.dtype)
    rows, columns = cast("tuple[int, int]", swapped)
    if not narrow:
        return TURNED_HALVES if size == 2 and min(rows, columns) >= MANY_TURNED else 0.0
    if size == 1:
        return TURNED_BYTES
    # A matrix of few rows is written as a whole.
    ends = (columns,) if rows < FEW_TURNED else (rows, columns)
    return TURNED_SINGLY if any(end * size % BLOCK_BYTES for end in ends) else 0.0


def _transdata(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    source, out = first(call.inputs), first(call.outputs)
    read, write = total_bytes(call.inputs[:1]), total_bytes(call.outputs[:1])
    plain = source if source is not None and "C0" not in source.format and "FRACTAL" not in source.format else out
    n, other = _numel(source), _numel(out)
    if not n or 0 < other < n:
        n = other
    shape = plain.shape if plain is not None else ()
    fractal = "FRACTAL_Z" in (source.format if source else "", out.format if out else "")
    if len(shape) == 4 and not fractal:
        rows = _rows_turned(shape, source if plain is out else out)
        # Images are dealt out whole, so 32 of them keep 32 cores busy, whatever their size; few large ones in parts.
        blocks = min(device.aiv_cores, shape[0])
        if shape[0] <= device.aiv_cores // 2:
            blocks = max(blocks, blocks_for(write, device))
    else:
        rows = n / max(1, shape[-1]) if shape else 0
        blocks = blocks_for(min(read, write), device)
    blocks = blocks or 1
    return Work(blocks, n / blocks, rows / blocks, read, write)


def _rows_turned(shape: Sequence[int], blocked: TensorSpec | None) -> float:
    """Return the number of runs that are copied element by element when NCHW images become blocks of channels or the
    reverse.

    A run is a channel of an image, or a block of channels if that is longer. Images of one point need no such copy if
    no channels are padded, because both formats then have the same layout.
    """
    images, channels, *points = shape
    block = last_dim(blocked) if blocked is not None else 1
    if prod(points) == 1:
        return 0.0 if channels % block == 0 else images
    return images * channels * min(1.0, prod(points) / block)


def _moved_by_index(call: KernelCall, tally: Tally) -> int:
    # Tables are not read whole. A lookup moves its output; an update in place moves its values, the biggest of the
    # operands that are no table; the gradient of a lookup moves what comes in.
    out = tally.write
    inputs = [tensor_bytes(s) for s in call.inputs if s is not None]
    if call.inputs and call.outputs and call.inputs[0] == call.outputs[0]:
        inputs = inputs[1:]
    return min(out, max(inputs, default=out))


WALKED = 85.0
"""Cycles that each core needs to skip a block of rows assigned to another core.

Measured by re-routing 16 to 512 blocks: 0.045 us per block on a 950PR, 0.06 us on a 910B2 (hicann/cann-bench).
"""


def _gather(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    recorded_indices = call.attrs.get("indices")
    indices = recorded_indices if isinstance(recorded_indices, int) else _index_count(call)
    recorded_bytes = call.attrs.get("moved_bytes")
    moved = recorded_bytes if isinstance(recorded_bytes, int) else _moved_by_index(call, tally)
    n = moved / itemsize(call.outputs[0].dtype if call.outputs and call.outputs[0] is not None else "float32")
    if call.type in SINGLE and device.vector_width > 1.0 and (work := _by_lines(call, device, moved)) is not None:
        return work
    blocks = max(1, min(device.aiv_cores, max(indices, ceil(moved / device.rates.block_bytes))))
    walked, further = call.attrs.get("walked"), 0.0
    if isinstance(walked, int):
        # Blocks of rows are dealt out whole, and each core looks at all of them.
        blocks, further = max(1, min(device.aiv_cores, walked)), walked * WALKED
    return Work(blocks, n / blocks, ceil(indices / blocks), moved + 8 * indices, moved, further=further)


SINGLE = frozenset({"GatherElements", "GatherElementsV2"})
"""Kernel types that look up single elements."""


def _by_lines(call: KernelCall, device: DeviceProfile, moved: int) -> Work | None:
    """Return the work of looking up single elements, counted in cache lines; None if the table, the indices or the
    dimension are not recorded.
    """
    table, places = (*call.inputs[:2], None, None)[:2]
    along, inner = call.attrs.get("cols"), call.attrs.get("inner")
    if table is None or places is None or not isinstance(along, int) or not isinstance(inner, int):
        return None
    count, table_bytes = _numel(places), tensor_bytes(table)
    lines = gathered_lines(count, along, inner, itemsize(table.dtype), table_bytes)
    slice_bytes = min(table_bytes, along * inner * itemsize(table.dtype))
    read = tensor_bytes(places) + beyond_l2(lines, table_bytes, slice_bytes, device.l2_bytes)
    blocks = blocks_for(tensor_bytes(places), device)
    return Work(blocks, count * BY_THREADS / blocks, 0, read, moved, further=lines * LINE_CYCLES / blocks)


def _index_count(call: KernelCall) -> int:
    numbers = [prod(s.shape) for s in call.inputs[1:] if s is not None and s.dtype in ("int64", "int32")]
    return max(numbers, default=1)


def _sort(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    source = first(call.inputs)
    if source is None:
        return Work(1, 0, 0, 0, 0)
    cols = max(2, last_dim(source))
    n = prod(source.shape)
    rows = max(1, n // cols)
    cores = device.aiv_cores
    blocks = max(1, min(cores, max(rows, ceil(n / 8192))))
    levels = n * log2(min(cols, SORTED_IN_CORE)) / blocks
    # Longer rows are merged in memory, four runs at a time, by ever fewer cores; of the largest k no more than these.
    out = first(call.outputs)
    selected = last_dim(out) if call.type.startswith("TopK") and out is not None else cols
    run = SORTED_IN_CORE
    while run < cols:
        run *= 4
        merges = ceil(rows * ceil(cols / run) / cores)
        levels += MERGED * log2(4) * merges * min(run, cols, 4 * selected)
    return Work(blocks, levels, ceil(rows / blocks), tally.read, tally.write)


BLOCKED_CHANNELS = 16
"""Number of channels per block of the format NC1HWC0, including padding.

Because of the padding, interpolating one channel takes as long as 16 on a 910B2. This is not so on a 950PR
(hicann/cann-bench).
"""
WINDOWED = 4.0
"""Cost per element of an adaptive pool, relative to a pool with fixed windows. It holds for vectors of 128 and of 256
bytes.

An adaptive pool takes 30 ps per element on a 910B2, and 8 to 12 ps on a 950PR (hicann/cann-bench).
"""
VISITED, VISITED_CHANNEL = 55.0, 0.35
"""Costs of an adaptive window on channels-last data of a 910B.

VISITED is the number of cycles per position of the window. VISITED_CHANNEL is the number added per channel of each
position. In total, a position takes 50 to 100 cycles for 7 to 97 channels, excluding transpositions (13 calls,
hicann/cann-bench).
"""
RESIZED = frozenset({"UpsampleBilinear2d", "UpsampleBilinear2dGrad"})


def _pool(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    main = first(call.inputs)
    if main is None:
        return Work(1, 0, 0, 0, 0)
    if call.type == "GridSampler2D":
        return _sampled(call, device, tally)
    if call.type == "UpsampleBilinear2d" and (out := first(call.outputs)) is not None and len(main.shape) > 3:
        return _interpolated(call, device, main, out)
    work = _pooled(call, device, main)
    visited = call.attrs.get("visited")
    if isinstance(visited, int) and device.vector_width == 1.0:
        cycles = visited * (VISITED + VISITED_CHANNEL * last_dim(main))
        return msgspec.structs.replace(work, elements=0, further=cycles / work.blocks)
    if call.type.startswith("Adaptive"):
        return msgspec.structs.replace(work, elements=work.elements * WINDOWED * device.vector_width)
    if call.type in RESIZED and device.vector_width == 1.0 and len(main.shape) >= 4 and main.shape[1]:
        padding = ceil(main.shape[1] / BLOCKED_CHANNELS) * BLOCKED_CHANNELS / main.shape[1]
        return msgspec.structs.replace(work, elements=work.elements * padding)
    return work


def _sampled(call: KernelCall, device: DeviceProfile, tally: Tally) -> Work:
    """Return the work of sampling each image at the positions of a grid, one element per position and channel."""
    source, grid = (*call.inputs[:2], None, None)[:2]
    n = _numel(first(call.outputs))
    positions = _numel(grid) / max(1, last_dim(grid)) if grid is not None else n
    size = itemsize(source.dtype if source else "float32")
    blocks = blocks_for(n * size, device)
    if source is None or device.vector_width == 1.0 or len(source.shape) < 2:
        return Work(blocks, n / blocks, positions / blocks, tally.read, tally.write)
    blocks = max(1.0, min(blocks, positions / POSITIONS_TOGETHER))
    lines = sampled_lines(n, source.shape[1], size)
    table = tensor_bytes(source)
    read = tally.read - table + beyond_l2(n, table, table, device.l2_bytes)
    return Work(blocks, n * SAMPLED_BY_THREADS / blocks, 0, read, tally.write, further=lines * LINE_CYCLES / blocks)


MIXED, MIXED_BY_THREADS = 2.5, 3.3
"""Cost of a result element interpolated from four neighbours, relative to an image element that is only converted to
blocks.

MIXED is for a 910B2, where the result element takes 20 ps and the image element 4 to 10 ps. MIXED_BY_THREADS is for a
950PR, which interpolates with threads in 6 ps (31 calls, hicann/cann-bench).
"""


def _interpolated(call: KernelCall, device: DeviceProfile, main: TensorSpec, out: TensorSpec) -> Work:
    """Return the work of interpolation.

    It consists of converting images to blocks of channels, and of computing the result elements. Cores with wide
    vectors read plain images, so their work is only computing the result elements.
    """
    work = _pooled(call, device, main)
    if device.vector_width > 1.0:
        read = work.read * touched(main.shape[2:], out.shape[2:], itemsize(main.dtype))
        return msgspec.structs.replace(work, elements=_numel(out) * MIXED_BY_THREADS / work.blocks, read=read)
    channels = max(1, main.shape[1])
    blocked = ceil(channels / BLOCKED_CHANNELS) * BLOCKED_CHANNELS / channels
    return msgspec.structs.replace(work, elements=(_numel(out) * MIXED + _numel(main)) * blocked / work.blocks)


def _pooled(call: KernelCall, device: DeviceProfile, main: TensorSpec) -> Work:
    images = prod(main.shape[:2]) if len(main.shape) >= 4 else 1
    n = max(_numel(first(call.inputs)), _numel(first(call.outputs)))
    if call.type in RESIZED and device.vector_width > 1.0:
        n = _numel(first(call.outputs))
    # Images are dealt out whole; where they are too few, their rows are.
    min_blocks = images if images >= device.aiv_cores else blocks_for(n * itemsize(main.dtype), device)
    blocks = max(1, min(device.aiv_cores, max(images, min_blocks)))
    # The mask of positions is packed bits, whatever shape it is recorded with.
    read = sum(tensor_bytes(s) for s in call.inputs if s is not None and s.dtype != "uint16")
    write = sum(tensor_bytes(s) for s in call.outputs if s is not None and s.dtype != "uint16")
    return Work(blocks, n / blocks, ceil(images / blocks), read, write)


def _fill(call: KernelCall, family: FamilyCost, device: DeviceProfile, tally: Tally) -> Work:
    write = tally.write
    # What is cleared is named as an input too; rates and probabilities of random numbers are read.
    read = 0 if family.name == "Fill" else tally.read
    # The profiler gives MemSet no shapes: then all cores are assumed, and no bytes.
    blocks = blocks_for(max(read, write), device) if call.outputs else device.aiv_cores
    n = sum(_numel(s) for s in call.outputs)
    if read:
        n = max(n, tally.elements)
    return Work(blocks, n / blocks, 0, read, write)


COUNTERS: dict[str, Callable[[KernelCall, FamilyCost, DeviceProfile, Tally], Work]] = {
    "elementwise": _elementwise,
    "optimizer": _optimizer,
    "foreach": _foreach,
    "rowwise": _rowwise,
    "reduce": _reduce,
    "copy": _copy,
    "transpose": _transpose,
    "transdata": _transdata,
    "gather": _gather,
    "sort": _sort,
    "pool": _pool,
    "fill": _fill,
}
"""Form → function that counts the work of a call."""


def dtype_factor(call: KernelCall, family: FamilyCost) -> float:
    """Return the factor by which a call's dtype multiplies the cycles per element.

    bfloat16 is converted to a wider dtype first, and so is float16 except in elementwise work. 8-byte integers cost
    more because the core has no instructions for them.
    """
    # Axes, perms and offsets come as small integer tensors; only arithmetic looks at more than its first operand.
    if (half_ratio := family.half_ratio) == 1.0 == family.wide_ratio:
        return 1.0
    form = family.form
    operands = call.inputs if form == "elementwise" or form == "optimizer" else call.inputs[:1]
    dtypes = {spec.dtype for spec in operands if spec is not None and spec.shape and spec.shape != (1,)}
    if family.native_half and dtypes == {"float16"}:
        return NATIVE_HALF
    has_words = not dtypes <= HALF | WIDE
    if not dtypes.isdisjoint(HALF):
        return (1.0 + half_ratio) / 2.0 if has_words else half_ratio
    return family.wide_ratio if dtypes and not has_words else 1.0
