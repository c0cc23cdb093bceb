"""Each op with a stand-in has a cost or a reason for none; products of packed weights cost what their work is."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from opreplay.replay.ascend import load_device, lower, simulate_op
from opreplay.replay.ascend.cost.predict import variant
from opreplay.replay.ascend.simulate.op import is_predicted
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ops import table
from opreplay.replay.ops.declared import versions_of
from opreplay.replay.ops.register import implemented
from tests.factories import meta as any_meta
from tests.factories import op_of as op

DEVICE = load_device("910b3")
UNKNOWN = {"Unknown", "AsynchronousCompleteCumsum"}
"""Kernels that are costed by their bytes."""
UNCOSTED = {known.name: known.uncosted for known in table.rows() if known.uncosted}
NAMES = sorted({name for names in implemented().values() for name in names})

meta = partial(any_meta, dtype="float16")


def of_schema(name: str, text: str, shape: tuple[int, ...], dtype: str) -> ReplayOp:
    """A call by schema, all tensors alike: seldom one that the op takes, but nothing a rule may fall over."""
    schema = torch._C.parse_schema(text)
    args: dict[str, Any] = {}
    for arg in schema.arguments:
        kind = str(arg.type)
        one = meta(*shape, dtype="int64" if "ind" in arg.name or "offset" in arg.name else dtype)
        if "List[Tensor" in kind or "List[Optional[Tensor" in kind:
            args[arg.name] = [one, one]
        elif "Tensor" in kind:
            args[arg.name] = one
        else:
            args[arg.name] = (0, 1, 2) if "List[" in kind else 2 if "int" in kind.lower() else None
    return op(name, **args)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(64, 128), (4, 32, 64), (2, 8, 16, 32), (8,), (0, 4)], ids=str)
def test_no_rule_falls_over_any_arguments(shape: tuple[int, ...]) -> None:
    unknown = set()
    for name in NAMES:
        for _, text in versions_of(name):
            for dtype in ("bfloat16", "int32"):
                call = of_schema(name, text, shape, dtype)
                simulated = simulate_op(call, DEVICE)
                assert math.isfinite(simulated.time_us), name
                assert 0 <= simulated.low_us <= simulated.time_us <= simulated.high_us, name
                kinds = {variant(one, DEVICE) for one in lower(call).kernels}
                unknown |= {(name, kind) for kind in kinds if kind not in DEVICE.types and kind not in UNKNOWN}
    assert not unknown


@pytest.mark.parametrize("name", sorted(UNCOSTED))
def test_uncosted_ops_are_not_predicted_and_say_why(name: str) -> None:
    simulated = simulate_op(op(name, self=meta(64, 64)), DEVICE)
    assert not is_predicted(op(name, self=meta(64, 64)), simulated)
    assert simulated.high_us == 0
    assert (simulated.by, simulated.source) == ("nothing", UNCOSTED[name])


def product(m: int, k: int, n: int) -> float:
    return simulate_op(op("aten::mm", self=meta(m, k), mat2=meta(k, n)), DEVICE).time_us


def packed(name: str, m: int, k: int, n: int) -> ReplayOp:
    a, out = meta(m, k), (meta(m, n),)
    int32 = partial(any_meta, dtype="int32")
    scales = meta(max(1, k // 128), n)
    marlin = int32(k // 16, n * 2)
    zeros = int32(max(1, k // 128), n // 8)
    sizes = {"size_m": m, "size_n": n, "size_k": k}
    calls: dict[str, dict[str, Any]] = {
        "_C::awq_gemm": {"_in_feats": a, "_kernel": int32(k, n // 8), "_scaling_factors": scales, "_zeros": zeros},
        "_C::gptq_gemm": {"a": a, "b_q_weight": int32(k // 8, n), "b_gptq_qzeros": zeros, "b_gptq_scales": scales},
        "_C::gptq_marlin_gemm": {"a": a, "b_q_weight": marlin, "b_scales": scales, **sizes},
        "_C::marlin_gemm": {"a": a, "b_q_weight": marlin, "b_scales": scales, **sizes},
        "_C::machete_mm": {"A": a, "B": int32(k // 8, n), "b_type": 0, "group_scales": scales},
        "_C::allspark_w8a16_gemm": {"a": a, "b_qweight": any_meta(k, n, dtype="uint8"), "b_scales": scales, "n": n},
        "npu::npu_weight_quant_batchmatmul": {"x": a, "weight": any_meta(k, n, dtype="int8")},
    }
    return op(name, outputs=out, **calls[name])


PACKED = {
    "_C::awq_gemm": 4, "_C::gptq_gemm": 4, "_C::gptq_marlin_gemm": 4, "_C::marlin_gemm": 4, "_C::machete_mm": 4,
    "_C::allspark_w8a16_gemm": 8, "npu::npu_weight_quant_batchmatmul": 8,
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
def test_products_of_packed_weights_take_as_long_as_their_work(name: str) -> None:
    (kernel,) = lower(packed(name, 4096, 4096, 4096)).kernels
    assert kernel.attrs["weight_bits"] == PACKED[name]
    prefill = simulate_op(packed(name, 4096, 4096, 4096), DEVICE)
    assert 0.5 <= prefill.time_us / product(4096, 4096, 4096) <= 1.5
    assert prefill.confidence == "uncalibrated", "no kernel with packed weights was measured"
    decode = simulate_op(packed(name, 1, 4096, 14336), DEVICE).time_us / product(1, 4096, 14336)
    assert PACKED[name] / 16 <= decode < 0.75, "memory is read packed, and the cube loads what was unpacked"


@pytest.mark.parametrize("name", PACKED)
def test_products_of_packed_weights_grow_with_each_size(name: str) -> None:
    smaller = simulate_op(packed(name, 512, 2048, 2048), DEVICE).time_us
    for sizes in ((2048, 2048, 2048), (512, 8192, 2048), (512, 2048, 8192)):
        assert simulate_op(packed(name, *sizes), DEVICE).time_us > smaller


def lora(name: str, tokens: int, rank: int) -> ReplayOp:
    return op(name, inputs=meta(tokens, 4096), lora_a_weights=meta(8, 1, rank, 4096), output_tensor=meta(tokens, rank))


def scan(states: int, length: int) -> ReplayOp:
    wide = meta(1, 2048, length)
    return op("_C::selective_scan_fwd", u=wide, delta=wide, A=meta(2048, states), B=meta(1, states, length))


def taps(length: int, width: int) -> ReplayOp:
    return op("_C::causal_conv1d_fwd", x=meta(2048, length), weight=meta(2048, width), silu_activation=True)


def marlin_layer(tokens: int, inner: int) -> ReplayOp:
    return op(
        "vllm::fused_marlin_moe",
        hidden_states=meta(tokens, 2048),
        w1=any_meta(16, 128, inner * 4, dtype="int32"),
        w2=any_meta(16, inner // 16, 4096, dtype="int32"),
        topk_ids=any_meta(tokens, 4, dtype="int32"),
    )


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (lora("vllm::bgmv_shrink", 1024, 16), lora("vllm::bgmv_shrink", 16384, 16)),
        (lora("vllm::bgmv_shrink", 4096, 16), lora("vllm::bgmv_shrink", 4096, 512)),
        (scan(16, 1024), scan(64, 1024)),
        (scan(16, 1024), scan(16, 8192)),
        (taps(1024, 4), taps(8192, 4)),
        (taps(4096, 2), taps(4096, 4)),
        (marlin_layer(256, 1024), marlin_layer(4096, 1024)),
        (marlin_layer(1024, 1024), marlin_layer(1024, 4096)),
    ],
    ids=lambda one: one.name,
)
def test_cost_grows_with_the_work(small: ReplayOp, large: ReplayOp) -> None:
    assert lower(small).known
    assert simulate_op(large, DEVICE).time_us > simulate_op(small, DEVICE).time_us
