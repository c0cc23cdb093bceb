"""An argument that may change what an op computes is used by its stand-in, or refused: none is ignored."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from opreplay.replay.host.dispatcher import parse_schema
from opreplay.replay.ops.calls import takes_call
from opreplay.replay.ops.modes import COMPUTED, INERT, computed, inert_entry, untaken_modes
from opreplay.replay.ops.register import stand_in_of
from opreplay.replay.ops.table import Reference, load, rows

Op = Callable[[str], Any]

UNREAD = {
    # Loading ahead changes no value.
    ("npu::npu_prefetch", "self"),
}
"""(op, parameter) that a stand-in takes and need not read."""


def versions() -> list[tuple[Reference, Any]]:
    load("references")
    return [(version, parse_schema(version.schema)) for row in rows() for version in row.references]


def definition(run: Callable[..., Any]) -> list[ast.stmt]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(run))).body[0]
    return tree.body if isinstance(tree, ast.FunctionDef) else [tree]


def names_read(run: Callable[..., Any]) -> set[str]:
    return {node.id for line in definition(run) for node in ast.walk(line) if isinstance(node, ast.Name)}


@pytest.mark.slow
def test_a_parameter_that_is_taken_is_read() -> None:
    unread = {
        (version.name, parameter)
        for version, _ in versions()
        for parameter in set(inspect.signature(version.run).parameters) - names_read(version.run)
    }
    assert unread == UNREAD


def test_a_call_is_read_by_names_or_handed_on_whole() -> None:
    """Whatever else a function did with its call, `taken` would not see what it reads."""
    for run in {version.run for version, _ in versions() if takes_call(version.run)}:
        (c,) = inspect.signature(run).parameters
        nodes = [node for line in definition(run) for node in ast.walk(line)]
        seen = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        handed = [node.args[0] for node in nodes if isinstance(node, ast.Call) and node.args]
        changed = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "but"]
        assert {id(node) for node in changed} <= set(map(id, handed)), f"{run.__name__} hands on no changed call"
        uses = {id(node) for node in nodes if isinstance(node, ast.Name) and node.id == c}
        assert uses <= seen | set(map(id, handed)), run.__name__


def test_an_untaken_argument_has_a_value_that_is_computed() -> None:
    modes = [
        (version.name, mode, computed(schema, mode))
        for version, schema in versions()
        for mode in untaken_modes(version.takes, schema)
    ]
    assert len(modes) > 300
    assert [(name, mode) for name, mode, values in modes if not values] == []


def test_every_entry_is_of_an_argument_that_some_stand_in_does_not_take() -> None:
    untaken = {
        (version.name, argument.name)
        for version, schema in versions()
        for argument in schema.arguments
        if argument.name not in version.takes
    }
    listed = [entry for names in INERT.values() for entry in names.split()]
    assert len(listed) == len(set(listed))
    assert set(listed) - {inert_entry(*one) for one in untaken} == set()
    arguments = {mode for version, schema in versions() for mode in untaken_modes(version.takes, schema)}
    assert {entry.rpartition(".")[2] for entry in COMPUTED} - arguments == set()


@pytest.mark.parametrize("mode", ["pertensor", "pergroup"])
def test_another_text_than_the_default_is_refused(mode: str) -> None:
    quantise = stand_in_of("npu::npu_dynamic_quant_asymmetric")
    assert quantise is not None
    assert quantise(torch.randn(4, 8))[0].shape == (4, 8)
    with pytest.raises(ValueError, match=mode):
        quantise(torch.randn(4, 8), quant_mode=mode)


def test_another_number_flag_or_tensor_than_the_default_is_refused(op: Op) -> None:
    x, one = torch.randn(4, 8), torch.ones(1)
    add = op("npu::npu_grouped_matmul_add_")
    groups = torch.tensor([4])
    wanted = x.t() @ x
    torch.testing.assert_close(add(torch.zeros(8, 8), x, x, groups, transpose_x=True, group_type=2), wanted)
    for refused in ({"transpose_x": False}, {"transpose_weight": True}, {"group_type": 0}):
        with pytest.raises(ValueError, match=next(iter(refused))):
            add(torch.zeros(8, 8), x, x, groups, **refused)
    rotate = op("npu::npu_rotary_mul")
    heads = torch.randn(1, 2, 3, 8)
    assert rotate(heads, heads, heads, rotate=torch.empty(0)).shape == heads.shape
    with pytest.raises(ValueError, match="rotate"):
        rotate(heads, heads, heads, rotate=torch.eye(8))
    quantise = op("fbgemm::quantize_fp8_per_row")
    assert quantise(x)[0].shape == x.shape
    for refused in ({"stochastic_rounding": True}, {"bs": one}):
        with pytest.raises(ValueError, match=next(iter(refused))):
            quantise(x, **refused)


def test_a_refusal_is_the_same_on_meta_tensors(op: Op) -> None:
    x = torch.randn(4, 8, device="meta")
    with pytest.raises(ValueError, match="stochastic_rounding"):
        op("fbgemm::quantize_fp8_per_row")(x, stochastic_rounding=True)


def test_a_dtype_is_refused_but_for_that_of_the_result(op: Op) -> None:
    normalise = op("npu::npu_rms_norm_quant")
    arguments = (torch.randn(4, 8), torch.ones(8), torch.zeros(8), torch.ones(1), torch.zeros(1, dtype=torch.int8))
    assert normalise(*arguments).dtype == torch.int8
    assert torch.equal(normalise(*arguments, dst_dtype=torch.int8), normalise(*arguments))
    with pytest.raises(ValueError, match="dst_dtype"):
        normalise(*arguments, dst_dtype=torch.float8_e4m3fn)


@pytest.mark.parametrize(("mode", "counted"), [(1, 3), (2, 0)])
def test_bounds_are_checked_as_the_mode_says(op: Op, mode: int, counted: int) -> None:
    rows, warning = torch.tensor([4, 2]), torch.zeros(1, dtype=torch.int64)
    check = op("fbgemm::bounds_check_indices")
    indices, offsets = torch.tensor([3, 4, -1, 1, 2]), torch.tensor([0, 2, 3, 4, 9])
    check(rows, indices, offsets, mode, warning, torch.ones(5))
    assert (indices.tolist(), offsets.tolist(), warning.item()) == ([3, 0, -1, 1, 0], [0, 2, 3, 4, 5], counted)
    check(rows, indices, offsets, 0, warning)
    assert warning.item() == counted
    for refused in (0, 3):
        with pytest.raises(ValueError, match=r"bound"):
            check(rows, torch.tensor([3, 4, -1, 1, 2]), offsets, refused, warning)


@pytest.mark.parametrize("active", [0, 2, 7, 9])
def test_only_active_rows_are_routed(call: Callable[..., Any], active: int) -> None:
    x, experts = torch.randn(7, 4), torch.randint(0, 5, (7, 2), dtype=torch.int32)
    slots = torch.arange(14, dtype=torch.int32).reshape(2, 7).t().contiguous()
    rows = call("npu::npu_moe_init_routing", x=x, row_idx=slots, expert_idx=experts, active_num=active)[0]
    pairs = sorted((int(e), t, s) for t, of_token in enumerate(experts) for s, e in enumerate(of_token))
    assert rows.shape == (min(active, 7) * 2, 4)
    assert torch.equal(rows, x[[t for _, t, _ in pairs]][: len(rows)])


def test_fewer_active_rows_than_there_are_is_refused(op: Op) -> None:
    route = op("npu::npu_moe_init_routing_v2")
    x, experts = torch.randn(3, 4), torch.tensor([[0, 1], [1, 2], [0, 2]], dtype=torch.int32)
    arguments: dict[str, Any] = {"expert_num": 3, "expert_tokens_num_type": 1, "active_expert_range": [0, 3]}
    assert torch.equal(route(x, experts, active_num=6, **arguments)[0], route(x, experts, **arguments)[0])
    with pytest.raises(ValueError, match="active_num"):
        route(x, experts, active_num=4, **arguments)


def test_tokens_without_a_prefix_take_the_suffix_alone(op: Op) -> None:
    prefix, suffix = torch.randn(5, 2, 4), torch.randn(5, 2, 4)
    weights: tuple[Tensor, Tensor] = torch.randn(2, 5), torch.randn(2, 5)
    out, sums = torch.empty(5, 2, 4), torch.empty(2, 5)
    op("_C::merge_attn_states")(out, sums, prefix, weights[0], suffix, weights[1], 3)
    before, after = (w.exp().t().unsqueeze(-1) for w in weights)
    joined = (prefix * before + suffix * after) / (before + after)
    torch.testing.assert_close(out, torch.cat((joined[:3], suffix[3:])))
    total = (weights[0].exp() + weights[1].exp()).log()
    torch.testing.assert_close(sums, torch.cat((total[:, :3], weights[1][:, 3:]), 1))


def test_experts_come_in_the_dtype_that_is_asked_for(call: Callable[..., Any]) -> None:
    x, weights, ids = torch.randn(5, 8), torch.rand(5, 2), torch.randint(0, 3, (5, 2), dtype=torch.int32)
    arguments: dict[str, Any] = {"w1": torch.randn(3, 12, 8), "w2": torch.randn(3, 8, 6), "topk_weight": weights}
    arguments |= {"hidden_states": x, "topk_ids": ids}
    plain = call("vllm::rocm_aiter_fused_moe", **arguments)
    half = call("vllm::rocm_aiter_fused_moe", **arguments, output_dtype=torch.bfloat16)
    assert torch.equal(half, plain.to(torch.bfloat16))
