# pyright: strict
"""Time of matrix products and convolutions on the cube cores. The pipes of a core overlap, and tiles run in waves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod, sqrt

import msgspec

from opreplay.replay.ascend.cost.sizes import first, is_nz, logical_matrix, total_bytes
from opreplay.replay.ascend.cost.vector import CORE_LOAD, resident_share
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost
from opreplay.replay.ir.kernel import KernelCall, TensorSpec, itemsize

JOB_COLUMNS = 256
"""Number of weight columns that a core keeps while it processes an expert's rows. It is the width of the usual base
tile.
"""
SPLIT_SHARPNESS = 4.0
"""Exponent that determines how abruptly the overlap of the pipes is lost around the depth `split_depth`. At half that
depth, 6 % is lost, at twice that depth 94 %.
"""
ACCUMULATORS = 32768
"""Number of float32 accumulators in the 128 KiB of L0C. A base tile cannot have more elements (rows times columns)."""


LEAST_ROWS = 80
"""Minimum number of rows assumed when the tile's width is chosen. Without it, a product of 64 rows would get tiles as
wide as L0C allows, and could take another number of waves than one of 65 rows.
"""
DEALT_OUT = (32, 48, 80, 144, 272)
"""Row counts at which products get more tilings to choose from.

They are one fractal (16 rows) more than a tile of 16, 32, 64, 128 or 256 rows.
"""
FEW_WAVES = 4
"""Number of waves of 128 x 256 tiles from which one more fractal of rows makes no difference."""
FLOATS = frozenset({"float32", "float64"})
"""Dtypes whose operands are rearranged on loading. The cube does not know float64, which is therefore never predicted
faster than float32.
"""
WRITTEN = 0.87
"""Minimum share of the HBM peak bandwidth at which results are written.

Measured: a product with K = 32 writes 1 GB in 1.53 ms on a 910B4 with 0.8 TB/s (KernelBench).
"""
MAX_HBM_SHARE = 0.95
"""Maximum share of the HBM peak bandwidth that a product reaches."""
FLOAT32_TILE, FLOAT32_ROWS = 24.0, 64
"""Minimum size of float32 tiles. Smaller tiles are not made even if cores are idle, and K is not split.

FLOAT32_TILE is the minimum number of elements divided by sqrt(K); fewer than 32 rows count as 32. FLOAT32_ROWS is the
minimum number of rows of tiles of 16 columns. Both are derived from measurements. For 32 x 4096 x 1000, a 910B2 started
tiles of 32 x 48 on 21 cores. On a 910B4, 256 x 131072 x 256 reaches 12 TFLOP/s, the rate of eight tiles of 128 x 64.
There, 256 x 131072 x 1 reads at 108 GB/s, the rate of four tiles of 64 rows. The square root interpolates between
these.
"""
SPLIT_LEAST = 4096
"""Minimum depth of each piece when K is split over cores; assumed.

