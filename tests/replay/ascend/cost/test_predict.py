"""Cost terms: scale, direction and bounds that hold whatever the calibration."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.replay.ascend import KernelCall, TensorSpec, list_devices, load_device, predict_kernel
from opreplay.replay.ascend.cost.cube import ACCUMULATORS, Gemm, _tilings, gemm_of
from opreplay.replay.ascend.cost.predict import predict_time_us
from opreplay.replay.ascend.devices.file import load_model, type_table


def tensor(*shape: int, dtype: str = "bfloat16", layout: str = "ND") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, format=layout)


def call(kind: str, *inputs: TensorSpec, out: TensorSpec | None = None, **attrs: int) -> KernelCall:
    return KernelCall(type=kind, inputs=inputs, outputs=(out if out is not None else inputs[0],), attrs=dict(attrs))


def gemm(m: int, n: int, k: int, dtype: str = "bfloat16") -> KernelCall:
    return call("MatMulV3", tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), out=tensor(m, n, dtype=dtype))


DEVICE = load_device("910b3")


@pytest.mark.parametrize(
    "kind", ["Add", "Cast", "Relu", "TensorMove", "SoftmaxV2", "RmsNorm", "ReduceSum", "ZerosLike", "Unknown"]
)
def test_twice_the_bytes_are_never_cheaper(kind: str) -> None:
    times = [predict_time_us(call(kind, tensor(rows, 1024)), DEVICE) for rows in (1, 16, 256, 4096, 8192, 65536)]
    assert times == sorted(times)
    assert times[-1] > 4 * times[2]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_larger_product_is_never_much_cheaper(axis: int) -> None:
    sizes = [[1024, 1024, 1024] for _ in range(6)]
    for step, size in enumerate(sizes):
        size[axis] = 256 << step
    times = [predict_time_us(gemm(*size), DEVICE) for size in sizes]
    # Waves make steps; a bigger product may fill its last wave better, but never by this much.
    assert all(later > 0.98 * earlier for earlier, later in pairwise(times))
    assert times[-1] > 4 * times[0]


def test_products_by_dtype_rate() -> None:
    slow, fast = (predict_kernel(gemm(8192, 8192, 8192, d), DEVICE) for d in ("float32", "bfloat16"))
    assert slow.time_us > 3 * fast.time_us
    int8 = call(
        "QuantBatchMatmulV3", tensor(8192, 8192, dtype="int8"), tensor(8192, 8192, dtype="int8"), out=tensor(8192, 8192)
    )
    assert predict_time_us(int8, DEVICE) < 0.85 * fast.time_us
    odd = gemm(4096, 4096, 4096, "float8_e4m3fn")
    assert predict_time_us(odd, DEVICE) >= predict_time_us(gemm(4096, 4096, 4096), DEVICE), (
        "unknown dtypes are not free"
    )


def test_b1_is_never_slower_than_b4_on_big_work() -> None:
    b1, b4 = load_device("910b1"), load_device("910b4")
    for big in (
        gemm(8192, 8192, 4096),
        call("Add", tensor(8192, 8192), tensor(8192, 8192)),
        call("Cast", tensor(1 << 28)),
    ):
        assert predict_time_us(big, b1) < predict_time_us(big, b4)


def test_big_product_is_near_peak_and_cube_or_l2_bound() -> None:
    peak_us = 8192.0**3 / (4096 * DEVICE.aic_cores * DEVICE.freq_hz) * 1e6
    one = predict_kernel(gemm(8192, 8192, 8192), DEVICE)
    assert peak_us < one.time_us < 2 * peak_us
    assert one.bound in ("cube", "l2")


def test_big_copy_is_bound_by_hbm_and_near_its_bandwidth() -> None:
    one = predict_kernel(call("TensorMove", tensor(1 << 29)), DEVICE)
    assert one.bound == "hbm"
    least_us = 2 * 2 * 2**29 / DEVICE.hbm_bytes_per_s * 1e6
    assert least_us < one.time_us < 2 * least_us


def test_small_kernel_is_bound_by_launch() -> None:
    assert predict_kernel(call("Add", tensor(64), tensor(64)), DEVICE).bound == "launch"


def test_terms_add_up_and_the_band_holds_the_time() -> None:
    for one in (gemm(300, 500, 700), call("SoftmaxV2", tensor(512, 1000)), call("Nobody", tensor(77))):
        prediction = predict_kernel(one, DEVICE)
        assert sum(prediction.terms_us.values()) == pytest.approx(prediction.time_us)
        assert prediction.low_us < prediction.time_us < prediction.high_us


def test_unregistered_kernel_is_uncalibrated_and_costs_its_bytes() -> None:
    one = predict_kernel(call("BrandNewKernel", tensor(1 << 28)), DEVICE)
    assert one.confidence == "uncalibrated"
    assert one.time_us > 500


def test_data_found_in_l2_is_faster() -> None:
    add = call("Add", tensor(4096, 1024), tensor(4096, 1024))
    cold, warm = (predict_time_us(add, DEVICE, resident) for resident in (0.0, 1.0))
    assert warm < cold


def test_a_lookup_does_not_pay_for_the_whole_table() -> None:
    """The original model charged `index` with the whole source tensor."""
    small, large = (
        call("GatherV2", tensor(rows, 1024), tensor(4096, dtype="int64"), out=tensor(4096, 1024))
        for rows in (5000, 500_000)
    )
    assert predict_time_us(small, DEVICE) == pytest.approx(predict_time_us(large, DEVICE))


@settings(max_examples=60, deadline=None)
@given(m=st.integers(1, 100_000), n=st.integers(1, 100_000), batch=st.integers(1, 64))
def test_base_tiles_fit_l0c_and_more_cores_have_all_that_fewer_have(m: int, n: int, batch: int) -> None:
    product = Gemm(batch, m, n, 512, "bfloat16", 2, True, True, False, False)
    tiles = _tilings(product, m, 24)
    assert {*_tilings(product, m, 20)} <= {*tiles}
    for rows, cols, _ in tiles:
        assert rows * cols <= ACCUMULATORS
        assert rows % 16 == 0
        assert cols % 16 == 0
    assert any(batch * -(-m // r) * -(-n // c) >= 24 or max(r, c) <= 16 for r, c, _ in tiles)
    assert DEVICE.l0c_bytes >= ACCUMULATORS * 4


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("m", "n"), [(4, 2), (16, 64), (100, 100), (256, 256)])
def test_a_very_long_depth_is_dealt_out_to_cores_that_few_tiles_would_leave_idle(m: int, n: int, dtype: str) -> None:
    short, long = (predict_time_us(gemm(m, n, k, dtype), DEVICE) for k in (4096, 16 * 4096))
    # Splitting starts a little late, so that a depth that is just split may take less time than one that is not.
    if dtype == "float32":
        # Measured on a 910B4: 256 x 131072 x 256 at 12 TFLOP/s: few cores keep a tile for all of K.
        assert 8 * short * 0.5 < long
        return
    assert 0.8 * short < long < 6 * short


@pytest.mark.parametrize("size", [100, 200, 300])
@pytest.mark.parametrize("depth", [512, 4096, 32768])
def test_more_cores_are_not_slower_where_halved_tiles_would_take_another_wave(size: int, depth: int) -> None:
    more, fewer = (predict_time_us(gemm(size, size, depth), load_device(name)) for name in ("910b1", "910b3"))
    assert more <= fewer * 1.01


@pytest.mark.parametrize("kind", ["SoftmaxV2", "LayerNormV3", "RmsNorm"])
def test_rows_shorter_than_a_vector_instruction_share_one(kind: str) -> None:
    eight, sixty_four, longer = (
        predict_time_us(call(kind, tensor(131072, n), out=tensor(131072, n)), DEVICE) for n in (8, 64, 512)
    )
    assert eight < 0.5 * sixty_four
    assert sixty_four < longer


def test_a_transposition_of_short_runs_takes_no_longer_than_that_of_elements() -> None:
    times = [
        predict_time_us(call("Transpose", tensor(2**16, 64), out=tensor(64, 2**16), run=run), DEVICE)
        for run in (1, 2, 8, 31, 32, 64, 512)
    ]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("inputs", "out", "expected"),
    [
        ((tensor(4096, 1024), tensor(6144, 1024)), tensor(4096, 6144), (4096, 6144, 1024, True, True)),
        ((tensor(4096, 6144), tensor(4096, 1024)), tensor(6144, 1024), (6144, 1024, 4096, False, False)),
        ((tensor(1024, 512), tensor(32, 256, 16, 16, layout="FRACTAL_NZ")), None, (1024, 4096, 512, True, True)),
        ((tensor(16, 5120), tensor(320, 48, 16, 16, layout="FRACTAL_NZ")), None, (16, 768, 5120, True, True)),
    ],
)
def test_sizes_of_a_product_from_its_shapes(
    inputs: tuple[TensorSpec, TensorSpec], out: TensorSpec | None, expected: tuple[int, int, int, bool, bool]
) -> None:
    found = gemm_of(KernelCall(type="MatMulV3", inputs=inputs, outputs=(out,) if out else ()))
    assert found is not None
    assert (found.m, found.n, found.k, found.a_along_k, found.b_along_k) == expected


def test_int8_weight_in_fractal_layout() -> None:
    weight = tensor(128, 448, 16, 32, dtype="int8", layout="FRACTAL_NZ")
    found = gemm_of(KernelCall(type="QuantBatchMatmulV3", inputs=(tensor(1, 7168, dtype="int8"), weight), outputs=()))
    assert found is not None
    assert (found.m, found.n, found.k) == (1, 4096, 7168)


TYPES = [*type_table(load_model()), "Unheard_Of"]
specs = st.builds(
    TensorSpec,
    shape=st.lists(st.integers(0, 5000), max_size=5).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16", "float16", "int8", "int64", "bool", "complex64", "odd"]),
    format=st.sampled_from(["ND", "NCHW", "FRACTAL_NZ", "NC1HWC0", "FRACTAL_Z"]),
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    kind=st.sampled_from(TYPES),
    inputs=st.lists(st.none() | specs, max_size=5),
    outputs=st.lists(st.none() | specs, max_size=3),
    device=st.sampled_from(list_devices()),
    resident=st.none() | st.floats(0, 1),
)
def test_any_call_has_a_finite_cost(
    kind: str, inputs: list[TensorSpec | None], outputs: list[TensorSpec | None], device: str, resident: float | None
) -> None:
    one = predict_kernel(
        KernelCall(type=kind, inputs=tuple(inputs), outputs=tuple(outputs)), load_device(device), resident
    )
    assert 0 <= one.low_us <= one.time_us <= one.high_us < float("inf")
