"""Fused kernels of a captured plan compute what the calls before did; nothing is fused that something else needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from opreplay.replay.capture.capture import capture_made
from opreplay.replay.capture.check import compared
from opreplay.replay.capture.record import Recording, record
from opreplay.replay.capture.replay import Replay
from opreplay.replay.capture.serving import attention
from opreplay.replay.capture.serving.fused import fused, rewritten
from opreplay.replay.capture.serving.fusions import MATCHERS
from opreplay.replay.capture.step import named_tensors, step_of
from opreplay.replay.ir.model import ReplayPlan

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128,
    "num_key_value_heads": 2,
}  # fmt: skip
MODELS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "qwen2": (SIZES, {
        "npu_rotary_mul": 4, "npu_add_rms_norm": 4, "npu_rms_norm": 1, "npu_swiglu": 2,
        "npu_fused_infer_attention_score": 2, "_npu_reshape_and_cache": 2,
    }),
    "qwen3_moe": (
        {**SIZES, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        {
            "npu_rotary_mul": 4, "npu_add_rms_norm": 4, "npu_rms_norm": 5, "npu_swiglu": 2,
            "npu_fused_infer_attention_score": 2, "npu_moe_gating_top_k_softmax": 2, "npu_moe_init_routing_v2": 2,
            "_npu_reshape_and_cache": 2,
            "npu_grouped_matmul": 4, "npu_moe_finalize_routing": 2,
        },
    ),
    "deepseek_v3": (
        {
            **SIZES, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 2,
        },
        {
            "npu_interleave_rope": 4, "npu_add_rms_norm": 4, "npu_rms_norm": 5, "npu_swiglu": 2,
            "npu_fused_infer_attention_score": 2, "_npu_reshape_and_cache": 2,
        },
    ),
}  # fmt: skip


def summed(plan: ReplayPlan) -> dict[str, int]:
    """Calls of each fused kernel."""
    names = {op.name for op in plan.ops if op.name.startswith("npu::")}
    return {name.removeprefix("npu::"): sum(op.count for op in plan.ops if op.name == name) for name in names}


def largest_difference(make: Callable[[], Any], plan: ReplayPlan, before: ReplayPlan, only: str = "") -> float:
    """Of what a fused plan gives on the model's values from what the model gives; `only` outputs with that in their
    names."""
    contents: dict[int, torch.UntypedStorage] = {}

    def look(storages: Any) -> Any:
        def seen(_: int, inputs: list[Tensor], result: Any) -> None:
            for tensor in inputs if result is None else ():
                number = storages.number(tensor)
                if storages.is_outside(number) and number not in contents:
                    contents[number] = tensor.untyped_storage().clone()

        return seen

    recording: Recording = record(make, real=True, look=look)
    assert before.sequence is not None
    assert before.capture is not None
    assert plan.capture is not None
    known = {storage.storage for storage in before.capture.storages}
    taken = [before.sequence.places[at][0] for inputs, _ in before.sequence.memories for at in inputs if at >= 0]
    order = [number for number in dict.fromkeys(taken) if number in known]
    given = dict(zip(order, (contents[number] for number in recording.recorder.outside), strict=True))
    of_name = {
        name: given[each.storage] for each in before.capture.storages for name in each.names if each.storage in given
    }
    for storage in plan.capture.storages:
        if storage.storage not in known:
            parts = [torch.tensor([], dtype=torch.uint8).set_(of_name[name]) for name in storage.names[0].split(" + ")]
            given[storage.storage] = torch.cat(parts).untyped_storage()
    replay = Replay(plan, given)
    replay.run()
    returned = dict(named_tensors(recording.returned))
    return max(
        compared(output.name, returned[output.name], replay.output(output)).largest_error
        for output in plan.capture.outputs
        if only in output.name
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_decode_step_is_fused_and_computes_the_same(tmp_path: Path, kind: str) -> None:
    from opreplay.replay.capture.from_config import Shape, maker

    sizes, expected = MODELS[kind]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **sizes}))
    make = maker(str(path), Shape(phase="decode", batch=3, context=17, dtype="float32"))
    before = capture_made(make, source=kind)
    plan = fused(before, MATCHERS)
    assert summed(plan) == expected
    assert {f"npu::{name}": count for name, count in expected.items()} == rewritten(before, MATCHERS)[1]
    assert plan.capture is not None
    assert len(plan.capture.all_notes) == 1
    assert largest_difference(make, plan, before) < 1e-5


def step_of_kind(folder: Path, kind: str, sizes: dict[str, Any], **shape: Any) -> Callable[[], Any]:
    from opreplay.replay.capture.from_config import Shape, maker

    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **sizes}))
    return maker(str(path), Shape(**shape))


@pytest.mark.slow
def test_new_tokens_are_written_to_slots_that_are_made_once(tmp_path: Path) -> None:
    make = step_of_kind(tmp_path, "llama", SIZES, phase="prefill", batch=3, context=5, dtype="float32")
    before = capture_made(make, source="llama")
    plan = fused(before, MATCHERS)
    assert plan.capture is not None
    counts = {op.name: op.count for op in plan.ops if "cumulative_length" not in op.name}
    assert counts["npu::_npu_reshape_and_cache"] == 2
    assert "aten::index_copy_" not in counts
    assert "aten::add_" not in counts, "the host counts positions"
    assert not [output.name for output in plan.capture.outputs if "cumulative" in output.name]
    assert largest_difference(make, plan, before) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "products"), [("qwen2", 9), ("qwen3", 9), ("deepseek_v3", 14)])
def test_products_of_one_input_are_joined_as_servers_load_them(tmp_path: Path, kind: str, products: int) -> None:
    sizes = EXPERTS if kind == "deepseek_v3" else {**SIZES, "head_dim": 16}
    make = step_of_kind(tmp_path, kind, sizes, phase="prefill", batch=3, context=5, dtype="float32")
    before = capture_made(make, source=kind)
    plan = fused(before, MATCHERS)
    assert sum(op.count for op in plan.ops if op.name in ("aten::mm", "aten::addmm")) == products
    assert plan.capture is not None
    parts = ("q_a_proj", "kv_a_proj_with_mqa") if kind == "deepseek_v3" else ("q_proj", "k_proj", "v_proj")
    whole = " + ".join(f"model.layers.1.self_attn.{part}.weight" for part in parts)
    (storage,) = (each for each in plan.capture.storages if whole in each.names)
    assert before.capture is not None
    sizes_before = {name: each.size_bytes for each in before.capture.storages for name in each.names}
    assert storage.size_bytes == sum(sizes_before[name] for name in whole.split(" + "))
    assert largest_difference(make, plan, before) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "heads"), [(3, 2), (1, 2), (1, 1), (3, 1)])
def test_a_full_window_is_written_where_its_oldest_token_was(tmp_path: Path, batch: int, heads: int) -> None:
    sizes = {
        **SIZES, "head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2, "num_key_value_heads": heads,
    }  # fmt: skip
    make = step_of_kind(tmp_path, "gemma3_text", sizes, phase="decode", batch=batch, context=17, dtype="float32")
    before = capture_made(make, source="gemma3_text")
    plan = fused(before, MATCHERS)
    names = {op.name for op in plan.ops}
    assert "npu::_npu_reshape_and_cache" in names
    assert not names & {"aten::roll", "aten::index_put_", "aten::copy_", "aten::index_copy_", "aten::logical_not"}
    assert largest_difference(make, plan, before, only="logits") < 1e-5


EXPERTS = {
    **SIZES, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 1, "n_routed_experts": 8, "n_group": 4,
    "topk_group": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 1,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_groups_of_experts_and_attention_written_out_compute_the_same(tmp_path: Path, phase: str) -> None:
    make = step_of_kind(tmp_path, "deepseek_v3", EXPERTS, phase=phase, batch=3, context=17, dtype="float32")
    before = capture_made(make, source="deepseek_v3")
    plan = fused(before, MATCHERS)
    counts = summed(plan)
    assert counts["npu_moe_gating_top_k"] == 1
    assert counts["npu_fused_infer_attention_score"] == 2
    assert "aten::topk" not in {op.name for op in plan.ops}
    assert largest_difference(make, plan, before) < 1e-5


@pytest.mark.slow
def test_experts_with_biases_and_halves_of_angles_compute_the_same(tmp_path: Path) -> None:
    sizes = {
        **SIZES, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32,
        "sliding_window": 64, "layer_types": ["full_attention", "full_attention"],
    }  # fmt: skip
    make = step_of_kind(tmp_path, "gpt_oss", sizes, phase="decode", batch=3, context=17, dtype="float32")
    before = capture_made(make, source="gpt_oss")
    # Nothing here implements attention with a sink.
    plan = fused(before, [matcher for matcher in MATCHERS if matcher is not attention.written_out])
    expected = {
        "npu_rotary_mul": 4, "npu_clipped_swiglu": 2, "npu_moe_init_routing_v2": 2, "npu_grouped_matmul": 4,
        "npu_moe_finalize_routing": 2, "_npu_reshape_and_cache": 2,
    }  # fmt: skip
    assert {name: count for name, count in summed(plan).items() if "norm" not in name} == expected
    assert sum(op.count for op in plan.ops if op.name == "aten::cat") == 4, "two of angles, one of sinks in each layer"
    assert largest_difference(make, plan, before) < 1e-5
    whole = fused(before, MATCHERS)
    (sink,) = (op for op in whole.ops if op.name == "npu::npu_fused_infer_attention_score_v2")
    shapes = {arg.name: meta.shape for arg in sink.args for meta in arg.tensors if meta is not None}
    assert (shapes["key"], shapes["learnable_sink"]) == ((3, 2, 18, 16), (4,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "context", "expected"),
    [
        ({"expert_parallel": 4}, 17, {"npu_moe_distribute_dispatch_v2": 1, "npu_moe_distribute_combine_v2": 1}),
        ({"expert_parallel": 4, "tensor_parallel": 4}, 17, {"npu_moe_init_routing_v2": 1}),
    ],
)
def test_ranks_of_experts_exchange_tokens_as_servers_do(
    tmp_path: Path, ranks: dict[str, int], context: int, expected: dict[str, int]
) -> None:
    from opreplay.replay.capture.capture import capture_target
    from opreplay.replay.capture.target import target_of

    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "deepseek_v3", **EXPERTS}))
    shape = {"phase": "decode", "batch": 8, "context": context, **ranks}
    plan = fused(capture_target(target_of(f"hf:{path}", shape)), MATCHERS)
    counts = summed(plan)
    assert {name: counts[name] for name in expected} == expected
    names = {op.name for op in plan.ops}
    assert not names & {"aten::sort", "aten::index", "aten::index_add", "_c10d_functional::all_to_all_single"}
    for op in plan.ops:
        if "distribute" in op.name:
            assert op.collective is not None
            assert op.ranks == 4
            values = {arg.name: arg.value for arg in op.args}
            assert (values["ep_world_size"], values["moe_expert_num"]) == (4, 8)
        if op.name == "npu::npu_moe_init_routing_v2":
            values = {arg.name: arg.value for arg in op.args}
            assert values["active_expert_range"] == (0, 2)


def test_a_cache_that_grows_is_written_behind_its_tokens() -> None:
    def step(query: Tensor, key: Tensor, value: Tensor, past: Tensor) -> Tensor:
        keys, values = torch.cat([past, key], dim=-2), torch.cat([past + 0, value], dim=-2)
        both = torch.cat([past, value], dim=-2)
        return F.scaled_dot_product_attention(query, keys, both) + F.scaled_dot_product_attention(query, keys, values)

    rows = torch.zeros(2, 4, 1, 16)
    plan = fused(capture_made(lambda: (step, (rows, rows, rows, torch.zeros(2, 4, 31, 16))), source="here"), MATCHERS)
    (write,) = (op for op in plan.ops if op.name == "npu::_npu_reshape_and_cache")
    assert write.count == 1
    shapes = {arg.name: arg.tensors[0].shape for arg in write.args if arg.tensors[0] is not None}
    assert shapes == {
        "key": (2, 4, 16), "value": (2, 4, 16), "key_cache": (2, 32, 4, 16), "value_cache": (2, 32, 4, 16),
        "slot_indices": (2,),
    }  # fmt: skip
    assert sum(op.count for op in plan.ops if op.name == "aten::cat") == 1, "of what the step computed"


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def sum_that_is_used(x: Tensor, y: Tensor, weight: Tensor) -> Any:
    total = x + y
    return norm(total, weight), total


def square_that_is_used(x: Tensor, y: Tensor, weight: Tensor) -> Any:
    square = x.pow(2)
    return x * torch.rsqrt(square.mean(-1, keepdim=True) + 1e-5) * weight, square + y


def overwritten(x: Tensor, y: Tensor, weight: Tensor) -> Any:
    x = x.clone()
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    result = x * scale
    x.add_(y)
    return result * weight, x


def halves(x: Tensor, y: Tensor, weight: Tensor) -> Any:
    first, second = (x + y).chunk(2, -1)
    return F.silu(first) * second * weight[:4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (sum_that_is_used, {"npu_add_rms_norm": 1}),
        (square_that_is_used, {}),
        (overwritten, {}),
        (halves, {"npu_swiglu": 1}),
        (lambda x, y, weight: F.silu(x) * y, {}),
    ],
)
def test_what_something_else_needs_stays(step: Any, expected: dict[str, int]) -> None:
    torch.manual_seed(0)
    values = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)

    def make() -> Any:
        return step_of((step, values))

    before = capture_made(make, source="here")
    plan = fused(before, MATCHERS)
    assert summed(plan) == expected
    assert largest_difference(make, plan, before) < 1e-5


def one_more(x: Tensor, y: Tensor, state: Tensor) -> Any:
    wide = (x + y).bfloat16().float()
    return (
        wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * (1.0 + state[0, 0, 0].bfloat16().float())
    ).bfloat16()


def delta_rule(x: Tensor, y: Tensor, state: Tensor, *, forgets: bool = True) -> Any:
    """One token of a gated delta net of two heads, as transformers writes it."""
    query, key, value = (row[:, None, None].expand(-1, 2, 1, -1) for row in (x, y, (x - y).bfloat16()))
    decay, beta = -x[:, :2, None], y[:, :2, None].bfloat16().float()
    value, query = value.float(), query / 8**0.5
    result, decayed = torch.zeros_like(value), state * decay[:, :, 0].exp()[..., None, None]
    at = key[:, :, 0].unsqueeze(-1)
    delta = (value[:, :, 0] - ((decayed if forgets else state) * at).sum(dim=-2)) * beta[:, :, 0].unsqueeze(-1)
    learned = decayed + at * delta.unsqueeze(-2)
    result[:, :, 0] = (learned * query[:, :, 0].unsqueeze(-1)).sum(dim=-2)
    state.copy_(learned)
    return result.transpose(1, 2).to(torch.bfloat16)


def convolution(x: Tensor, y: Tensor, state: Tensor, *, overwrites: bool = True) -> Any:
    """One token of a causal convolution of 16 channels, as transformers writes it."""
    last, weight = state[:, 0, :, :4].reshape(3, 8, 4), y[0, :4].expand(8, 4).unsqueeze(1)
    joined = torch.cat([last, x.unsqueeze(-1)], dim=-1)
    if overwrites:
        last.copy_(joined[:, :, -4:])
    return F.silu(F.conv1d(joined, weight, padding=0, groups=8)[:, :, -1:]), last


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (convolution, {"causal_conv1d_update": 1}),
        (partial(convolution, overwrites=False), {}),
        (one_more, {"npu_rms_norm": 1}),
        (delta_rule, {"npu_recurrent_gated_delta_rule": 1}),
        (partial(delta_rule, forgets=False), {}),
    ],
)
def test_gated_delta_nets_are_fused(step: Any, expected: dict[str, int]) -> None:
    """What nothing here implements, and a norm whose weight is rounded before."""
    values = torch.randn(3, 8), torch.randn(3, 8), torch.randn(3, 2, 8, 8)
    plan = fused(capture_made(lambda: step_of((step, values)), source="here"), MATCHERS)
    assert summed(plan) == expected


@pytest.mark.slow
def test_what_a_backward_needs_is_not_fused() -> None:
    net, weight = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1)), nn.Parameter(torch.randn(8))

    def step(x: Tensor) -> Tensor:
        loss = (net(x) * norm(x, weight)).sum()
        loss.backward()
        return loss

    before = capture_made(lambda: (step, (torch.randn(3, 8),)), source="here")
    assert fused(before, MATCHERS) is before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "window", "expected"),
    [
        ("mistral", 6, {"sparse_mode": 4, "pre_tokens": 5, "next_tokens": 0}),
        ("mistral", 64, {"sparse_mode": 3}),
        ("qwen3", 5, {"sparse_mode": 4, "pre_tokens": 4, "next_tokens": 0}),
    ],
)
def test_a_prefill_with_a_window_builds_no_mask(
    tmp_path: Path, kind: str, window: int, expected: dict[str, int]
) -> None:
    sizes = {**SIZES, "head_dim": 16, "sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
    make = step_of_kind(tmp_path, kind, sizes, phase="prefill", batch=2, context=17, dtype="float32")
    before = capture_made(make, source=kind)
    plan = fused(before, MATCHERS)
    names = {op.name for op in plan.ops}
    assert not names & {"aten::le", "aten::gt", "aten::bitwise_and", "aten::where", "aten::logical_not", "aten::clone"}
    (attending,) = (op for op in plan.ops if op.name == "npu::npu_fused_infer_attention_score")
    told = {arg.name: arg.value for arg in attending.args if arg.name in ("sparse_mode", "pre_tokens", "next_tokens")}
    assert told == expected
    assert "atten_mask" not in {arg.name for arg in attending.args}
    assert largest_difference(make, plan, before, only="logits") < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1, -1])
def test_a_mask_of_another_pattern_stays(shift: int) -> None:
    def make() -> Any:
        def step(q: Any, k: Any, v: Any) -> Any:
            at = torch.arange(9)
            visible = (at[None, :] <= (at + shift)[:, None]) & (at[None, :] > (at - 4)[:, None])
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible[None, None])

        return step, tuple(torch.randn(1, 2, 9, 16) for _ in range(3))

    plan = fused(capture_made(make, source="shifted"), MATCHERS)
    (attending,) = (op for op in plan.ops if op.name == "npu::npu_fused_infer_attention_score")
    assert "atten_mask" in {arg.name for arg in attending.args}
