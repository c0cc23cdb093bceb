"""Measured neighbours: what one kernel's measurement says of others, and where it says nothing."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.ascend import KernelCall, TensorSpec, load_device
from opreplay.replay.ascend.calibrate.calibrate import Group, with_nearby
from opreplay.replay.ascend.cost.nearby import (
    MAX_LOG_ERROR,
    MAX_NEIGHBOURS,
    Place,
    learn_neighbours,
    likeness,
    neighbour_factor,
    place_of,
    spot,
)
from opreplay.replay.ascend.cost.predict import predict_kernel, predict_time_us
from opreplay.replay.ascend.devices.file import compile_device, read_device_file
from opreplay.replay.ascend.devices.text import device_text
from opreplay.replay.ascend.measured.accuracy import Launch
from opreplay.replay.ascend.measured.kernel_tables import KernelRow
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.traces.errors import FormatError

SHIPPED = load_device("910b3")
DEVICE = msgspec.structs.replace(
    SHIPPED, families={k: msgspec.structs.replace(family, nearby={}) for k, family in SHIPPED.families.items()}
)
"""Without neighbours."""


def gemm(m: int, n: int = 4096, k: int = 1024, dtype: str = "bfloat16") -> KernelCall:
    shapes = ((m, k), (n, k), (m, n))
    tensors = tuple(TensorSpec(shape=shape, dtype=dtype) for shape in shapes)
    return KernelCall(type="MatMulV3", inputs=tensors[:2], outputs=tensors[2:])


def norm(rows: int, cols: int = 4096) -> KernelCall:
    spec = TensorSpec(shape=(rows, cols), dtype="bfloat16")
    return KernelCall(type="RmsNorm", inputs=(spec,), outputs=(spec,))


def measured(call: KernelCall, factor: float) -> Group:
    time_us = predict_time_us(call, DEVICE) * factor
    launch = Launch(row=KernelRow(call=call, duration_us=time_us), duration_us=time_us)
    return Group(soc="910b3", launches=(launch,))


def learnt(*groups: Group) -> DeviceProfile:
    return with_nearby({"910b3": DEVICE}, groups)["910b3"]


def factor(call: KernelCall, device: DeviceProfile) -> float:
    return predict_time_us(call, device) / predict_time_us(call, DEVICE)


def test_a_measured_kernel_draws_itself_and_less_so_those_beside_it() -> None:
    device = learnt(measured(gemm(4096), 1.2))
    assert factor(gemm(4096), device) == pytest.approx(1.2**0.8, rel=0.01)  # the rest counts as its own oddity
    steps = [factor(gemm(4096 << i), device) for i in range(8)]
    assert steps == sorted(steps, reverse=True)
    assert 1.05 < steps[1] < 1.2
    assert steps[-1] == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize(
    "other",
    [
        gemm(4096, n=16384),
        gemm(4096, k=4096),
        gemm(4096, dtype="float32"),
        gemm(4096, dtype="int8"),
        norm(4096),
        msgspec.structs.replace(gemm(4096), type="BatchMatMulV2"),
    ],
)
def test_other_weights_types_and_families_are_left_alone(other: KernelCall) -> None:
    assert factor(other, learnt(measured(gemm(4096), 1.2))) == pytest.approx(1.0, abs=1e-3)


def test_half_types_are_alike() -> None:
    device = learnt(measured(gemm(4096), 1.2))
    assert factor(gemm(4096, dtype="float16"), device) == factor(gemm(4096), device)


def test_an_odd_measurement_moves_its_neighbours_by_little() -> None:
    device = learnt(measured(norm(1024), 50.0))
    assert factor(norm(1024), device) < math.exp(MAX_LOG_ERROR)


def test_many_that_agree_do_not_exceed_what_they_say() -> None:
    device = learnt(*(measured(norm(1000 + i), 1.2) for i in range(30)))
    assert factor(norm(1010), device) == pytest.approx(1.2, rel=0.02)


def test_terms_still_add_up_and_the_quick_time_agrees() -> None:
    device = learnt(measured(gemm(4096), 1.2))
    full = predict_kernel(gemm(4096), device)
    assert sum(full.terms_us.values()) == pytest.approx(full.time_us)
    assert full.time_us == pytest.approx(predict_time_us(gemm(4096), device))
    assert full.nearby_factor == pytest.approx(factor(gemm(4096), device))


def test_devices_of_a_generation_learn_the_same_and_others_nothing() -> None:
    others = {name: load_device(name) for name in ("910b1", "910c")}
    devices = with_nearby({"910b3": DEVICE, **others}, [measured(gemm(4096), 1.2)])
    assert devices["910c"] == others["910c"]
    learned_here, there = (devices[name].families["MatMul"].nearby["half NT"] for name in ("910b3", "910b1"))
    assert there[-len(learned_here) :] == learned_here


def test_new_neighbours_join_those_that_a_device_had() -> None:
    once = learnt(measured(norm(64), 1.2))
    twice = with_nearby({"910b3": once}, [measured(norm(65536), 0.8)])["910b3"]
    assert factor(norm(64), twice) == pytest.approx(factor(norm(64), once), rel=0.01)
    assert factor(norm(65536), twice) < 0.9


def test_only_so_many_are_kept_the_weightiest_first() -> None:
    known = [(Place("half ND", spot(1 << 20, i + 1, 1, "rowwise")), 0.1) for i in range(MAX_NEIGHBOURS + 10)]
    assert [one[:3] for one in learn_neighbours(known)["half ND"]] == [p.spot for p, _ in known[:MAX_NEIGHBOURS]]


@given(
    rows=st.integers(1, 1 << 30),
    cols=st.integers(1, 1 << 30),
    places=st.lists(st.tuples(st.integers(1, 1 << 30), st.integers(1, 1 << 30), st.floats(-3, 3)), max_size=12),
)
def test_a_correction_is_bounded_whatever_was_measured(
    rows: int, cols: int, places: list[tuple[int, int, float]]
) -> None:
    known = [(Place("half ND", spot(r, c, 1, "rowwise")), residual) for r, c, residual in places]
    family = msgspec.structs.replace(DEVICE.families["RmsNorm"], nearby=learn_neighbours(known))
    assert abs(math.log(neighbour_factor(norm(rows, cols), family))) <= MAX_LOG_ERROR + 1e-9


def test_places_without_sizes_have_no_neighbours() -> None:
    assert place_of(gemm(0), "matmul") is None
    assert place_of(norm(0), "rowwise") is None
    assert place_of(KernelCall(type="MemSet", inputs=(), outputs=()), "fill") is None
    assert place_of(norm(4), "gather") is None
    assert likeness((0.0, 0.0, 0.0), spot(1 << 30, 1, 1, "rowwise")) < 1e-9


def test_files_keep_neighbours() -> None:
    device = learnt(measured(gemm(4096), 1.2), measured(norm(512), 0.9))
    text = device_text(device, header="x", source="y")
    again = compile_device(read_device_file(text.encode(), "x.toml"))
    for call in (gemm(4096), gemm(2048), norm(512)):
        assert factor(call, again) == pytest.approx(factor(call, device), rel=1e-3)


@pytest.mark.parametrize("entry", ["{ sizes = [0, 1, 1], pull = 0.1 }", "{ sizes = [1, 1, 1], pull = 99.0 }"])
def test_broken_neighbours_are_refused(entry: str) -> None:
    text = f"""
schema_version = 2
name = "mine"
base = "910b3"
[families.Add]
source = "x"
confidence = "fitted"
[families.Add.nearby]
"half ND" = [{entry}]
"""
    with pytest.raises(FormatError, match=r"families.Add.nearby.half ND"):
        read_device_file(text.encode(), "mine.toml")


def test_a_file_of_version_1_may_still_give_a_rate_that_is_gone() -> None:
    rate = '[rates.reread_reach]\nvalue = 8.0\nunit = "ratio"\nsource = "x"\nconfidence = "fitted"\n'
    head = 'schema_version = {}\nname = "mine"\nbase = "910b3"\n'
    assert read_device_file((head.format(1) + rate).encode(), "mine.toml").rates == {}
    with pytest.raises(FormatError, match="reread_reach"):
        read_device_file((head.format(2) + rate).encode(), "mine.toml")


def test_only_measured_generations_ship_with_neighbours() -> None:
    kernels = {
        name: {family.name: family.nearby for family in load_device(name).families.values() if family.nearby}
        for name in ("910b1", "910b3", "910c", "950pr")
    }
    assert kernels["910b1"] == kernels["910b3"] != kernels["910c"]
    assert kernels["910c"]
    assert not kernels["950pr"]