With pieces of 1024, the predicted time of products with K = 7168 would be half the measured time. No measurement
distinguishes 2048 from larger values.
"""


def _halved(gemm: Gemm, m: int, rows: int, cols: int, cores: int, *, columns_first: bool) -> list[tuple[int, int, int]]:
    """Return the tile (rows, cols, 1) and the smaller tiles made from it by halving until no core is idle.

    The larger tiles stay candidates, because they load fewer bytes in total, although they use fewer cores.
    """
    n, batch = gemm.n, gemm.batch
    across, tall = -(-n // cols), batch * -(-m // rows)
    out = [(rows, cols, 1)]
    min_tile = FLOAT32_TILE * sqrt(gemm.k) if gemm.dtype in FLOATS else 0
    while tall * across < cores and (rows >= 32 or cols >= 32):
        if min_tile and (rows <= FLOAT32_ROWS or cols > 16) and (rows if rows > 32 else 32) * cols <= min_tile:
            break
        if rows < 32 or (cols >= 32 and (cols >= rows if columns_first else rows <= 32)):
            cols = cols // 32 * 16 or 16
            across = -(-n // cols)
        else:
            rows = rows // 32 * 16 or 16
            tall = batch * -(-m // rows)
        out.append((rows, cols, 1))
    return out


def _plans(gemm: Gemm, cores: int) -> list[tuple[int, int, int, int]]:
    """Return the candidate plans. Each is a number of rows m, followed by a tiling of m rows as returned by `_tilings`.

    If there are few waves, plans for more rows than the product has are candidates, too. A product therefore never
    costs more than one with more rows.
    """
    out = [(gemm.m, *plan) for plan in _tilings(gemm, gemm.m, cores)]
    if gemm.batch * -(-gemm.m // 128) * -(-gemm.n // 256) < FEW_WAVES * cores:
        for m in {gemm.m // 16 * 16 + 16, *DEALT_OUT}:
            if m > gemm.m:
                out += [(m, *plan) for plan in _tilings(gemm, m, cores)]
    return out


def _tilings(gemm: Gemm, m: int, cores: int) -> list[tuple[int, int, int]]:
    """Return candidate base tiles for `m` rows as (rows, columns, number of pieces of K).

    The number of pieces is usually 1. The largest tile that L0C and the product allow is a candidate. So are the tiles
    made from it by halving rows or columns until no core is idle. More cores only add candidates, so more cores are
    never slower.
    """
    batch, n, k = gemm.batch, gemm.n, gemm.k
    whole_m, whole_n = -(-m // 16) * 16, -(-n // 16) * 16
    out: list[tuple[int, int, int]] = []
    for most_rows in (128, 256):
        rows = whole_m if whole_m < most_rows else most_rows
        cols = ACCUMULATORS // (rows if rows > LEAST_ROWS else LEAST_ROWS) // 16 * 16
        if whole_n < cols:
            cols = whole_n
        if batch * -(-m // rows) * -(-n // cols) >= cores:
            out.append((rows, cols, 1))
        else:
            out += _halved(gemm, m, rows, cols, cores, columns_first=True)
            # Of few rows the columns are halved in either order.
            if rows >= 32 and cols >= 32:
                out += [tile for tile in _halved(gemm, m, rows, cols, cores, columns_first=False) if tile not in out]
        if rows < most_rows:
            break
    if k >= 2 * SPLIT_LEAST and gemm.dtype not in FLOATS:
        for rows, cols, _ in tuple(out):
            pieces = min(cores // (batch * -(-m // rows) * -(-n // cols)), k // SPLIT_LEAST)
            if pieces > 1:
                out.append((rows, cols, pieces))
    return out


class Gemm(msgspec.Struct, frozen=True, gc=False):
    """A matrix product as computed by the cube."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    out_bytes_per_element: int
    a_along_k: bool
    """Whether rows of A are contiguous along K, i.e. A is not transposed. If False, the contiguous length is M."""
    b_along_k: bool
    a_fractal: bool
    b_fractal: bool
    shared_b: bool = False
    """Whether all products of the batch use the same matrix B."""
    weight_bits: int = 0
    """Bits per element of B in memory if B is unpacked to the dtype of A on loading. 0 means that B is not unpacked."""
    added_bytes_per_element: int = 0
    """Bytes that are read per element of the result because the kernel adds the product to them."""


TRANSPOSITIONS = ((False, True), (False, False), (True, False), (True, True))
"""Transpositions of (A, B), in the order in which they are tried."""


