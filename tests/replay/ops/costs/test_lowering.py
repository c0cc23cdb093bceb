"""Lowering: what ops become, and that no op whatever makes it raise."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opreplay.replay.ascend import explain_op, load_device, lower, simulate_op
from opreplay.replay.ascend.devices.file import load_model, type_table
from opreplay.replay.ascend.lowering import lowers
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ops.table import cost_of
from opreplay.traces.model import TensorMeta
from tests.factories import RECORDED
from tests.factories import meta as any_meta
from tests.factories import op_of as op
from tests.replay.ops.names import costed_ops

DEVICE = load_device("910b3")


meta = partial(any_meta, dtype="bfloat16")


def types(one: ReplayOp) -> list[str]:
    return [kernel.type for kernel in lower(one).kernels]


CASES = [
    (op("aten::mm", self=meta(64, 128), mat2=meta(128, 32)), ["MatMulV3"]),
    (op("aten::addmm", self=meta(32), mat1=meta(64, 128), mat2=meta(128, 32)), ["MatMulV3"]),
    (op("aten::addmm", self=meta(64, 32), mat1=meta(64, 128), mat2=meta(128, 32)), ["MatMulV3", "Add"]),
    (op("aten::bmm", self=meta(8, 64, 128), mat2=meta(8, 128, 32)), ["BatchMatMulV3"]),
    (op("aten::linear", input=meta(2, 64, 128), weight=meta(32, 128), bias=meta(32)), ["MatMulV3"]),
    (
        op(
            "aten::convolution",
            input=meta(8, 3, 32, 32),
            weight=meta(16, 3, 3, 3),
            bias=None,
            stride=(1, 1),
            padding=(1, 1),
            dilation=(1, 1),
            transposed=False,
            output_padding=(0, 0),
            groups=1,
        ),
        ["TransData", "TransData", "Conv2D", "TransData"],
    ),
    (
        op(
            "aten::convolution_backward",
            grad_output=meta(8, 16, 32, 32),
            input=meta(8, 3, 32, 32),
            weight=meta(16, 3, 3, 3),
            output_mask=(False, True, True),
        ),
        ["TransData", "TransData", "Conv2DBackpropFilter", "TransData", "ReduceSum"],
    ),
    (op("aten::_softmax", self=meta(8, 16), dim=-1, half_to_float=False), ["SoftmaxV2"]),
    (op("aten::_softmax", self=meta(8, 16), dim=0, half_to_float=False), ["SoftmaxV2"]),
    (op("aten::native_layer_norm", input=meta(8, 16), normalized_shape=(16,), weight=meta(16)), ["LayerNormV3"]),
    (op("aten::_foreach_add_", self=[meta(8), meta(9)], other=[meta(8), meta(9)]), ["ForeachAddList"]),
    (op("aten::_foreach_mul_", self=[meta(8), meta(9)], scalar=2.0), ["ForeachMulScalar"]),
    (op("aten::_fused_adamw_", self=[meta(8), meta(9)], grads=[meta(8), meta(9)]), ["ApplyAdamWV2"] * 2),
    (
        op(
            "aten::scaled_dot_product_attention",
            query=meta(1, 8, 64, 32),
            key=meta(1, 8, 64, 32),
            value=meta(1, 8, 64, 32),
        ),
        ["FlashAttentionScore"],
    ),
    (
        op("_C::paged_attention_v1", out=meta(4, 8, 64), query=meta(4, 8, 64), key_cache=meta(9, 8, 8, 16, 8)),
        ["FusedInferAttentionScore"],
    ),
    (op("_C::fused_add_rms_norm", input=meta(4, 64), residual=meta(4, 64), weight=meta(64)), ["AddRmsNorm"]),
    (op("_C::silu_and_mul", out=meta(4, 64), input=meta(4, 128)), ["SwiGlu"]),
    (
        op(
            "vllm::fused_experts",
            hidden_states=meta(4, 64),
            w1=meta(8, 256, 64),
            w2=meta(8, 64, 128),
            topk_weights=meta(4, 2),
            topk_ids=meta(4, 2, dtype="int32"),
        ),
        ["MoeInitRouting", "GroupedMatmul", "SwiGlu", "GroupedMatmul", "MoeFinalizeRouting"],
    ),
    (op("c10d::allreduce_", tensors=[meta(1024)]), ["hcom_allReduce_"]),
    (op("aten::copy_", self=meta(8, 8, dtype="float32"), src=meta(8, 8)), ["Cast"]),
    (op("aten::copy_", self=meta(8, 8), src=meta(8, 8)), ["TensorMove"]),
    (op("aten::copy_", self=meta(8, 8), src=meta(8, 8, strides=(1, 8))), ["Transpose"]),
    (op("aten::clone", self=meta(8, 8, strides=(16, 1))), ["Slice"]),
    (op("aten::embedding", weight=meta(100, 64), indices=meta(8, dtype="int64")), ["GatherV2"]),
    (op("aten::zero_", self=meta(8)), ["ZerosLike"]),
    (op("aten::view", self=meta(8)), []),
    (op("aten::reshape", self=meta(8)), []),
]


@pytest.mark.parametrize(
    ("one", "expected"), CASES, ids=lambda value: value.name if isinstance(value, ReplayOp) else ""
)
def test_kernels_of_an_op(one: ReplayOp, expected: list[str]) -> None:
    assert types(one) == expected
    assert lower(one).known


def test_every_kernel_of_the_cases_has_a_family() -> None:
    table = type_table(load_model())
    assert not {k.type for one, _ in CASES for k in lower(one).kernels} - {"TransData", *table}


def test_views_cost_nothing() -> None:
    result = simulate_op(op("aten::transpose", self=meta(64, 64), dim0=0, dim1=1), DEVICE)
    assert (result.time_us, result.bound, result.kernels) == (0.0, "none", ())


def test_transposed_operand_is_read_as_it_lies() -> None:
    one = lower(op("aten::mm", self=meta(64, 128), mat2=meta(128, 32, strides=(1, 128)))).kernels
    assert [k.type for k in one] == ["MatMulV3"]
    assert one[0].attrs["transpose_b"] is True
    assert one[0].inputs[1] is not None
    assert one[0].inputs[1].shape == (32, 128)


def test_scattered_operand_is_copied_first() -> None:
    assert types(op("aten::add", self=meta(64, 64, strides=(256, 2)), other=meta(64, 64), alpha=1)) == ["Slice", "Add"]
    assert types(op("aten::add", self=meta(64, 64, strides=(0, 1)), other=meta(64, 64), alpha=1)) == ["Add"]


def test_in_place_name_finds_the_rule_and_overloads_too() -> None:
    assert cost_of("aten::add_") is cost_of("aten::add") is cost_of("aten::add.Tensor")


def test_in_place_is_not_charged_twice() -> None:
    plain = simulate_op(op("aten::mul", self=meta(4096, 4096), other=2.0), DEVICE)
    placed = simulate_op(op("aten::mul_", self=meta(4096, 4096), other=2.0), DEVICE)
    assert placed.time_us == pytest.approx(plain.time_us)


def test_unknown_op_goes_by_its_bytes() -> None:
    result = simulate_op(op("my::op", x=meta(4096, 4096), y=meta(4096, 4096)), DEVICE)
    assert result.confidence == "uncalibrated"
    assert result.kernels == ("Unknown",)
    assert result.time_us > 5
    assert "no lowering" in lower(op("my::op", x=meta(8))).notes[0]


def test_arguments_that_do_not_fit_go_by_bytes_with_a_note() -> None:
    result = lower(op("aten::mm", self=meta(8, 8)))
    assert not result.known
    assert "do not fit" in result.notes[0]


def test_duplicate_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="aten::mm already has a built-in lowering rule"):
        lowers("aten::mm")(lambda view: ())


def test_causal_attention_costs_about_half() -> None:
    def time(causal: bool) -> float:
        qkv = {name: meta(1, 16, 8192, 128) for name in ("query", "key", "value")}
        return simulate_op(op("aten::_scaled_dot_product_flash_attention", is_causal=causal, **qkv), DEVICE).time_us

    assert 0.4 < time(True) / time(False) < 0.7


def test_batch_of_one_convolution_uses_more_than_one_core() -> None:
    one = op("aten::conv2d", input=meta(1, 3, 1008, 1008), weight=meta(1024, 3, 14, 14), stride=(14, 14))
    assert simulate_op(one, DEVICE).time_us < 1000


def test_explanation_says_why() -> None:
    found = explain_op(op("aten::mm", self=meta(64, 128), mat2=meta(128, 32)), DEVICE)
    assert found.device == "910b3"
    assert found.kernels[0].type == "MatMulV3"
    assert found.kernels[0].inputs == ("bfloat16[64,128] ND", "bfloat16[128,32] ND")
    assert found.kernels[0].prediction.time_us == pytest.approx(found.simulated.time_us)


def test_terms_of_an_op_add_up() -> None:
    result = simulate_op(CASES[5][0], DEVICE)
    assert sum(result.terms_us.values()) == pytest.approx(result.time_us)
    assert result.low_us < result.time_us < result.high_us


shapes = st.lists(st.integers(0, 300), max_size=5).map(tuple)
metas = st.builds(
    TensorMeta,
    shape=shapes,
    dtype=st.sampled_from(["float32", "bfloat16", "int64", "int8", "bool", "float8_e4m3fn", "complex64"]),
    strides=st.none() | st.lists(st.integers(0, 600), max_size=5).map(tuple),
)
values = st.none() | st.booleans() | st.integers(-3, 2000) | st.floats() | st.text(max_size=4)
values = values | st.lists(st.integers(-2, 9) | st.booleans(), max_size=5).map(tuple)
names = st.sampled_from(
    [
        "self",
        "other",
        "input",
        "weight",
        "bias",
        "dim",
        "mat1",
        "mat2",
        "query",
        "key",
        "value",
        "grad_output",
        "size",
        "indices",
        "tensors",
        "stride",
        "padding",
        "groups",
    ]
)
arguments = st.builds(
    ReplayArg,
    name=names,
    type=st.just("Tensor"),
    tensors=st.lists(st.none() | metas, max_size=3).map(tuple),
    value=values,
)


EMPTY = ReplayArg(name="self", type="Tensor", tensors=(meta(0, dtype="float32"), meta(0, 0, dtype="float32")))


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@example(name="_C::cutlass_scaled_mm", args=(EMPTY,), outputs=None)  # a product without columns
@given(
    name=st.sampled_from(costed_ops()) | st.text(max_size=12),
    args=st.lists(arguments, max_size=6).map(tuple),
    outputs=st.none() | st.lists(st.none() | metas, max_size=3).map(tuple),
)
def test_no_op_makes_it_raise(
    name: str, args: tuple[ReplayArg, ...], outputs: tuple[TensorMeta | None, ...] | None
) -> None:
    one = ReplayOp(id="0" * 12, name=name, count=1, recorded=RECORDED, args=args, outputs=outputs)
    result = simulate_op(one, DEVICE)
    assert 0 <= result.low_us <= result.time_us <= result.high_us < float("inf")
    assert explain_op(one, DEVICE).simulated == result
