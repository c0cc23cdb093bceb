"""Bytes of a cache per token: key and value heads as servers store them, whatever a config calls their number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opreplay.replay.capture.capture import capture_target
from opreplay.replay.capture.grouped_heads import NOTE, keep_groups
from opreplay.replay.capture.serving.form import as_served
from opreplay.replay.capture.target import target_of

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

FALCON = {"model_type": "falcon", "hidden_size": 128, "num_attention_heads": 8, "num_hidden_layers": 2,
          "vocab_size": 64, "bias": False}  # fmt: skip
GROUPED = {**FALCON, "num_kv_heads": 2, "multi_query": True, "new_decoder_architecture": True}
LAYERS = {"hidden_size": 128, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 64}
LATENT = {
    **LAYERS, "intermediate_size": 64, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "q_lora_rank": 32, "kv_lora_rank": 48, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32, "v_head_dim": 32,
}  # fmt: skip
CACHED: list[tuple[str, dict[str, Any], int]] = [
    ("falcon, grouped", GROUPED, 2 * 2 * 16),
    ("falcon, one head", {**FALCON, "multi_query": True}, 2 * 1 * 16),
    ("falcon, alibi", {**FALCON, "alibi": True, "multi_query": False, "num_kv_heads": 8}, 2 * 8 * 16),
    ("gpt_bigcode", {"model_type": "gpt_bigcode", "n_embd": 128, "n_head": 8, "n_layer": 2, "vocab_size": 64}, 2 * 16),
    ("mpt", {"model_type": "mpt", "d_model": 128, "n_heads": 8, "n_layers": 2, "vocab_size": 64}, 2 * 128),
    ("bloom", {"model_type": "bloom", "hidden_size": 128, "n_head": 8, "n_layer": 2, "vocab_size": 64}, 2 * 128),
    ("glm", {**LAYERS, "model_type": "glm", "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}, 2 * 2 * 16),
    ("deepseek_v3", {**LATENT, "model_type": "deepseek_v3"}, 48 + 16),
]
"""Name, config, and numbers that a layer's cache holds for a token."""


@pytest.mark.parametrize(("config", "numbers"), [case[1:] for case in CACHED], ids=[case[0] for case in CACHED])
def test_a_cache_holds_the_heads_that_a_model_has(tmp_path: Path, config: dict[str, Any], numbers: int) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    plan = as_served(capture_target(target_of(f"hf:{path}", {"phase": "decode", "batch": 2, "context": 63})), "ascend")
    written = [op for op in plan.ops if op.name == "npu::_npu_reshape_and_cache"]
    assert written
    for op in written:
        tables = [t for arg in op.args if arg.name.endswith("_cache") for t in arg.tensors if t is not None]
        assert sum(t.shape[-2] * t.shape[-1] for t in tables) == numbers
        assert all(t.shape[:2] == (2, 64) for t in tables)
    assert plan.capture is not None
    assert (NOTE in plan.capture.notes) == (config is GROUPED)


def test_groups_give_the_results_of_repeated_heads() -> None:
    import torch
    from transformers import FalconConfig, FalconForCausalLM, StaticCache

    torch.manual_seed(0)
    model = FalconForCausalLM(FalconConfig(**{**GROUPED, "num_ln_in_parallel_attn": 2})).eval()
    ids = torch.randint(0, 64, (2, 7))

    def logits() -> tuple[torch.Tensor, torch.Size]:
        cache = StaticCache(config=model.config, max_cache_len=8)
        with torch.no_grad():
            first = model(input_ids=ids[:, :6], past_key_values=cache, use_cache=True).logits
            second = model(input_ids=ids[:, 6:], past_key_values=cache, use_cache=True).logits
        layer: Any = cache.layers[0]
        return torch.cat([first, second], 1), layer.keys.shape

    repeated, all_heads = logits()
    assert keep_groups(model)
    grouped, heads = logits()
    assert (all_heads, heads) == ((2, 8, 8, 16), (2, 2, 8, 16))
    torch.testing.assert_close(grouped, repeated)
    assert not keep_groups(model)
