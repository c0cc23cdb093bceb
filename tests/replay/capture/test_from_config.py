"""Models of a config file: what they are called with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.config_models import KINDS
from opreplay.replay.capture import from_config
from opreplay.replay.capture.capture import capture_target
from opreplay.replay.capture.from_config import cache_inputs
from opreplay.replay.capture.target import target_of
from opreplay.replay.ir.model import ReplayPlan
from opreplay.traces.errors import UsageError


class Newer:
    def forward(self, input_ids: Any, cache: Any = None, use_cache: bool = False, logits_to_keep: int = 0) -> Any: ...


class Older:
    def forward(self, input_ids: Any, past_key_values: Any = None, **others: Any) -> Any: ...


class Recurrent:
    def forward(self, input_ids: Any, cache_params: Any = None, **others: Any) -> Any: ...


class Without:
    def forward(self, input_ids: Any, use_cache: bool = False) -> Any: ...


@pytest.mark.parametrize(
    ("model", "name"), [(Newer(), "cache"), (Older(), "past_key_values"), (Recurrent(), "cache_params")]
)
def test_the_cache_is_named_as_the_model_names_it(model: Any, name: str) -> None:
    cache = object()
    assert cache_inputs(model, cache) == {name: cache, "use_cache": True, "logits_to_keep": 1}


def test_a_model_that_takes_no_cache_gets_none() -> None:
    assert cache_inputs(Without(), object()) == {"use_cache": True}


def decode_of(folder: Path, kind: str) -> ReplayPlan:
    """The plan of a decode of a small model after 24 tokens of each of two sequences."""
    (config,) = (kinds[kind] for kinds in KINDS.values() if kind in kinds)
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **config}))
    return capture_target(target_of(f"hf:{path}", {"phase": "decode", "batch": 2, "context": 24}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "llama",
        "qwen3_moe",
        "deepseek_v3",
        "mistral",
        "gemma3_text",
        "opt",
        "falcon",
        "jamba",
        "bert",
        "mamba",
        "mamba2",
    ],
)
def test_a_cache_that_one_token_filled_makes_the_calls_of_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    captured = decode_of(tmp_path, kind)
    monkeypatch.setattr(from_config, "tokens_that_fill", lambda cache, config, context: context)
    full = decode_of(tmp_path, kind)
    assert captured.capture is not None
    assert full.capture is not None
    assert (captured.ops, captured.sequence) == (full.ops, full.sequence)
    assert captured.capture.peaks == full.capture.peaks


@pytest.mark.slow
def test_a_recurrence_decodes_from_its_state(tmp_path: Path) -> None:
    """The state was not passed, so a token was computed as a first chunk, padded to the chunk's size."""
    assert "aten::cumsum" not in {op.name for op in decode_of(tmp_path, "mamba2").ops}


def test_a_model_that_writes_to_no_cache_is_not_decoded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cache"):
        decode_of(tmp_path, "rwkv")


def test_a_table_of_biases_by_distance_limits_the_tokens(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 1, "max_seq_len": 24}))
    with pytest.raises(UsageError, match="24 positions, but 25 tokens"):
        capture_target(target_of(f"hf:{path}", {"phase": "decode", "batch": 2, "context": 24}))


def test_a_window_is_filled_and_a_cache_of_all_tokens_is_not() -> None:
    turning, sliding = SimpleNamespace(rope_theta=1e4), SimpleNamespace(layers=[SimpleNamespace(is_sliding=True)])
    every = SimpleNamespace(layers=[SimpleNamespace(is_sliding=False)])
    recurrent = SimpleNamespace(layers=[SimpleNamespace(conv_states={})])
    with FakeTensorMode():
        assert from_config.tokens_that_fill(every, turning, 24) == 1
        assert from_config.tokens_that_fill(sliding, turning, 24) == 24
        assert from_config.tokens_that_fill(every, SimpleNamespace(), 24) == 24
        assert from_config.tokens_that_fill(recurrent, SimpleNamespace(), 24) == 1
    assert from_config.tokens_that_fill(every, turning, 24) == 24


def test_the_tokens_of_an_encoder_and_a_decoder_are_said(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for kind, said in (("t5", True), ("llama", False)):
        (config,) = (kinds[kind] for kinds in KINDS.values() if kind in kinds)
        path.write_text(json.dumps({"model_type": kind, "is_encoder_decoder": kind == "t5", **config}))
        notes = target_of(f"hf:{path}", {"context": 24}).notes
        assert any("decoder each take 24 tokens" in note for note in notes) is said


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, None),
        ({"quantization_config": {}}, None),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "\x1b[2J"}}, "of unknown method"),
        ({"quantization_config": [], "text_config": {"quantization_config": {"quant_method": "awq"}}}, "awq"),
    ],
)
def test_a_quantization_that_the_config_names_is_said_to_be_ignored(
    tmp_path: Path, given: dict[str, Any], named: str | None
) -> None:
    """A config of 8 bits was answered in bfloat16, with twice the memory, and nothing said so."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **KINDS["text decoder"]["llama"], **given}))
    notes = [note for note in target_of(f"hf:{path}", {}).notes if "quantization" in note]
    assert len(notes) == (named is not None)
    assert all(f"({named})" in note and "bfloat16" in note for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes", "gathers"),
    [
        ("gpt_oss", {}, 0),  # sinks, one for each head
        ("olmo2", {}, 4),  # norms of queries and of keys over all heads, in two layers
        ("olmoe", {"num_key_value_heads": 1, "head_dim": 8}, 2),  # each rank has the one head of keys
        ("cohere", {"use_qk_norm": True}, 0),  # norms with weights for each head
        ("glm4", {"attention_bias": False, "head_dim": 8}, 0),  # gate and up in one product
    ],
)
@pytest.mark.parametrize("phase", ["decode", "train"])
def test_what_an_attention_has_for_each_head_is_split_over_ranks(
    tmp_path: Path, kind: str, changes: dict[str, Any], gathers: int, phase: str
) -> None:
    """Sizes did not match, as if the model were wrong."""
    config = {**KINDS["text decoder"]["llama"], **next((k[kind] for k in KINDS.values() if kind in k), {}), **changes}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **config}))
    shape = {"phase": phase, "batch": 2, "context": 16}
    whole, half = (capture_target(target_of(f"hf:{path}", {**shape, "tensor_parallel": ranks})) for ranks in (1, 2))
    assert whole.capture is not None
    assert half.capture is not None
    assert 0.5 <= half.capture.flops["forward"] / whole.capture.flops["forward"] < 0.6
    gathered = sum(op.count for op in half.ops if op.name == "_c10d_functional::all_gather_into_tensor")
    assert gathered == gathers + 1  # and the logits