def gemm_of(call: KernelCall) -> Gemm | None:
    """Return the sizes of a matrix product from its operand shapes; None if the shapes do not form a product.

    Inputs are A and B. Any others (bias, scales) are ignored, except for a third one to which the product is added
    (attr `adds`). Transposition is taken from attrs or, without these, chosen so that the shapes match.
    """
    inputs = call.inputs
    if len(inputs) < 2 or (a := inputs[0]) is None or (b := inputs[1]) is None:
        return None
    batch_a, *matrix_a = logical_matrix(a)
    batch_b, *matrix_b = logical_matrix(b)
    out, flags = first(call.outputs), call.attrs
    wanted = logical_matrix(out)[1:] if out is not None and out.shape else None
    fits = _fitting(matrix_a, matrix_b, wanted, flags)
    if not fits:
        return None
    m, n, k, try_a, try_b = fits
    bits = flags.get("weight_bits", 0)
    batch, shared_b = max(batch_a, batch_b), batch_b < batch_a
    if batch_a == 1 < batch_b and call.type.startswith("Grouped"):
        # One list of rows, dealt out to the experts: each gets its even share, and only those with rows are read.
        batch = min(batch_b, max(1, m))
        m = -(-m // batch)
    return Gemm(
        batch,
        m,
        n,
        k,
        a.dtype,
        _result_bytes(a, out),
        not try_a,
        try_b,
        is_nz(a),
        is_nz(b),
        shared_b,
        bits if isinstance(bits, int) else 0,
        itemsize(inputs[2].dtype) if flags.get("adds") and len(inputs) > 2 and inputs[2] is not None else 0,
    )


def _fitting(
    a: Sequence[int], b: Sequence[int], wanted: tuple[int, int] | None, flags: Mapping[str, object]
) -> tuple[int, int, int, bool, bool] | None:
    """Return (m, n, k, whether A is transposed, whether B is transposed) for two matrices; None if they cannot be
    multiplied.

    If several transpositions fit, one that gives the output size `wanted` is preferred.
    """
    fits: tuple[int, int, int, bool, bool] | None = None
    for try_a, try_b in TRANSPOSITIONS:
        m, k = (a[1], a[0]) if try_a else (a[0], a[1])
        k_of_b, n = (b[1], b[0]) if try_b else (b[0], b[1])
        if k != k_of_b:
            continue
        if flags and (flags.get("transpose_a", try_a) is not try_a or flags.get("transpose_b", try_b) is not try_b):
            continue
        if wanted in (None, (m, n)):
            return m, n, k, try_a, try_b
        fits = fits or (m, n, k, try_a, try_b)
    return fits


def _result_bytes(a: TensorSpec, out: TensorSpec | None) -> int:
    if out is not None:
        return itemsize(out.dtype)
    return 4 if a.dtype == "float32" else 2


def mac_rate(dtype: str, device: DeviceProfile, hf32: bool) -> float:
    """Return the multiply-accumulates per cycle of one cube core.

    Unknown dtypes run at the float32 rate, so that they are never free. A complex multiply-accumulate counts as four
    real ones.
    """
    rates = device.macs_per_cycle
    if dtype.startswith("complex"):
        return rates["float32"] / 4
    return rates["hf32"] if hf32 and dtype == "float32" else rates.get(dtype, rates["float32"])


def _fill_bytes(run_bytes: int, fractal: bool, size: float, exponent: float) -> float:
    """Return `size`, scaled up if rows have fewer than 512 bytes. Such rows make loading into L1 slower."""
    if fractal or run_bytes >= 512:
        return size
    return size * (512 / max(32, run_bytes)) ** exponent


def _bytes_to_move(gemm: Gemm, device: DeviceProfile, resident: float | None) -> tuple[float, float, float]:
    """Return (bytes of the operands, bytes of the result, share of the bytes found in L2)."""
    batch, m, n, once = gemm.batch, gemm.m, gemm.n, gemm.k * itemsize(gemm.dtype)
    weight = (1 if gemm.shared_b else batch) * n * (gemm.k * gemm.weight_bits / 8 if gemm.weight_bits else once)
    operands = batch * m * (once + n * gemm.added_bytes_per_element) + weight
    result = batch * m * n * gemm.out_bytes_per_element
    moved = operands + result
    if resident is None:
        rates = device.rates
        # Weights that L2 could not hold are not in it.
        cached_share = resident_share(weight, device) / rates.resident_share
        near = (moved - weight) * resident_share(moved, device) + weight * rates.weight_resident_share * cached_share
        resident = near / moved if moved else 1.0
    return float(operands), float(result), resident


def gemm_terms(
    gemm: Gemm, family: FamilyCost, device: DeviceProfile, resident: float | None = None, *, skew: float = 1.0
) -> dict[str, float]:
    """Return the cost terms of a matrix product in microseconds, for the fastest plan.

    Time = launch + (cube^p + l2^p + hbm^p)^(1/p) + fixpipe, with p = `overlap_p`. Tiles run in ceil(tiles / cores)
    waves. The reported cube, L2 and HBM terms are shares of the overlapped time, so that all terms add up to the time.

    If K is very long, CANN splits it. The pipes of a core then wait for each other, and moving data from L1 to L0 takes
    about as long as computing. If few tiles would leave most cores idle, K is split across these cores, and the partial
    sums are read and added once more.

    `family.memory_factor` multiplies the time to load operands, because float32 rows are rearranged at half the speed.
    `skew` multiplies the work and loads of the busiest core. A product without elements costs its launch.
    """
    if not gemm.batch * gemm.m * gemm.n:
        return _shares(0.0, 0.0, 0.0, 0.0, 0.0, family, device)
    rates, freq = device.rates, device.freq_hz
    item = itemsize(gemm.dtype)
    once = gemm.k * item
    operands, result, resident = _bytes_to_move(gemm, device, resident)
    factor = family.memory_factor
    read_bytes, written_bytes = operands * factor * (1.0 - resident), result * (1.0 - resident)
    # Bytes of one core and cycle: the two rates mix by time, as loads alternate between L2 and HBM.
    fill = 1.0 / (resident / rates.l1_fill_bytes_per_cycle + (1.0 - resident) / rates.l1_fill_hbm_bytes_per_cycle)
    macs = mac_rate(gemm.dtype, device, family.hf32) * rates.mac_efficiency * freq
    moved = operands + result
    mixed = 4.0 * operands * result / (moved * moved) if moved else 0.0
    reached = rates.hbm_cube_efficiency * (1.0 + rates.hbm_mixed_cost) / (1.0 + rates.hbm_mixed_cost * mixed)
    if reached > MAX_HBM_SHARE:
        reached = MAX_HBM_SHARE
    best: tuple[float, float, float, float, float] | None = None
    term = "hbm"
    p, root, all_cores = rates.overlap_p, 1 / rates.overlap_p, device.aic_cores
    m, n, k, batch = gemm.m, gemm.n, gemm.k, gemm.batch
    split_depth = 0.0 if gemm.dtype in FLOATS else rates.split_depth
    a_along_k, b_along_k = gemm.a_along_k, gemm.b_along_k
    narrow, pace = rates.l1_narrow_exponent, fill * freq
    most_hbm, core_hbm = device.hbm_bytes_per_s * reached, rates.cube_core_hbm_bytes_per_cycle
    most_written = device.hbm_bytes_per_s * max(reached, WRITTEN)
    drained, wave_s = rates.fixpipe_bytes_per_cycle * freq, rates.wave_us
    for dealt_out, bm, bn, pieces in _plans(gemm, all_cores):
        depth = k if pieces == 1 else -(-k // pieces)
        down, across = -(-dealt_out // bm), -(-n // bn)
        tiles = batch * down * across * pieces
        waves = -(-tiles // all_cores)
        busy, length = skew * waves, float(depth * item)
        cores = float(tiles if tiles < all_cores else all_cores)
        if waves > 1 and gemm.dtype in FLOATS:
            cores = tiles / waves  # The last wave of few draws on memory with few cores.
        # Tiles at the edges are smaller: the mean of all counts, in whole fractals.
        rows, cols = -(-m // (16 * down)) * 16.0, -(-n // (16 * across)) * 16.0
        mac = busy * rows * cols * (-(-depth // 16) * 16) / macs
        drain, starts = (2.0 if pieces > 1 else 1.0) * rows * cols * 4.0 / drained, waves * wave_s * 1e-6
        if best is not None and mac + (drain + starts) > best[0]:
            continue
        a_run = once if a_along_k else (bm if bm < m else m) * item
        b_run = once if b_along_k else (bn if bn < n else n) * item
        a_size, b_size = (rows if rows <= m else m) * length, (cols if cols <= n else n) * length
        size = a_size if a_run >= 512 else _fill_bytes(a_run, gemm.a_fractal, a_size, narrow)
        size += b_size if b_run >= 512 else _fill_bytes(b_run, gemm.b_fractal, b_size, narrow)
        load = busy * size * factor / pace
        reach = cores * core_hbm * freq
        far = read_bytes / (reach if reach < most_hbm else most_hbm)
        far += written_bytes / (reach if reach < most_written else most_written)
        computed, loaded, drawn = mac**p, load**p, far**p
        overlapped = (computed + loaded + drawn) ** root
        if split_depth and (waiting := 2.0 * mac + load - overlapped) > 0.0:
            overlapped += 1.0 / (1.0 + (split_depth / (depth or 1)) ** SPLIT_SHARPNESS) * waiting
        total = overlapped + drain + starts
        if best is None or total < best[0]:
            best, term = (total, overlapped, computed, loaded, drawn), CORE_LOAD if reach < most_hbm else "hbm"
    assert best is not None
    return _shares(*best, family, device, term)


def _shares(
    total: float,
    overlapped: float,
    computed: float,
    loaded: float,
    drawn: float,
    family: FamilyCost,
    device: DeviceProfile,
    term: str = "hbm",
) -> dict[str, float]:
    """Split a product's time (`total`, in seconds) into terms in microseconds.

    The `overlapped` seconds are divided in proportion to `computed`, `loaded` and `drawn`. These are the times of cube,
    L2 and HBM raised to the power `rates.overlap_p`. The share of `drawn` is returned under the name `term`.
    """
    norm = computed + loaded + drawn
    share = overlapped * 1e6 / norm if norm > 0 else 0.0
    return {
        "launch": device.rates.cube_launch_us + family.fixed_us,
        "cube": computed * share,
        "l2": loaded * share,
        term: drawn * share,
        "fixpipe": (total - overlapped) * 1e6,
    }


def matmul_terms(
    call: KernelCall,
    family: FamilyCost,
    device: DeviceProfile,
    resident: float | None = None,
    gemm: Gemm | None = None,
) -> dict[str, float]:
    """Return the cost terms of a (batched, quantised, grouped) matrix product.

    Pass `gemm_of(call)` as `gemm` if it is already computed.
    """
    gemm = gemm or gemm_of(call)
    if gemm is None:
        return _by_bytes(call, family, device, resident)
    return gemm_terms(gemm, family, device, resident, skew=_skew(call, gemm, device) if call.attrs else 1.0)


def _skew(call: KernelCall, gemm: Gemm, device: DeviceProfile) -> float:
    """Return the slowdown of a grouped product in which one expert gets more rows than the mean; 1 for other products.

    A core keeps a column of weight tiles and processes all rows of the expert with it. This is one job. An expert
    therefore has as many jobs as its weights have columns of tiles. A job takes longer the more rows the expert has.
    Jobs on m cores end after work/m + (1 - 1/m) * (longest job) (R. L. Graham, Bounds on multiprocessing timing
    anomalies, 1969).
    """
    busiest, rows = call.attrs.get("busiest"), call.attrs.get("rows")
    if not isinstance(busiest, int) or not isinstance(rows, int) or rows <= 0:
        return 1.0
    cores = device.aic_cores
    jobs = ceil(gemm.n / JOB_COLUMNS)
    longer = max(0.0, busiest - rows / max(1, gemm.batch))
    return 1.0 + (1 - 1 / cores) * longer * cores / (rows * jobs)


def _by_bytes(call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None) -> dict[str, float]:
    moved = total_bytes(call.inputs) + total_bytes(call.outputs)
    if resident is None:
        resident = resident_share(moved, device)
    far = moved * (1 - resident) / (device.hbm_bytes_per_s * device.rates.hbm_cube_efficiency)
    near = moved * resident / (device.aic_cores * device.rates.l1_fill_bytes_per_cycle * device.freq_hz)
    launch = device.rates.cube_launch_us + family.fixed_us
    return {"launch": launch, "cube": 0.0, "l2": near * 1e6, "hbm": far * 1e6, "fixpipe": 0.0}


def conv_terms(
    call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None = None
) -> dict[str, float]:
    """Return the cost terms of a convolution (forward, backward to input, or backward to weights).

    It is costed as a matrix product and the unfolding for it. Feature maps are NC1HWC0 tensors, (N, C1, H, W, C0); the
    weight is a FRACTAL_Z tensor, (C1*Kh*Kw, N1, 16, C0).

    A forward convolution with at least as many images as cores gives each core whole images; the busiest core gets
    ceil(N / cores). All other work is split into tasks of 128 output pixels. On a 910B2, for example, 32 images run on
    16 cores forward and on 22 to 24 cores backward. If there are fewer tasks than cores, groups of 256 output channels
    are distributed, too. With these, 2 x 256 pixels of 2048 to 2048 channels take 23 us on a 950PR; on four cores, they
    would take 97 us.
    """
    sizes = _conv_sizes(call)
    if sizes is None:
        return _by_bytes(call, family, device, resident)
    images, pixels, unfolded, channels, dtype = sizes
    rates, freq = device.rates, device.freq_hz
    item = itemsize(dtype)
    whole = images >= device.aic_cores and "Backprop" not in call.type
    tasks = max(1, images if whole else images * ceil(pixels / 128))
    if tasks < device.aic_cores:
        tasks *= ceil(channels / 256)
    share = ceil(tasks / device.aic_cores) / tasks
    macs = mac_rate(dtype, device, family.hf32) * rates.mac_efficiency * freq
    work = images * pixels * unfolded * channels * share
    mac = work / macs
    # Each 16-channel step of the output reuses the unfolded pixels that lie in L0A for up to 256 channels.
    unfold = images * pixels * unfolded * item * share * ceil(channels / 256) * family.row_cycles / freq
    moved = total_bytes(call.inputs) + total_bytes(call.outputs)
    if resident is None:
        resident = resident_share(moved, device)
    far = moved * (1 - resident) / (device.hbm_bytes_per_s * rates.hbm_cube_efficiency)
    near = moved * resident * share / (rates.l1_fill_bytes_per_cycle * freq)
    p = rates.overlap_p
    load = unfold + near
    computed, loaded, drawn = mac**p, load**p, far**p
    total = (computed + loaded + drawn) ** (1 / p) * family.cycles
    if device.plain_convolution is not None and "Backprop" not in call.type:
        total *= device.plain_convolution
    return _shares(total, total, computed, loaded, drawn, family, device)


def _conv_sizes(call: KernelCall) -> tuple[int, int, int, int, str] | None:
    specs = [s for s in call.inputs + call.outputs if s is not None]
    maps = [s for s in specs if len(s.shape) == 5]
    weights = [s for s in specs if s.format == "FRACTAL_Z" and len(s.shape) == 4]
    if len(maps) < 2 or not weights:
        return None
    weight = weights[0].shape
    unfolded, channels = weight[0] * weight[3], weight[1] * weight[2]
    # The map of the output side has N1*16 channels; of the two it is the one whose C1*C0 fits the weight's N1*16.
    fitting = [s for s in maps if s.shape[1] * s.shape[4] == channels]
    outer = (
        min(fitting, key=lambda s: prod(s.shape))
        if len(fitting) == len(maps)
        else (fitting[0] if fitting else maps[-1])
    )
    n, _, height, width, _ = outer.shape
    return n, height * width, unfolded, channels, outer.dtype
