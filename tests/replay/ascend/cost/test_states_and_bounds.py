"""What the caches hold changes a prediction, slow paths are shown as such, and absurd times cannot come out."""

from __future__ import annotations

from math import prod

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.replay.ascend import KernelCall, TensorSpec, list_devices, load_device
from opreplay.replay.ascend.cost.attention import scores_of
from opreplay.replay.ascend.cost.predict import BARE_START_US, family_of, predict_kernel
from opreplay.replay.ir.kernel import State

DEVICE = load_device("910b4")
STATES: tuple[State, ...] = ("cold", "warm", "network")


def spec(shape: tuple[int, ...], dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype)


def call(
    kind: str, shape: tuple[int, ...], out: tuple[int, ...] | None = None, dtype: str = "float32", **attrs: int
) -> KernelCall:
    return KernelCall(type=kind, inputs=(spec(shape, dtype),), outputs=(spec(out or shape, dtype),), attrs=dict(attrs))


@pytest.mark.parametrize("kind", ["Relu", "Add", "ReduceSum", "RmsNorm"])
def test_a_loop_is_quicker_than_a_network_and_a_cold_start_slower_than_a_loop(kind: str) -> None:
    for n in (1 << 12, 1 << 18, 1 << 22):
        made = {
            state: predict_kernel(call(kind, (n // 1024, 1024), dtype="float16"), DEVICE, None, state)
            for state in STATES
        }
        assert made["warm"].time_us < made["cold"].time_us
        assert made["warm"].time_us < 1.05 * made["network"].time_us
        assert [one.l2 for one in made.values()] == [{"network": "sequence"}.get(state, state) for state in STATES]


def test_a_broadcast_along_the_last_dimension_costs_its_output_and_not_its_elements_one_by_one() -> None:
    # 5 us on a 910B4; the first model said 721.
    one = predict_kernel(call("BroadcastTo", (16, 256, 1), (16, 256, 384), "float16"), DEVICE, None, "warm")
    assert one.time_us < 10


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(
        [
            "Add",
            "Relu",
            "BroadcastTo",
            "Slice",
            "Transpose",
            "ConcatD",
            "ReduceSum",
            "Cast",
            "Cumsum",
            "Cumprod",
            "ArgMinV2",
            "ReverseV2",
            "SoftmaxV2",
            "LayerNormV3",
            "Tril",
        ]
    ),
    shape=st.lists(st.integers(1, 2048), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float16", "int8"]),
    state=st.sampled_from(STATES),
    soc=st.sampled_from(list_devices()),
)
def test_no_time_is_beyond_one_core_or_below_the_chip(
    kind: str, shape: list[int], dtype: str, state: State, soc: str
) -> None:
    device = load_device(soc)
    sizes = tuple(shape)
    made = predict_kernel(call(kind, sizes, dtype=dtype), device, None, state)
    n = prod(sizes)
    size = 4 if dtype == "float32" else 2 if dtype == "float16" else 1
    assert made.time_us >= BARE_START_US
    assert made.time_us >= (n * size - 2 * device.l2_bytes) / device.hbm_bytes_per_s * 1e6
    # A scalar loop of one core, with an access to memory for each run, is the worst there is.
    assert made.time_us < 60 + n * 260 / device.freq_hz * 1e6
    assert made.low_us <= made.time_us <= made.high_us


def test_slow_paths_are_named() -> None:
    middle = predict_kernel(call("ArgMinV2", (16, 256, 256), (16, 256), cols=256, inner=256), DEVICE, 0.0, "cold")
    inner = predict_kernel(call("ArgMinV2", (16, 256, 256), (16, 256), cols=256), DEVICE, 0.0, "cold")
    assert middle.bound == "slow path"
    assert middle.slow_path == "minimum's index over a middle dimension"
    assert middle.time_us > 10 * inner.time_us
    assert not inner.slow_path
    product = predict_kernel(call("Cumprod", (512, 4096)), load_device("910b2"))
    assert product.bound == "slow path"
    assert product.time_us > 20_000


def test_an_unaligned_float32_product_is_slower() -> None:
    def mm(m: int, k: int, n: int) -> KernelCall:
        return KernelCall(type="MatMulV3", inputs=(spec((m, k)), spec((k, n))), outputs=(spec((m, n)),))

    aligned, odd = (predict_kernel(mm(*sizes), DEVICE, 0.0) for sizes in ((8192, 2944, 5888), (8205, 2949, 5921)))
    assert odd.time_us > 1.5 * aligned.time_us
    assert odd.bound == "slow path"


def test_a_complex_product_is_four_real_ones() -> None:
    """complex64 took less time than float32."""

    def mm(dtype: str) -> float:
        square = spec((2048, 2048), dtype)
        return predict_kernel(KernelCall(type="MatMulV3", inputs=(square, square), outputs=(square,)), DEVICE).time_us

    least_us = 4 * 2048**3 / (DEVICE.macs_per_cycle["float32"] * DEVICE.aic_cores * DEVICE.freq_hz) * 1e6
    assert mm("complex64") > max(least_us, 2 * mm("float32"))
    assert mm("complex128") > least_us


def test_what_nobody_measured_is_extrapolated_and_has_a_wider_band() -> None:
    known = predict_kernel(call("Relu", (16, 16384)), DEVICE)
    beyond = predict_kernel(call("Relu", (1 << 20, 1 << 14)), DEVICE)
    odd = predict_kernel(call("Relu", (16, 16384), dtype="complex64"), DEVICE)
    never = predict_kernel(call("NobodyKnows", (16, 16384)), DEVICE)
    assert not known.extrapolated
    for one in (beyond, odd, never):
        assert one.extrapolated
        assert one.high_us / one.time_us > 1.4 * known.high_us / known.time_us


LAYOUTS = {
    "SBH": ((4096, 2, 512), (4096, 2, 512)),
    "BSH": ((2, 4096, 512), (2, 4096, 512)),
    "BNSD": ((2, 4, 4096, 128), (2, 4, 4096, 128)),
    "BSND": ((2, 4096, 4, 128), (2, 4096, 4, 128)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("mask", "causal"), [((2048, 2048), True), ((4096, 4096), True), (None, False)])
def test_attention_is_the_same_in_every_layout(layout: str, mask: tuple[int, int] | None, causal: bool) -> None:
    query, key = LAYOUTS[layout]
    masks = (spec(mask, "bool"),) if mask else ()
    one = KernelCall(
        type="FlashAttentionScore",
        inputs=(spec(query, "bfloat16"), spec(key, "bfloat16"), spec(key, "bfloat16"), *masks),
        outputs=(spec((2, 4, 4096, 8)), spec((2, 4, 4096, 8)), spec(query, "bfloat16")),
    )
    scores = scores_of(one)
    assert scores is not None
    assert scores.head_dim == 128
    assert scores.rows == 2 * 4 * 4096
    assert scores.pairs == 2 * 4 * 4096 * 4096 * (0.5 if causal else 1.0)


def test_packed_attention_reads_heads_from_its_statistics() -> None:
    query = spec((8192, 4, 128), "bfloat16")
    one = KernelCall(type="FlashAttentionScore", inputs=(query, query, query), outputs=(spec((8192, 4, 8)), query))
    scores = scores_of(one)
    assert scores is not None
    assert (scores.rows, scores.head_dim) == (8192 * 4, 128)
    assert scores.pairs == 8192 * 4 * 4096


def test_a_scan_goes_step_by_step_whatever_lies_beside() -> None:
    def scan(rows: int, steps: int) -> float:
        return predict_kernel(call("Cumsum", (rows, steps), cols=steps), DEVICE).time_us

    assert scan(128, 8000) / scan(128, 4000) == pytest.approx(2, rel=0.05)
    assert scan(1280, 4000) < 5 * scan(128, 4000)


def test_float16_is_added_as_it_is_and_bfloat16_widened() -> None:
    times = {
        dtype: predict_kernel(call("Add", (64, 256, 384), dtype=dtype), DEVICE, None, "warm").terms_us["vector"]
        for dtype in ("float16", "bfloat16")
    }
    assert times["float16"] < 0.5 * times["bfloat16"]


def test_an_operand_repeated_along_rows_costs_vector_cycles() -> None:
    whole, column = spec((2048, 1024)), spec((2048, 1))
    same, repeated = (
        predict_kernel(KernelCall(type="RealDiv", inputs=(whole, other), outputs=(whole,)), DEVICE).terms_us["vector"]
        for other in (whole, column)
    )
    assert repeated > 1.2 * same


@pytest.mark.parametrize("shape", [(16, 24), (256, 384)])
def test_what_a_kernel_does_beyond_starting_costs_little_less_in_a_loop(shape: tuple[int, int]) -> None:
    family, share = DEVICE.family("Transpose"), DEVICE.rates.loop_vector_share
    assert family.fixed_us > 1
    looped, alone = (
        predict_kernel(call("Transpose", shape, shape[::-1], "float16"), DEVICE, None, state).terms_us["launch"]
        for state in STATES[:0:-1]
    )
    assert alone > DEVICE.rates.launch_one_us + family.fixed_us * share**0.25 * family.scale * 0.99
    assert looped > alone


def test_bands_are_wider_where_a_kernel_type_was_measured_on_other_socs_alone() -> None:
    def factor(device: str) -> float:
        one = predict_kernel(call("Relu", (300, 700)), load_device(device))
        assert not one.extrapolated
        return one.high_us / one.time_us

    assert factor("910b4") < factor("910b3")


def test_code_that_ran_shortly_before_shortens_a_launch_on_many_cores_and_hardly_one_on_one() -> None:
    for shape, least in (((4096, 128), 1.0), ((8, 8), 0.0)):
        cold, kept, sometimes = (
            predict_kernel(call("Relu", shape), DEVICE, 1.0, "network", loaded) for loaded in (0.0, 1.0, 0.5)
        )
        saved = cold.terms_us["launch"] - kept.terms_us["launch"]
        assert least <= saved < 0.8 * cold.terms_us["launch"]
        assert sometimes.time_us == pytest.approx((cold.time_us + kept.time_us) / 2, rel=0.02)
        assert kept.terms_us.get("vector") == cold.terms_us.get("vector")
    product = KernelCall(type="MatMulV3", inputs=(spec((64, 64)),) * 2, outputs=(spec((64, 64)),))
    assert predict_kernel(product, DEVICE, 1.0, "network", 1.0) == predict_kernel(product, DEVICE, 1.0)


def test_a_sum_over_outer_dimensions_is_told_by_shapes_and_costs_more() -> None:
    outer, inner = call("ReduceSum", (32, 256, 169), (256,)), call("ReduceSum", (256, 169, 32), (256,))
    told = call("ReduceSum", (16, 256, 256), (16, 256), across=True)
    everything = call("ReduceMean", (128, 4096), (1,))
    assert [family_of(one, DEVICE).name for one in (outer, told, everything)] == ["ReduceAcross"] * 3
    for one in (inner, call("ReduceSum", (16, 256, 256), (16, 256)), call("ReduceSum", (160,), (1,))):
        assert family_of(one, DEVICE).name == "ReduceSum"
    assert family_of(call("ReduceSum", (4, 1, 8), (4, 1)), DEVICE).name == "ReduceSum", "sizes of 1 are no dimensions"
    assert predict_kernel(outer, DEVICE).time_us > 1.2 * predict_kernel(inner, DEVICE).time_us


def test_one_long_row_is_sorted_by_ever_fewer_cores() -> None:
    one, many = call("Sort", (1 << 20,)), call("Sort", (1024, 1024))
    assert predict_kernel(one, DEVICE).time_us > 5 * predict_kernel(many, DEVICE).time_us
    largest = KernelCall(type="TopKV2", inputs=(spec((1 << 20,)),), outputs=(spec((8,)), spec((8,), "int32")))
    assert predict_kernel(largest, DEVICE).time_us < 0.2 * predict_kernel(one, DEVICE).time_us
    whole = KernelCall(type="TopKV2", inputs=(spec((1 << 20,)),), outputs=(spec((1 << 20,)),) * 2)
    assert predict_kernel(whole, DEVICE).time_us > 0.9 * predict_kernel(one, DEVICE).time_us


def test_a_softmax_reads_rows_again_that_a_core_cannot_hold() -> None:
    def moved_us(kind: str, columns: int) -> float:
        terms = predict_kernel(call(kind, (5, columns)), DEVICE, 0.0).terms_us
        return terms["core load"] / columns

    assert moved_us("SoftmaxV2", 60_000) > 1.5 * moved_us("SoftmaxV2", 40_000)
    assert moved_us("LayerNormV3", 60_000) < 1.2 * moved_us("LayerNormV3", 40_000)


def test_a_slow_path_far_from_where_it_was_measured_is_extrapolated() -> None:
    assert not predict_kernel(call("Cumsum", (128, 4000)), DEVICE).extrapolated
    far = predict_kernel(call("Cumsum", (1 << 20,)), DEVICE)
    assert far.extrapolated
    assert far.bound == "slow path"
    product = predict_kernel(call("Cumprod", (1 << 20,)), DEVICE)
    assert far.time_us < 1.1 * product.time_us, "no slower than a scalar loop"


def test_scatters_in_networks_rest_on_single_calls() -> None:
    kinds = ("InplaceIndexAdd", "ScatterElements", "ScatterUpdate")
    scatters = [predict_kernel(call(kind, (4096, 1024)), DEVICE) for kind in kinds]
    assert [one.evidence for one in scatters] == ["its form", "another SoC", "its form"]
    assert all(one.extrapolated and one.work == "irregular" for one in scatters)
    assert predict_kernel(call("IndexPutV2", (4096, 1024)), DEVICE).evidence == "this SoC"


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["Add", "Relu", "SoftmaxV2", "ReduceSum", "MatMulV3", "MatMul"]),
    rows=st.sampled_from([1, 4, 64, 4096]),
    columns=st.sampled_from([64, 4096, 1 << 16]),
    soc=st.sampled_from(list_devices()),
)
def test_more_hbm_bandwidth_helps_only_a_kernel_whose_bound_is_hbm(
    kind: str, rows: int, columns: int, soc: str
) -> None:
    slow = load_device(soc)
    fast = msgspec.structs.replace(slow, hbm_bytes_per_s=2 * slow.hbm_bytes_per_s)
    one = call(kind, (rows, columns), dtype="float16")
    if kind.startswith("MatMul"):
        inputs = (spec((rows, 4096), "float16"), spec((4096, columns), "float16"))
        one = KernelCall(type=kind, inputs=inputs, outputs=(spec((rows, columns), "float16"),))
    before, after = (predict_kernel(one, device, 0.0) for device in (slow, fast))
    if before.bound == "hbm":
        assert after.time_us < 0.95 * before.time_us
    if before.bound == "core load":
        assert after.time_us == pytest.approx(before.time_us, rel=0.05)
