"""Every stand-in with an argument that looks like an index is named by an initializer, or any values do."""

from __future__ import annotations

import re

import pytest
import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.rules.row_numbers import ROLES
from opreplay.replay.ops import register
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.table import role_of, rows

LOOKS_LIKE_INDEX = re.compile(
    r"(?i)(^|_)(ind(ex|ices|ptr)|idx|offsets?|len(s|gths?)?|seqlens?\w*|lens_\w+|tables?|slots?|mapping|map|ids?"
    r"|positions?|pos|rows?|perm\w*|sorted\w*|topk\w*|cu_\w+|starts?|counts?|splits?|segments?|groups?|group_list"
    r"|expert\w*|last_\w+|num_\w+|tokens_per\w*|page\w*|batch_id\w*|hash\w*)$"
)
ANY = {
    "aiter::_topk_plain": "lists that it writes",
    "aiter::topk_plain": "lists that it writes",
    **dict.fromkeys(
        (
            "npu::npu_anti_quant",
            "npu::npu_ffn",
            "npu::npu_quant_matmul_dequant",
            "npu::npu_rms_norm_quant",
            "npu::npu_trans_quant_param",
            "vllm::quantize",
        ),
        "an offset of quantisation is added to values",
    ),
    "sglang::_run_activation_filtered_inplace": "which expert a row is for decides nothing: every row is computed",
}
"""Op with an argument that looks like an index → why any values do."""

TENSOR = re.compile(r"Tensor(?:\([^)]*\)|!)?(?:\[\])?\??(?:\[\])? (\w+)")


def test_no_argument_that_looks_like_an_index_is_left_to_chance() -> None:
    registry = built_in()
    left = {}
    for names in register.implemented().values():
        for name in names:
            schemas = [version.schema for row in rows() if row.name == name for version in row.references]
            arguments = {a for s in schemas for a in TENSOR.findall(s.partition("(")[2].rpartition(" -> ")[0])}
            found = sorted(a for a in arguments if LOOKS_LIKE_INDEX.search(a))
            if found and name not in ANY and not registry.rules_for(name):
                left[name] = found
    assert not left


def test_what_any_values_do_for_has_no_rule() -> None:
    registry = built_in()
    assert not [name for name in ANY if registry.rules_for(name)]
    assert all(reason for reason in ANY.values())


def fill(op: str, **args: object) -> dict[str, str]:
    context = InitContext(op=op, args=args, generator=torch.Generator().manual_seed(3))
    registry = built_in()
    rule = registry.find(context)
    assert rule is not None
    assert rule.name == "row_numbers"
    return dict(registry.apply(rule, context).assumed)


def ints(*shape: int) -> torch.Tensor:
    return torch.full(shape, -7, dtype=torch.int64)


def test_rows_that_are_written_are_distinct_and_in_range() -> None:
    indices = ints(5)
    assert fill("npu::apply_token_bitmask", logits=torch.randn(8, 4), bitmask=ints(8, 1), indices=indices)
    assert len(set(indices.tolist())) == 5
    assert 0 <= int(indices.min()) <= int(indices.max()) < 8


def test_tokens_of_fused_caches_go_to_slots_of_their_own() -> None:
    slots, tokens = ints(6), ints(6)
    cache, latent = torch.randn(2, 4, 20), torch.randn(9, 16)
    op = "_C_cache_ops::cp_fused_concat_and_cache_mla"
    fill(op, kv_c=latent, kv_cache=cache, cp_local_token_select_indices=tokens, slot_mapping=slots)
    assert len(set(slots.tolist())) == len(set(tokens.tolist())) == 6
    assert 0 <= int(slots.min()) <= int(slots.max()) < 8


def test_counts_and_boundaries_add_up() -> None:
    groups = ints(3)
    fill("npu::npu_clipped_swiglu", x=torch.randn(10, 8), group_index=groups)
    assert int(groups.sum()) == 10
    ends = ints(4)
    fill("vllm::torch_sdpa_wrapper", q=torch.randn(1, 9, 2, 4), cu_seqlens=ends)
    assert ends.tolist() == [0, 3, 6, 9]


def test_chances_are_those_of_a_softmax() -> None:
    probs = torch.full((70, 9), -7.0)
    fill("sgl_kernel::top_p_renorm_probs", probs=probs)
    assert float(probs.min()) > 0
    torch.testing.assert_close(probs.sum(-1), torch.ones(70))


def test_blocks_are_copied_to_others() -> None:
    pairs = ints(3, 2)
    caches = [torch.randn(8, 2)]
    fill("_C_cache_ops::copy_blocks", key_caches=caches, value_caches=caches, block_mapping=pairs)
    assert pairs.tolist() == [[0, 4], [1, 5], [2, 6]]
    fill("_C_cache_ops::copy_blocks", key_caches=[torch.randn(1, 2)], value_caches=caches, block_mapping=pairs)
    assert pairs.tolist() == [[0, 0]] * 3


def test_places_lie_inside_each_dimension() -> None:
    places = ints(50, 2)
    fill("npu::npu_scatter_nd_update_", self=torch.randn(3, 9, 4), indices=places, updates=torch.randn(50, 4))
    assert set(places[:, 0].tolist()) == {0, 1, 2}
    assert int(places[:, 1].max()) > 2
    assert int(places[:, 1].max()) < 9


@pytest.mark.parametrize("op", [row.name for row in rows() if row.inputs == "row_numbers"])
def test_each_rule_is_for_arguments_that_the_op_has(op: str) -> None:
    register.implemented()
    schemas = " ".join(version.schema for row in rows() if row.name == op for version in row.references)
    assert all(re.search(rf"\b{name}\b", schemas) for name in ROLES[role_of(op)])
