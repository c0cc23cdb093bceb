"""Collectives by latency and bandwidth: levels of the network, algorithms, and measured totals."""

from __future__ import annotations

import msgspec
import pytest

from opreplay.replay.ascend import KernelCall, TensorSpec, list_devices, load_device
from opreplay.replay.ascend.cost.collective import Level, choose_algorithm, levels_of, phase_choice
from opreplay.replay.ascend.cost.predict import predict_kernel
from opreplay.replay.ascend.profile import Link

B3, C = load_device("910b3"), load_device("910c")
LINK = Link(bytes_per_s=1e9, latency_us=10.0)


def time_us(kind: str, size: int, world: int, device=B3) -> float:
    spec = TensorSpec(shape=(size,), dtype="int8")
    call = KernelCall(type=kind, inputs=(spec,), outputs=(spec,), attrs={"world_size": world})
    return predict_kernel(call, device).terms_us.get("link", 0.0)


def test_a_mesh_has_one_link_a_peer() -> None:
    assert levels_of(1, B3) == []
    (pair,) = levels_of(2, B3)
    assert pair.link.bytes_per_s == pytest.approx(19.33e9)
    (server,) = levels_of(8, B3)
    assert server.link.bytes_per_s == pytest.approx(7 * 19.33e9)
    inner, outer = levels_of(32, B3)
    assert (inner.dies, outer.dies) == (8, 4)
    assert outer.link.bytes_per_s == pytest.approx(24.52e9)


def test_dies_of_a_package_are_closer_than_those_of_a_server() -> None:
    assert levels_of(2, C)[0].link.bytes_per_s == 224e9
    assert levels_of(16, C)[0].link.bytes_per_s == 218e9
    assert levels_of(32, C)[1].link.latency_us == 5.5


@pytest.mark.parametrize(("size", "dies", "expected"), [(0, 8, 30.0), (0, 5, 30.0), (8e9, 8, 7e6 + 30)])
def test_without_direct_links_the_quicker_of_ring_and_halving(size: float, dies: int, expected: float) -> None:
    assert phase_choice(size, Level(dies, LINK, False)).us == pytest.approx(expected)
    assert phase_choice(1e9, Level(5, LINK, False)).us == pytest.approx(0.8e6 + 40)
    assert phase_choice(8e9, Level(8, LINK, True)).us == pytest.approx(7e6 + 10)


def test_all_gather_of_sixteen_dies_reaches_the_measured_bandwidth() -> None:
    # A3, TP16: all-gather achieves 218 GB/s per die beyond its start.
    size = 1 << 30
    assert time_us("hcom_allGather_", size, 16, C) == pytest.approx(size * 15 / 16 / 218e9 * 1e6, rel=0.01)


@pytest.mark.parametrize("name", list_devices())
@pytest.mark.parametrize("kind", ["hcom_allReduce_", "hcom_allGather_", "hcom_alltoallv_", "hcom_broadcast_"])
def test_more_bytes_take_longer_and_servers_apart_longer_still(name: str, kind: str) -> None:
    device = load_device(name)
    sizes = [time_us(kind, 1 << k, 8, device) for k in (10, 20, 30)]
    assert sizes == sorted(sizes)
    dies = device.server_dies
    # Of an all-to-all most leaves the server, where A3 is about as fast as within it.
    least = 0.85 if "alltoall" in kind else 1.0
    assert time_us(kind, 1 << 28, 4 * dies, device) > least * time_us(kind, 1 << 28, dies, device)
    assert time_us(kind, 1 << 28, 1, device) == 0


def test_all_reduce_is_reduce_scatter_and_all_gather() -> None:
    parts = time_us("hcom_reduceScatter_", 1 << 26, 32) + time_us("hcom_allGather_", 1 << 26, 32)
    assert time_us("hcom_allReduce_", 1 << 26, 32) == pytest.approx(parts)
    assert time_us("hcom_barrier_", 1 << 26, 32) < 60
    assert time_us("hcom_send_", 1 << 26, 2) > time_us("hcom_barrier_", 1 << 26, 2)


def test_a_device_without_a_far_link_goes_on_with_its_own() -> None:
    alone = msgspec.structs.replace(B3, far_link=None, pair_link=None, peer_bytes_per_s=None)
    assert levels_of(16, alone)[1].link == alone.link


def choice(kind: str, size: int, world: int, device=B3, **attrs) -> tuple[float, str]:
    spec = TensorSpec(shape=(size,), dtype="int8")
    call = KernelCall(type=kind, inputs=(spec,), outputs=(spec,), attrs={"world_size": world, **attrs})
    return choose_algorithm(call, device)


def test_the_algorithm_is_the_quickest_one_and_told() -> None:
    assert choice("hcom_allGather_", 1 << 26, 8)[1] == "direct over HCCS"
    assert "RDMA" in choice("hcom_allGather_", 1 << 26, 32)[1]
    assert choice("hcom_broadcast_", 1 << 10, 8)[1] == "direct over HCCS"
    assert choice("hcom_broadcast_", 1 << 28, 8)[1] == "tree over HCCS"


def test_measured_totals_of_public_profiles() -> None:
    """Elapsed times without waiting and idling: eight dies of a 910B1 and of a 910B2, MindStudio Insight test data."""
    b1, b2 = load_device("910b1"), load_device("910b2")
    # 8 x 20.97152 MB gathered in 1.1377 ms, 45 us of it beyond the transfers.
    assert choice("hcom_allGather_", 167_772_160, 8, b1)[0] == pytest.approx(1094, rel=0.05)
    # 14 packets over 7 links, twice 1.0892 ms: 18.89 MB of each rank's 151 MB at a time.
    assert choice("hcom_allReduce_", 151_011_328, 8, b2)[0] == pytest.approx(2 * 1089, rel=0.2)


def test_uneven_splits_take_as_long_as_the_largest_part() -> None:
    even, _ = choice("hcom_alltoallv_", 1 << 26, 8)
    uneven, _ = choice("hcom_alltoallv_", 1 << 26, 8, uneven=2.0)
    assert uneven == pytest.approx(2 * even, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "dtype", "ranks", "measured_us"),
    [
        ("Dispatch", "int8", 8, 132),
        ("Combine", "bfloat16", 8, 126),
        ("Combine", "bfloat16", 16, 135),
        ("Dispatch", "int8", 32, 153),
    ],
)
def test_experts_of_a_small_batch(kind: str, dtype: str, ranks: int, measured_us: float) -> None:
    """128 tokens of 7168 to 8 experts each, over dies of A3 (sgl-kernel-npu's readme)."""
    spec = TensorSpec(shape=(128 * 8, 7168), dtype=dtype)
    call = KernelCall(type=f"MoeDistribute{kind}", inputs=(spec,), outputs=(spec,), attrs={"world_size": ranks})
    assert choose_algorithm(call, C).us == pytest.approx(measured_us, rel=0.15)


def test_what_is_unlike_all_that_was_measured_is_marked() -> None:
    spec = TensorSpec(shape=(1 << 20,), dtype="int8")
    near, far = (
        predict_kernel(KernelCall(type="hcom_allReduce_", inputs=(spec,), outputs=(spec,), attrs={"world_size": n}), B3)
        for n in (8, 256)
    )
    assert (near.extrapolated, far.extrapolated) == (False, True)
    assert (near.confidence, far.high_us / far.time_us > near.high_us / near.time_us) == ("other SoC", True)
