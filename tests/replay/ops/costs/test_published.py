"""Ops of which only the published schema is known: every one can be asked, and what a few cost."""

from __future__ import annotations

import re
from math import prod
from random import Random

import pytest

from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.lowering import Lowering, lower
from opreplay.replay.ascend.simulate.op import simulate_op
from opreplay.replay.ir.notation import CallText, CallValue
from opreplay.replay.ops.declared import schemas_in
from opreplay.replay.ops.kin import KIN
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.schema import ArgSpec, OpSpec
from opreplay.replay.resolve.written.call import op_of_written
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls
from opreplay.replay.resolve.written.unfit import published_specs
from opreplay.traces.model import TensorMeta


def lowered(text: str) -> Lowering:
    return lower(plan_of_calls([Written(text=text)])[0].ops[0])


def invented(arg: ArgSpec) -> CallValue:
    tensor = TensorMeta(shape=(8, 32), dtype="float16")
    plain: dict[str, CallValue] = {"Tensor": tensor, "int": 1, "bool": False, "float": 0.5, "Scalar": 2, "str": "x"}
    value = plain.get(arg.kind.removesuffix("[]"))
    return [value] if arg.kind.endswith("[]") else value


def invented_call(spec: OpSpec) -> CallText:
    given = {arg.name: invented(arg) for arg in spec.args if not arg.has_default and not arg.optional}
    return CallText(name=spec.name, kwargs=given)


@pytest.mark.slow
@pytest.mark.parametrize("namespace", ["npu", "_C_ascend", "torchvision"])
def test_every_published_op_can_be_asked(namespace: str) -> None:
    device = load_device("910b2")
    calls = [invented_call(specs[0]) for name in schemas_in(namespace) if (specs := published_specs(name))]
    assert len(calls) > (10 if namespace == "torchvision" else 60)
    for call in calls:
        op = op_of_written(call, Policy())
        assert op.reason is None or op.resolved_by is None, call.name
        assert simulate_op(op, device).time_us >= 0, call.name


def test_adam_of_four_tensors_updates_one_parameter() -> None:
    tensor = "f32[512,2049]"
    kernels = lowered(f"npu::npu_apply_adam_w({', '.join([tensor] * 4)})").kernels
    assert [call.type for call in kernels] == ["ApplyAdamWV2"]


def test_regions_are_sampled_in_every_bin_and_channel() -> None:
    kernels = lowered("npu::npu_roi_align(f16[2,256,65,63], f16[100,5], 0.0625, 7, 7, 2, 0)").kernels
    assert [call.type for call in kernels] == ["Cast", "TransData", "ROIAlign", "Cast"]
    samples = kernels[2].inputs[0]
    assert samples is not None
    assert prod(samples.shape) == 100 * 7 * 7 * 2 * 2 * 256


def test_suppressing_boxes_takes_as_long_as_there_are_boxes() -> None:
    few, many = (
        plan_of_calls([Written(text=f"torchvision::nms(f32[{n},4], f32[{n}], 0.5)")])[0].ops[0] for n in (1024, 4096)
    )
    device = load_device("950pr")
    assert simulate_op(many, device).time_us == pytest.approx(4 * simulate_op(few, device).time_us, rel=0.02)


@pytest.mark.parametrize(
    ("threshold", "cols"), [("0.05", 916), ("0.3", 2243), ("1.0", 4096), ("0.0", 1), ("7.0", 2896)]
)
def test_more_boxes_are_kept_the_more_they_may_overlap(threshold: str, cols: int) -> None:
    (call,) = lowered(f"torchvision::nms(f32[4096,4], f32[4096], {threshold})").kernels
    assert call.attrs["cols"] == cols


def test_sparse_attention_meets_the_chosen_keys_alone() -> None:
    text = "npu::npu_sparse_flash_attention(f16[8,4,128,512], f16[8,{n},1,512], f16[8,{n},1,512], i32[8,4,1,512], 0.1)"
    (call,) = lowered(text.format(n=4096)).kernels
    assert call.attrs["pairs"] == 8 * 4 * 128 * 512
    assert lowered(text.format(n=64)).kernels[0].attrs["pairs"] == 8 * 4 * 128 * 64


def test_a_step_of_the_delta_rule_passes_over_the_states_of_its_tokens_alone() -> None:
    text = "npu::npu_recurrent_gated_delta_rule({0}, {0}, bf16[64,32,128], bf16[{1},32,128,128])"
    (call,) = lowered(text.format("bf16[64,16,128]", 512)).kernels
    assert call == lowered(text.format("bf16[64,16,128]", 64)).kernels[0]
    assert call.outputs[1] is not None
    assert call.outputs[1].shape == (64, 32, 128, 128)


def test_streams_are_mixed_into_one_and_spread_again() -> None:
    (pre,) = lowered("npu::npu_mhc_pre(bf16[1024,4,512], f32[24,2048], f32[3], f32[24])").kernels
    (post,) = lowered("npu::npu_mhc_post(bf16[1024,4,512], f32[1024,4,4], bf16[1024,512], f32[1024,4])").kernels
    shapes = [call.outputs[0] and call.outputs[0].shape for call in (pre, post)]
    assert shapes == [(1024, 512), (1024, 4, 512)]


def test_projections_to_a_latent_multiply_every_weight_once() -> None:
    x, cos = "bf16[{t},7168]", "bf16[{t},64]"
    weights = "bf16[7168,1536], bf16[1536,24576], bf16[128,128,512], bf16[7168,576], bf16[1536], bf16[512]"
    text = f"npu::npu_mla_prolog_v3({x}, {weights}, {cos}, {cos})"
    (call,) = lowered(text.format(t=16)).kernels
    weight = call.inputs[1]
    assert weight is not None
    assert prod(weight.shape) == pytest.approx(7168 * 1536 + 1536 * 24576 + 128 * 128 * 512 + 7168 * 576, rel=0.001)


@pytest.mark.slow
def test_no_arguments_break_a_rule() -> None:
    drawn, device = Random(5), load_device("910b2")
    dtypes = ("float32", "bfloat16", "int8", "int32", "bool", "float8_e4m3fn")

    def tensor() -> TensorMeta:
        shape = tuple(drawn.choice((1, 2, 3, 17, 64)) for _ in range(drawn.randrange(6)))
        return TensorMeta(shape=shape, dtype=drawn.choice(dtypes))

    def value() -> CallValue:
        plain: tuple[CallValue, ...] = (None, 0, -1, 7, 0.5, True, "BSND", [], [1, 2], [tensor(), tensor()])
        return tensor() if drawn.random() < 0.5 else drawn.choice(plain)

    names = [*(n for space in ("npu", "_C_ascend", "torchvision") for n in schemas_in(space)), *UNKNOWN]
    for name in names:
        call = CallText(name=name, args=(tensor(), *(value() for _ in range(drawn.randrange(6)))))
        simulated = simulate_op(op_of_written(call, Policy()), device)
        assert 0 <= simulated.low_us <= simulated.time_us <= simulated.high_us, call


UNKNOWN = tuple(f"nowhere::{re.sub(r'[^a-z_]', '', pattern.split('|')[0])}_new" for pattern, _ in KIN)
"""Names in which each pattern finds its word."""
