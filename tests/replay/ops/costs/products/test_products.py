"""Matrix products of all sizes: never above the datasheet, never absurdly slow, growing with each size."""

from __future__ import annotations

from itertools import product

import pytest

from opreplay.replay.ascend import KernelCall, TensorSpec, list_devices, load_device
from opreplay.replay.ascend.cost.predict import predict_kernel

SIZES = tuple(1 << step for step in range(0, 15, 2))


def gemm(m: int, n: int, k: int) -> KernelCall:
    tensors = [TensorSpec(shape=shape, dtype="float16") for shape in ((m, k), (n, k), (m, n))]
    return KernelCall(
        type="MatMulV3",
        inputs=tuple(tensors[:2]),
        outputs=tuple(tensors[2:]),
        attrs={"transpose_a": False, "transpose_b": True},
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", list_devices())
def test_no_product_beats_the_datasheet_and_large_ones_come_near_it(name: str) -> None:
    device = load_device(name)
    macs_per_s = device.macs_per_cycle["float16"] * device.aic_cores * device.freq_hz
    for m, n, k in product(SIZES, repeat=3):
        time_us = predict_kernel(gemm(m, n, k), device).time_us
        share = m * n * k / macs_per_s * 1e6 / time_us
        assert share < 0.95, (m, n, k)
        moved = 2 * (m * k + n * k + m * n)
        if moved > 4 * device.l2_bytes:
            assert moved / device.hbm_bytes_per_s * 1e6 <= time_us * (1 + 1e-9), (m, n, k)
        if min(m, n, k) >= 4096:
            assert share > 0.6, (m, n, k)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["910b4", "910b3", "910c"])
def test_twice_a_size_is_never_cheaper_but_for_tiles(name: str, axis: int) -> None:
    device = load_device(name)
    for sizes in product(SIZES, repeat=3):
        if axis == 1 and sizes[1] == 1:
            continue  # One column takes a path of the library of its own, measured slower than two.
        twice = [size * (1 + (i == axis)) for i, size in enumerate(sizes)]
        before, after = (predict_kernel(gemm(*at), device).time_us for at in (sizes, twice))
        # From one tile to two a product goes to other cores; above that only waves and measured neighbours step.
        tiny = sizes[0] * sizes[1] < 64 * 64
        assert after > (0.8 if tiny else 0.9) * before, sizes


def test_overlap_is_lost_over_a_very_long_depth_only() -> None:
    # Counters on a 910B4: at K = 6144 computing hides loading, at K = 151936 they add up.
    device = load_device("910b4")
    pace = {k: predict_kernel(gemm(4096, 1024, k), device).time_us / k for k in (4096, 16384, 151936)}
    assert pace[16384] == pytest.approx(pace[4096], rel=0.1)
    assert 2.2 < pace[151936] / pace[16384] < 4
