"""What of a kernel's data is in L2 by the order of kernels alone: activations follow each other, weights do not."""

from __future__ import annotations

import pytest

from opreplay.replay.ascend.cost.predict import predict_kernel
from opreplay.replay.ascend.cost.residency import owned_operands, resident_of, reuse_distances
from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ir.kernel import KernelCall, TensorSpec

DEVICE = load_device("910b2")
MB = 1e6


def f16(*shape: int, layout: str = "ND") -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float16", format=layout)


def call(kind: str, inputs: list[TensorSpec], *outputs: TensorSpec) -> KernelCall:
    return KernelCall(type=kind, inputs=tuple(inputs), outputs=tuple(outputs))


def product(rows: int, k: int, n: int, kind: str = "MatMulV3") -> KernelCall:
    return call(kind, [f16(rows, k), f16(k, n)], f16(rows, n))


def layer(rows: int = 1, hidden: int = 4096, inner: int = 11264) -> list[KernelCall]:
    """A gated layer of a decoder; its two weights of 92 MB have the same size."""
    x, y = f16(rows, hidden), f16(rows, inner)
    gate, up = product(rows, hidden, inner), product(rows, hidden, inner)
    return [call("RmsNorm", [x, f16(hidden)], x), gate, call("Silu", [y], y), up, call("Mul", [y, y], y)]


def shares(calls: list[KernelCall]) -> list[float | None]:
    return [resident_of(touches, DEVICE) for touches in reuse_distances(calls)]


def test_a_weight_is_not_the_weight_of_that_size_before_it() -> None:
    found = shares(layer())
    assert found[1] == pytest.approx(found[3], abs=0.001)
    assert found[3] is not None
    assert found[3] < 0.001
    second, alone = (predict_kernel(layer()[3], DEVICE, share).time_us for share in (found[3], 0.0))
    assert second == pytest.approx(alone, rel=0.01)
    assert second > 92 * MB / DEVICE.hbm_bytes_per_s * 1e6


def test_what_a_kernel_wrote_is_what_the_next_one_reads() -> None:
    x = f16(4096, 1024)
    found = shares([call("Gelu", [x], x), call("Silu", [x], x), product(4096, 1024, 1024)])
    assert found[1] is not None
    assert found[1] > 0.9
    # Of a product the activation is there and the weight of 2 MB is not.
    assert found[2] == pytest.approx(16.8 / 18.9, abs=0.02)


def test_an_operand_that_another_kernel_writes_is_that() -> None:
    """A weight that was cast, and the two operands of attention scores, are data of the table's own."""
    wide = TensorSpec(shape=(4096, 1024), dtype="float32")
    cast = call("Cast", [wide], f16(4096, 1024))
    calls = [cast, product(64, 4096, 1024), cast, product(64, 4096, 1024)]
    assert owned_operands(calls) == {}
    found = shares(calls)
    assert found[1] is not None
    assert found[1] > 0.9


def test_blocked_weights_are_not_a_row_major_result_of_as_many_elements() -> None:
    nz = f16(64, 256, 16, 16, layout="FRACTAL_NZ")
    calls = [call("Gelu", [f16(4096, 1024)], f16(4096, 1024)), call("MatMul", [f16(1, 1024), nz], f16(1, 4096))]
    assert list(owned_operands(calls)) == [1]
    turned = call("TransData", [f16(4096, 1024)], nz)
    assert owned_operands([turned, *calls]) == {}


def test_each_layer_has_its_own_cache_which_a_scatter_writes_in_part() -> None:
    cache, row, query = f16(8, 2, 4096, 128), f16(8, 2, 1, 128), f16(8, 16, 1, 128)
    where = TensorSpec(shape=(8,), dtype="int64")
    mask = TensorSpec(shape=(8, 1, 1, 4096), dtype="bool")
    one = [
        call("Scatter", [cache, where, row], cache),
        call("Scatter", [cache, where, row], cache),
        call("IncreFlashAttention", [query, cache, cache, mask], query),
    ]
    owned = owned_operands(one * 2)
    assert owned.keys() == {2, 5}
    assert owned[2][0] is owned[2][3] is None, "queries, and the mask of all layers"
    assert len({name for names in owned.values() for name in names if name is not None}) == 4
    assert shares(one * 2)[5] == pytest.approx(0.0, abs=0.01)


def test_the_next_step_reads_the_weights_of_the_one_before() -> None:
    """A network of 30 MB keeps its weights in L2; six layers by themselves are no six steps."""
    layers = [c for _ in range(6) for c in layer(hidden=1024, inner=1024)]
    step = [*layers, product(1, 1024, 2048)]
    steps = step * 3
    found = shares(steps)
    assert found[1] == pytest.approx(0.0, abs=0.01)
    assert found[len(step) + 1] == pytest.approx(1.0, abs=0.01)
    names = owned_operands(steps)
    assert names[1][1] == names[len(step) + 1][1] != names[3][1]
    assert max(share or 0.0 for share in shares(layers)[1::5]) < 0.01


@pytest.mark.parametrize("kind", ["Conv2D", "BatchMatMulV2", "GroupedMatmul", "QuantBatchMatmulV3"])
def test_products_of_every_kind_have_weights(kind: str) -> None:
    calls = [call(kind, [f16(8, 64, 64), f16(8, 64, 128)], f16(8, 64))] * 2
    assert [names[1] for names in owned_operands(calls).values()] == [
        ((65536, "float16", ""), number) for number in (0, 1)
    ]


@pytest.mark.parametrize("kind", ["Add", "LayerNormV3", "GatherV2", "ApplyRotaryPosEmb"])
def test_operands_of_other_kernels_may_be_any_tensor(kind: str) -> None:
    assert owned_operands([call(kind, [f16(64, 64), f16(32, 64)], f16(64, 64))] * 2) == {}


def test_single_points_lie_alike_in_blocks_of_channels() -> None:
    """TransData of [3840, 72, 1, 1, 16] was 5,500 us by single elements; it took 11.3 on a 910B2."""

    def back(n: int, c: int, points: int) -> float:
        blocked = f16(n, -(-c // 16), points, 1, 16, layout="NC1HWC0")
        kernel = call("TransData", [blocked], f16(n, c, points, 1, layout="NCHW"))
        there = KernelCall(type="TransData", inputs=kernel.outputs, outputs=kernel.inputs)
        return max(predict_kernel(kernel, DEVICE).time_us, predict_kernel(there, DEVICE).time_us)

    assert back(3840, 1152, 1) < 25
    assert back(3840, 1150, 1) < 40, "each image ends with padding"
    assert back(384, 1152, 1) < back(384, 1152, 4) < back(384, 1152, 16) < back(384, 1152, 64)
