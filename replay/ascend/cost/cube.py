"""Time of matrix products and convolutions on the cube cores: pipes overlap, tiles come in waves."""

from __future__ import annotations

from math import ceil, prod
from typing import NamedTuple

from opreplay.replay.ascend.cost.sizes import first, is_nz, itemsize, logical_matrix, total_bytes
from opreplay.replay.ascend.cost.vector import resident_share
from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost

TILES: tuple[tuple[int, int], ...] = (
    (16, 64), (16, 128), (16, 256), (16, 512), (32, 128), (32, 256), (32, 512), (64, 128), (64, 256), (64, 512),
    (128, 64), (128, 128), (128, 256), (256, 64), (256, 128), (512, 64), (16, 16), (16, 32), (80, 256), (96, 256),
)  # fmt: skip
"""Base tiles (rows, columns) whose float32 accumulator fits the 128 KiB of L0C: bm * bn <= 32768."""


class Gemm(NamedTuple):
    """A matrix product as the cube sees it."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    out_bytes_per_element: int
    a_along_k: bool
    """Rows of A are contiguous along K (not transposed); its narrow side is then never M."""
    b_along_k: bool
    a_fractal: bool
    b_fractal: bool
    shared_b: bool = False
    """One B for the whole batch."""


def gemm_of(call: KernelCall) -> Gemm | None:
    """Sizes of a matrix product from operand shapes; transposition from attrs, else from what makes the shapes fit.

    Inputs: A, B, and anything after them (bias, scales). None when the shapes make no product.
    """
    if len(call.inputs) < 2 or call.inputs[0] is None or call.inputs[1] is None:
        return None
    a, b = call.inputs[0], call.inputs[1]
    batch_a, a0, a1 = logical_matrix(a)
    batch_b, b0, b1 = logical_matrix(b)
    out = first(call.outputs)
    flags = call.attrs
    ta, tb = flags.get("transpose_a"), flags.get("transpose_b")
    want = logical_matrix(out)[1:] if out is not None and out.shape else None
    fits: tuple[int, int, int, bool, bool] | None = None
    for try_a, try_b in ((False, True), (False, False), (True, False), (True, True)):
        if (ta is not None and ta is not try_a) or (tb is not None and tb is not try_b):
            continue
        m, k = (a1, a0) if try_a else (a0, a1)
        n, k2 = (b0, b1) if try_b else (b1, b0)
        if k != k2:
            continue
        exact = want is None or want == (m, n)
        if exact:
            fits = (m, n, k, try_a, try_b)
            break
        fits = fits or (m, n, k, try_a, try_b)
    if fits is None:
        return None
    m, n, k, try_a, try_b = fits
    out_size = itemsize(out.dtype) if out is not None else (4 if a.dtype == "float32" else 2)
    return Gemm(
        max(batch_a, batch_b), m, n, k, a.dtype, out_size, not try_a, try_b, is_nz(a), is_nz(b), batch_b < batch_a
    )


def mac_rate(dtype: str, device: DeviceProfile, hf32: bool) -> float:
    """Multiply-accumulates per cycle of one cube core; unknown types run at the float32 rate, never for free."""
    rates = device.macs_per_cycle
    return rates["hf32"] if hf32 and dtype == "float32" else rates.get(dtype, rates["float32"])


def _fill_bytes(run_bytes: int, fractal: bool, size: float, exponent: float) -> float:
    """`size` bytes, made dearer when rows are shorter than the 512 bytes at which loading into L1 is fast."""
    if fractal or run_bytes >= 512:
        return size
    return size * (512 / max(32, run_bytes)) ** exponent


def gemm_terms(
    gemm: Gemm, family: FamilyCost, device: DeviceProfile, resident: float | None = None
) -> dict[str, float]:
    """Terms of a matrix product in microseconds, over the best base tile.

    Time = launch + (cube^p + l2^p + hbm^p)^(1/p) + fixpipe, with waves = ceil(tiles / cores); each term reported is
    its share of the overlapped sum, so that the terms add up to the time.
    """
    rates, freq = device.rates, device.freq_hz
    item = itemsize(gemm.dtype)
    once = gemm.k * item
    b_batch = 1 if gemm.shared_b else gemm.batch
    weight = b_batch * gemm.n * once
    moved = gemm.batch * gemm.m * once + weight + gemm.batch * gemm.m * gemm.n * gemm.out_bytes_per_element
    if resident is None:
        near = (moved - weight) * resident_share(moved, device) + weight * rates.weight_resident_share
        resident = near / moved if moved else 1.0
    far_bytes = moved * (1 - resident) * family.memory_factor
    # Bytes of one core and cycle: the two rates mix by time, as loads alternate between L2 and HBM.
    fill = 1 / (resident / rates.l1_fill_bytes_per_cycle + (1 - resident) / rates.l1_fill_hbm_bytes_per_cycle)
    k_padded = -(-gemm.k // 16) * 16
    macs = mac_rate(gemm.dtype, device, family.hf32) * rates.mac_efficiency * freq
    best: tuple[float, float, float, float, int] | None = None
    p = rates.overlap_p
    for bm, bn in TILES:
        if (bm > 16 and bm >= 2 * gemm.m) or (bn > 16 and bn >= 2 * gemm.n):
            continue
        tiles = gemm.batch * -(-gemm.m // bm) * -(-gemm.n // bn)
        waves = -(-tiles // device.aic_cores)
        rows, cols = min(bm, -(-gemm.m // 16) * 16), min(bn, -(-gemm.n // 16) * 16)
        mac = waves * rows * cols * k_padded / macs
        a_run = once if gemm.a_along_k else min(bm, gemm.m) * item
        b_run = once if gemm.b_along_k else min(bn, gemm.n) * item
        loaded = _fill_bytes(a_run, gemm.a_fractal, min(rows, gemm.m) * once, rates.l1_narrow_exponent)
        loaded += _fill_bytes(b_run, gemm.b_fractal, min(cols, gemm.n) * once, rates.l1_narrow_exponent)
        load = waves * loaded / (fill * freq)
        cores = min(device.aic_cores, tiles)
        hbm = min(device.hbm_bytes_per_s * rates.hbm_cube_efficiency, cores * rates.core_hbm_bytes_per_cycle * freq)
        far = far_bytes / hbm
        drain = rows * cols * 4 / (rates.fixpipe_bytes_per_cycle * freq)
        total = (mac**p + load**p + far**p) ** (1 / p) + drain + waves * rates.wave_us * 1e-6
        if best is None or total < best[0]:
            best = (total, mac, load, far, waves)
    assert best is not None
    return _split(best, family, device)


def _split(best: tuple[float, float, float, float, int], family: FamilyCost, device: DeviceProfile) -> dict[str, float]:
    total, mac, load, far, _ = best
    p = device.rates.overlap_p
    powers = mac**p, load**p, far**p
    norm = sum(powers)
    overlapped = norm ** (1 / p)
    share = overlapped * 1e6 / norm if norm > 0 else 0.0
    return {
        "launch": device.rates.cube_launch_us + family.fixed_us,
        "cube": powers[0] * share,
        "l2": powers[1] * share,
        "hbm": powers[2] * share,
        "fixpipe": (total - overlapped) * 1e6,
    }


def matmul_terms(
    call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None = None
) -> dict[str, float]:
    """Terms of a (batched, quantised, grouped) matrix product."""
    gemm = gemm_of(call)
    if gemm is None:
        return _by_bytes(call, family, device, resident)
    return gemm_terms(gemm, family, device, resident)


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
    """Terms of a convolution, forward, or backward to its input or weights: the product it is, and its unfolding.

    Shapes are those of NC1HWC0 and FRACTAL_Z tensors: the feature maps are (N, C1, H, W, C0), the weight is
    (C1*Kh*Kw, N1, 16, C0). With at least as many images as cores, they are dealt out whole: the busiest core
    has ceil(N / cores) of them. Otherwise 128 output pixels make a task.
    """
    sizes = _conv_sizes(call)
    if sizes is None:
        return _by_bytes(call, family, device, resident)
    images, pixels, unfolded, channels, dtype = sizes
    rates, freq = device.rates, device.freq_hz
    item = itemsize(dtype)
    tasks = images if images >= device.aic_cores else images * ceil(pixels / 128)
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
    total = (mac**p + (unfold + near) ** p + far**p) ** (1 / p)
    return _split((total * family.cycles, mac * family.cycles, (unfold + near) * family.cycles, far, 1), family, device)


def _conv_sizes(call: KernelCall) -> tuple[int, int, int, int, str] | None:
    maps = [s for s in call.inputs + call.outputs if s is not None and len(s.shape) == 5]
    weights = [s for s in call.inputs + call.outputs if s is not None and s.format == "FRACTAL_Z" and len(s.shape) == 4]
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
