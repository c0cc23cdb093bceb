"""Descriptions of tensors' contents: the script makes numbers of the kind that the initializers make."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opreplay.initializers.base import CustomInit, InitContext, InitReport
from opreplay.initializers.registry import Registry
from opreplay.replay.export import script
from opreplay.replay.export.values import KEPT_VALUES, describe
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ops.inputs import built_in
from opreplay.traces.model import TensorMeta
from tests.factories import jit_op as op_of

CPU = torch.device("cpu")


def tensor(name: str, shape: tuple[int, ...], dtype: str = "float32", **more: Any) -> ReplayArg:
    return ReplayArg(name=name, type="Tensor", tensors=(TensorMeta(shape=shape, dtype=dtype, **more),))


def filled(op: ReplayOp, registry: Registry | None = None) -> dict[str, tuple[dict[str, Any], torch.Tensor]]:
    """By argument: the description, and a tensor that the script fills by it."""
    op, specs, _ = describe(op, registry or built_in(), seed=0, memory_bytes=1 << 30)
    found = {}
    for arg in op.args:
        for meta, spec in zip(arg.tensors, specs.get(arg.name, []), strict=True):
            assert meta is not None
            assert spec is not None
            plain = {"shape": list(meta.shape), "dtype": meta.dtype, "strides": meta.strides}
            made = script.allocate(plain, CPU, {}, 0)
            script.fill(made, spec, torch.Generator().manual_seed(1))
            found[arg.name] = (spec, made)
    return found


DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "complex64",
    "complex32",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "bool",
]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_values_of_every_dtype(dtype: str) -> None:
    spec, made = filled(op_of("aten::clone", tensor("self", (40, 50), dtype)))["self"]
    wide = made.to(torch.complex64).real if "complex" in dtype else made.to(torch.float32)
    assert wide.isfinite().all()
    assert wide.unique().numel() > 1, spec
    if dtype.startswith(("int", "uint")):
        assert wide.min() >= 0
        assert wide.max() < 100


def test_strides_of_all_kinds_are_filled() -> None:
    for shape, strides in (((4, 5), (1, 4)), ((4, 5), (0, 1)), ((10, 3), (1, 1)), ((), ()), ((0, 3), (3, 1))):
        _, made = filled(op_of("aten::clone", tensor("self", shape, strides=strides)))["self"]
        assert made.stride() == strides
        assert made.isfinite().all()


def test_indices_stay_in_range_and_differ() -> None:
    op = op_of("aten::embedding", tensor("weight", (500, 8)), tensor("indices", (9000,), "int64"))
    spec, made = filled(op)["indices"]
    assert spec["fill"] == "integers"
    assert 0 <= made.min() < made.max() < 500
    assert made.unique().numel() > 300


def test_factors_of_repeated_products_are_signs() -> None:
    _, made = filled(op_of("aten::mul_", tensor("self", (64, 64)), tensor("other", (64, 64))))["other"]
    assert set(made.unique().tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("stride", [0, 2])
def test_a_row_with_any_stride_is_compared_with_what_an_initializer_left(stride: int) -> None:
    op = op_of("aten::mul_", tensor("self", (64,)), tensor("other", (64,), strides=(stride,)))
    _, made = filled(op)["other"]
    assert made.stride() == (stride,)
    assert set(made.abs().unique().tolist()) == {1.0}


def test_a_domain_keeps_its_bounds() -> None:
    _, made = filled(op_of("aten::log", tensor("self", (200, 200))))["self"]
    assert 0.5 <= made.min() < 0.6
    assert 1.9 < made.max() <= 2.0


def test_saved_softmax_outputs_are_normalised() -> None:
    args = (tensor("grad_output", (4, 9000)), tensor("output", (4, 9000)), ReplayArg(name="dim", type="int", value=1))
    _, made = filled(op_of("aten::_softmax_backward_data", *args))["output"]
    torch.testing.assert_close(made.sum(1), torch.ones(4))
    _, made = filled(op_of("aten::_log_softmax_backward_data", *args))["output"]
    torch.testing.assert_close(made.exp().sum(1), torch.ones(4))


def test_matrices_can_be_factorised() -> None:
    _, made = filled(op_of("aten::linalg_cholesky_ex", tensor("self", (3, 40, 40))))["self"]
    assert torch.linalg.cholesky_ex(made).info.abs().sum() == 0


class Put(CustomInit):
    """Puts given values into x."""

    name = "put"
    op_patterns = ("aten::relu",)
    values = torch.empty(0)

    def initialize(self, context: InitContext) -> InitReport:
        context.need("self").copy_(self.values)
        return InitReport(assumed={"self": "given"})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (torch.arange(0, 60, 3), "values"),
        (torch.tensor([1.5, float("inf"), -float("inf"), 2.0]), "values"),
        (torch.full((9000,), 7), "integers"),
        (torch.tensor([True, False, True, True]), "chosen"),
        (torch.ones(6, 6, dtype=torch.bool).tril(), "causal"),
        (torch.full((6, 8), -1e9).triu(3), "causal"),
        (torch.arange(20000) * 3, "ramp"),
    ],
)
def test_what_an_initializer_computed_is_kept(values: torch.Tensor, kind: str) -> None:
    registry = Registry()
    registry.register(type("PutThis", (Put,), {"values": values})())
    dtype = str(values.dtype).removeprefix("torch.")
    spec, made = filled(op_of("aten::relu", tensor("self", tuple(values.shape), dtype)), registry)["self"]
    assert spec["fill"] == kind
    if kind == "chosen":
        assert made.sum() == values.sum()
    else:
        torch.testing.assert_close(made, values)


def test_many_computed_integers_stop_the_export() -> None:
    values = torch.randperm(KEPT_VALUES + 1)
    registry = Registry()
    registry.register(type("PutThis", (Put,), {"values": values})())
    op = op_of("aten::relu", tensor("self", tuple(values.shape), "int64"))
    with pytest.raises(NotReplayable, match="values: self has 8193 integers of initializer put"):
        describe(op, registry, seed=0, memory_bytes=1 << 30)


@pytest.mark.parametrize("where", ["applies_to", "initialize"])
def test_an_initializer_that_fails_leaves_its_op_out(where: str) -> None:
    def fails(self: CustomInit, context: InitContext) -> InitReport:
        raise KeyError("x")

    kind = type("Fails", (CustomInit,), {"name": "fails", "op_patterns": ("aten::clone",), where: fails})
    registry = Registry()
    registry.register(kind())
    with pytest.raises(NotReplayable, match=r"initializer fails: .*KeyError"):
        filled(op_of("aten::clone", tensor("self", (4,))), registry)


def test_nothing_is_allocated_for_an_op_without_an_initializer() -> None:
    op = op_of("aten::relu", tensor("self", (1 << 20, 1 << 20)))
    _, specs, _ = describe(op, built_in(), seed=0, memory_bytes=1)
    assert specs == {"self": [{"fill": "normal"}]}
    needs = op_of("aten::log", tensor("self", (1 << 20, 1 << 20)))
    with pytest.raises(NotReplayable, match="budget"):
        describe(needs, built_in(), seed=0, memory_bytes=1)
