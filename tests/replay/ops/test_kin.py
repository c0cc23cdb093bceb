"""The op that one without a rule is costed as, by its name."""

from __future__ import annotations

import re

import pytest

from opreplay.replay.ops.kin import KIN, kin_of, stem_of
from opreplay.replay.ops.table import cost_of


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("npu::npu_moe_init_routing_v2", "moe_init_routing"),
        ("npu::ai_infra_moe_init_routing_v3", "moe_init_routing"),
        ("npu::batch_norm_grad_v3", "batch_norm_backward"),
        ("aten::add_.Tensor", "add"),
        ("aclnn::aclnnMoeInitRoutingV2", "moe_init_routing"),
    ],
)
def test_the_stem_leaves_out_libraries_versions_and_overloads(name: str, stem: str) -> None:
    assert stem_of(name) == stem


@pytest.mark.parametrize(
    ("name", "kin"),
    [
        ("npu::scatter_pa_kv_cache", "npu::npu_scatter_pa_kv_cache"),
        ("npu::clipped_swiglu", "npu::npu_clipped_swiglu"),
        ("atb::self_attention_prefix", "npu::npu_fused_infer_attention_score"),
        ("atb::some_grouped_matmul_all", "npu::npu_grouped_matmul"),
        ("npu::stft_backward", "aten::_fft_c2c"),
        ("npu::frobnicate", None),
        ("mylib::gated_scatter", None),
    ],
)
def test_the_same_stem_goes_before_a_word_in_it(name: str, kin: str | None) -> None:
    assert kin_of(name) == kin


def test_every_line_names_an_op_with_a_rule_and_can_be_reached() -> None:
    assert [op for _, op in KIN if cost_of(op) is None] == []
    assert all(re.compile(pattern) for pattern, _ in KIN)
