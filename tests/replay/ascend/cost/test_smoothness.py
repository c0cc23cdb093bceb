"""Sizes that nobody measured: twice the work takes no less time, nor many times as long, and halves no longer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.replay.ascend import KernelCall, TensorSpec, list_devices, load_device
from opreplay.replay.ascend.cost.predict import BARE_START_US, predict_kernel
from opreplay.replay.ir.kernel import State

LEAST, MOST = 0.8, 3.0
"""Of the time at twice the size over that at the size."""
LEAST_PRODUCT, MOST_PRODUCT = 0.5, 4.0
"""The same of products, whose tiles are halved to keep cores busy: of few rows in their columns, of more in either."""
SLOWEST_HALF = 2.0
"""Of the time of float16 over that of float32: fewer bytes occupy fewer cores, so that short runs take longer."""


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype)


def made(kind: str, rows: int, columns: int, dtype: str) -> KernelCall:
    """A call on a matrix; reductions are over its rows ("kind") or columns ("kind 0")."""
    whole, turned = spec(rows, columns, dtype=dtype), spec(columns, rows, dtype=dtype)
    name, _, over = kind.partition(" ")
    outputs, attrs = (whole,), dict[str, int | bool]()
    inputs = (whole, whole) if name in ("Add", "RealDiv") else (whole,)
    if name.startswith("Reduce"):
        outputs = (spec(columns if over else rows, dtype=dtype),)
        attrs = {"across": bool(over) and rows > 1}
    elif name.startswith("Arg"):
        outputs, attrs = (spec(rows, dtype=dtype),), {"cols": columns}
    elif name == "Cumsum":
        attrs = {"cols": rows, "inner": columns} if over else {"cols": columns}
    elif name == "Transpose":
        outputs = (turned,)
    elif name == "BroadcastTo":
        inputs = (spec(rows, 1, dtype=dtype),)
    elif name == "ConcatD":
        inputs, outputs = (whole, whole), (spec(rows, 2 * columns, dtype=dtype),)
    elif name == "MatMulV3":
        depth = min(columns, 4096)  # Deeper ones keep larger tiles, whose halving shows more.
        inputs = spec(rows, depth, dtype=dtype), spec(depth, 512, dtype=dtype)
        outputs = (spec(rows, 512, dtype=dtype),)
    return KernelCall(type=name, inputs=inputs, outputs=outputs, attrs=dict(attrs))


KINDS = [
    "Add", "RealDiv", "Relu", "Gelu", "Cast", "ReduceSum", "ReduceSum 0", "ReduceMax", "SoftmaxV2", "LayerNormV3",
    "RmsNorm", "ArgMaxV2", "Cumsum", "Cumsum 0", "Transpose", "BroadcastTo", "ConcatD", "Sort", "MatMulV3",
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(0, 14).map(lambda n: 1 << n) | st.integers(1, 3000),
    columns=st.integers(0, 17).map(lambda n: 1 << n) | st.integers(1, 100_000),
    soc=st.sampled_from(list_devices()),
)
def test_twice_the_rows_take_no_less_and_not_many_times_as_long(kind: str, rows: int, columns: int, soc: str) -> None:
    device = load_device(soc)
    times = {
        dtype: [predict_kernel(made(kind, n, columns, dtype), device, None, "cold").time_us for n in (rows, 2 * rows)]
        for dtype in ("float32", "float16")
    }
    for one, two in times.values():
        assert one >= BARE_START_US
        if kind == "MatMulV3":
            assert LEAST_PRODUCT < two / one < MOST_PRODUCT
        else:
            # Where one row becomes two, a dimension appears that was none.
            assert LEAST < two / one < (MOST if rows > 1 else 10 * MOST)
    assert times["float16"][0] < SLOWEST_HALF * times["float32"][0]


def test_a_dimension_of_one_element_is_no_slow_path_and_its_transposition_moves_nothing() -> None:
    device = load_device("910b4")
    scan = KernelCall(
        type="Cumsum", inputs=(spec(1, 1 << 20),), outputs=(spec(1, 1 << 20),), attrs={"cols": 1, "inner": 1 << 20}
    )
    assert not (one := predict_kernel(scan, device, None, "cold")).slow_path
    assert one.time_us < 100
    turned, copied = (
        predict_kernel(KernelCall(type="Transpose", inputs=(spec(*a),), outputs=(spec(*b),)), device, None, "cold")
        for a, b in (((1, 1 << 20), (1 << 20, 1)), ((1, 1 << 20), (1, 1 << 20)))
    )
    assert turned.time_us == pytest.approx(copied.time_us)


def test_one_row_is_reduced_as_quickly_as_two_and_long_ones_by_all_cores() -> None:
    device = load_device("910b4")

    def took(rows: int, columns: int) -> float:
        return predict_kernel(made("ReduceSum", rows, columns, "float32"), device, None, "cold").time_us

    assert took(1, 16384) < 1.01 * took(2, 16384)
    assert took(1, 1 << 24) < 1.2 * took(64, 1 << 18)
    assert took(1, 1 << 24) < 200


def test_what_lies_inside_a_middle_dimension_is_dealt_out_where_there_is_much_of_it() -> None:
    device = load_device("910b4")

    def took(inner: int) -> float:
        sizes = spec(1, 256, inner)
        least = KernelCall(
            type="ArgMinV2", inputs=(sizes,), outputs=(spec(1, inner),), attrs={"cols": 256, "inner": inner}
        )
        return predict_kernel(least, device, None, "cold").time_us

    assert took(4096 * 40) == pytest.approx(took(4096), rel=0.1)


@pytest.mark.parametrize("images", [8, 16, 20, 32])
def test_more_small_images_take_no_less_to_bring_into_the_layout_of_the_cube(images: int) -> None:
    device = load_device("910b4")

    def took(n: int) -> float:
        call = KernelCall(
            type="TransData",
            inputs=(TensorSpec(shape=(n, 16, 1, 1), dtype="float32", format="NCHW"),),
            outputs=(TensorSpec(shape=(n, 1, 1, 1, 16), dtype="float32", format="NC1HWC0"),),
        )
        return predict_kernel(call, device, None, "cold").time_us

    assert 0.9 * took(images) < took(2 * images) < 3 * took(images)


LARGER = [("910b4-1", "910b4"), ("910b3", "910b4"), ("910b2", "910b3"), ("910b1", "910b2"), ("910b1", "910b4-1")]
SLOWER, SLOWER_SUM = 1.05, 1.1
"""Of the time of what is less or larger, over that of what is more or smaller; small sums are dealt out to cores by
their bytes, so that fewer have to do with as many results each."""


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(0, 14).map(lambda n: 1 << n) | st.integers(1, 3000),
    columns=st.integers(4, 14).map(lambda n: 1 << n) | st.integers(1, 20_000),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    devices=st.sampled_from(LARGER),
    state=st.sampled_from(["network", "cold", "warm"]),
)
def test_a_larger_device_is_no_slower(
    kind: str, rows: int, columns: int, dtype: str, devices: tuple[str, str], state: State
) -> None:
    call = made(kind, rows, columns, dtype)
    larger, smaller = (predict_kernel(call, load_device(name), None, state).time_us for name in devices)
    assert larger < SLOWER * smaller


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(1, 12).map(lambda n: 1 << n) | st.integers(2, 3000),
    columns=st.integers(4, 14).map(lambda n: 1 << n) | st.integers(1, 20_000),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    soc=st.sampled_from(list_devices()),
)
def test_one_more_row_is_no_cheaper(kind: str, rows: int, columns: int, dtype: str, soc: str) -> None:
    device = load_device(soc)
    less, more = (predict_kernel(made(kind, n, columns, dtype), device, None, "cold").time_us for n in (rows, rows + 1))
    assert less < (SLOWER_SUM if kind.startswith("Reduce") else SLOWER) * more
