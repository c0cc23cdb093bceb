"""A model of which nothing but its config file is there: phases, experts over ranks, memory, and clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.conftest import Console

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip
LLAMA_405B = {
    **LLAMA, "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
"""Public sizes: arXiv 2407.21783, table 3."""
LLAMA_8B = {
    **LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 8704,
}  # fmt: skip
"""Llama 3 8B with 2 of its 32 layers; the same source."""
LAYERS = 2 * 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
HEAD = 2 * 4096 * 128256
"""Bytes of their parameters in bfloat16, norms left out."""
MIXTURE = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 64,
    "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "vocab_size": 128,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Any:
    def write(held: object, name: str = "config.json") -> str:
        (tmp_path / name).write_text(json.dumps(held))
        return f"hf:{tmp_path / name}"

    return write


def captured(console: Console, *arguments: object) -> dict[str, Any]:
    return json.loads(console("capture", *arguments, "--format", "json").stdout)


@pytest.mark.slow
def test_a_decode_step_and_its_check(console: Console, config: Any, tmp_path: Path) -> None:
    target, plan = config(LLAMA), tmp_path / "decode.plan.json"
    shape = ("--phase", "decode", "--batch", "3", "--context", "16", "--dtype", "float32")
    found = captured(console, target, *shape, "--check", "-o", plan)
    assert found["equal"] is True
    assert found["outputs"]
    # Two layers, key and value: 3 sequences of 17 tokens, 2 heads of 16, 4 bytes each.
    cache = 2 * 2 * 3 * 17 * 2 * 16 * 4
    assert cache <= found["peaks"][0]["by_kind"]["input"] <= cache + 100
    assert "memory: fits 910b3" in console("simulate", plan, "--soc", "910b3", "--set", "no_cache=true").stdout


@pytest.mark.slow
def test_training_and_prefill_differ_in_phases(console: Console, config: Any) -> None:
    target = config(LLAMA)
    training = captured(console, target, "--phase", "train", "--batch", "2", "--context", "8")
    assert set(training["flops"]) == {"forward", "backward", "optimizer"}
    assert 2 < training["flops"]["backward"] / training["flops"]["forward"] < 2.5, (
        "attention computes its weights again"
    )
    prefill = captured(console, target, "--phase", "prefill", "--context", "32")
    assert set(prefill["flops"]) == {"forward"}


@pytest.mark.slow
def test_a_table_of_positions_has_an_end(console: Console, config: Any) -> None:
    target = config(
        {"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 128, "n_positions": 64}
    )
    captured(console, target, "--phase", "decode", "--context", "63")
    assert "64 positions" in console("capture", target, "--phase", "decode", "--context", "64", code=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "bound_us"),
    [
        # Two layers and the head are read once, and keys and values of 8,193 tokens of 32 sequences; 1.6 TB/s.
        (("--phase", "decode", "--batch", 32, "--context", 8192), (LAYERS + HEAD + 2 * 32 * 8193 * 4096) / 1.6e6),
        # Each parameter of a layer is multiplied and added once for each of 4,096 tokens; 313 TFLOP/s.
        (("--phase", "prefill", "--batch", 1, "--context", 4096), LAYERS * 4096 / 313e6),
    ],
)
def test_a_step_takes_little_more_than_its_bytes_or_products_need(
    console: Console, config: Any, tmp_path: Path, shape: tuple[object, ...], bound_us: float
) -> None:
    plan = tmp_path / "plan.json"
    console("capture", config(LLAMA_8B), *shape, "--fused", "ascend", "-o", plan)
    shown = console("simulate", plan, "--soc", "910b3", "--set", "no_cache=true", "--format", "json").stdout
    assert 1.0 < json.loads(shown)["socs"]["910b3"]["total_us"] / bound_us < 1.8


@pytest.mark.slow
def test_a_model_beyond_this_machine_is_captured(console: Console, config: Any, tmp_path: Path) -> None:
    target, plan = config(LLAMA_405B), tmp_path / "plan.json"
    found = captured(console, target, "--phase", "decode", "--batch", "8", "--context", "2048", "-o", plan)
    parameters = found["peaks"][0]["by_kind"]["parameter"]
    assert parameters == pytest.approx(2 * 405.85e9, rel=1e-4)
    # Each parameter of a product is multiplied and added once for each token; the embedding is none, attention is more.
    assert found["flops"]["forward"] == pytest.approx(8 * parameters, rel=0.02)
    shown = console("simulate", plan, "--soc", "910b3", "--set", "no_cache=true").stdout
    assert "does NOT fit 910b3" in shown


@pytest.mark.slow
def test_experts_are_spread_over_ranks(console: Console, config: Any, tmp_path: Path) -> None:
    target, plan = config(MIXTURE), tmp_path / "plan.json"
    whole = captured(console, target, "--phase", "decode", "--batch", "8", "--context", "16")
    found = captured(
        console, target, "--phase", "decode", "--batch", "8", "--context", "16", "--expert-parallel", "8", "-o", plan
    )
    # Two layers of 16 experts, of which 14 are elsewhere: gate, up and down of 64 x 32, 2 bytes each.
    gone = whole["peaks"][0]["by_kind"]["parameter"] - found["peaks"][0]["by_kind"]["parameter"]
    assert gone == 2 * 14 * 3 * 64 * 32 * 2
    assert any("balanced" in note for note in found["notes"])
    held = json.loads(plan.read_text())
    exchanges = [op for op in held["ops"] if op["name"] == "_c10d_functional::all_to_all_single"]
    # Tokens out, chosen experts, results back, in two layers.
    assert sum(op["count"] for op in exchanges) == 3 * 2
    assert {op["ranks"] for op in exchanges} == {8}
    shown = console("simulate", plan, "--soc", "910c", "--set", "no_cache=true", "--format", "json").stdout
    assert json.loads(shown)["socs"]["910c"]["by_family_us"]["Collective"] > 0
    assert "divide" in console("capture", target, "--expert-parallel", "3", code=2).stderr
    assert "no experts" in console("capture", config(LLAMA, "dense.json"), "--expert-parallel", "2", code=2).stderr
    wrong = console("capture", target, "--expert-parallel", "4", "--set", "world_size is 8", code=2).stderr
    assert "world_size is 8" in wrong


def collectives(plan: Path) -> dict[tuple[str, int], int]:
    """Calls by kind and ranks."""
    calls: dict[tuple[str, int], int] = {}
    for op in json.loads(plan.read_text())["ops"]:
        if (collective := op.get("collective")) is not None:
            key = collective["kind"], op["ranks"]
            calls[key] = calls.get(key, 0) + op["count"]
    return calls


@pytest.mark.slow
def test_sizes_are_what_timeline_says_of_each(console: Console, config: Any, tmp_path: Path) -> None:
    target, plan = config(LLAMA), tmp_path / "plan.json"
    vary = ("--vary", "batch=1,3", "context=16,1k", "--soc", "910b3", "--soc", "910c")
    options = ("--phase", "decode", "--fused", "ascend")
    rows = json.loads(console("capture", target, *options, *vary, "--format", "json").stdout)["rows"]
    assert [(row["batch"], row["context"], row["soc"]) for row in rows] == [
        (batch, context, soc) for batch in (1, 3) for context in (16, 1024) for soc in ("910b3", "910c")
    ]
    assert all(row["fits"] for row in rows)
    console("capture", target, *options, "--batch", "3", "--context", "1024", "-o", plan)
    shown = console("timeline", plan, "--soc", "910c", "--what-if", "graph", "--format", "json").stdout
    alone = json.loads(shown)
    last, step_us = rows[-1], alone["socs"]["910c"]["step_us"]
    assert last["token_ms"] == pytest.approx(step_us / 1e3 + last["server_ms"])
    assert last["tokens_per_s"] == pytest.approx(3e3 / last["token_ms"])
    assert last["graph_token_ms"] == pytest.approx(alone["what_if"][0]["socs_us"]["910c"] / 1e3 + last["server_ms"])
    assert last["low_ms"] < last["graph_high_ms"] < last["token_ms"] + last["server_ms"]
    shown = console("capture", target, *options, *vary).stdout
    head, table, *_ = (part.splitlines() for part in shown.strip().split("\n\n"))
    assert (len(head), head[0].startswith("config.json decode on 910b3, 910c: ")) == (2, True)
    assert len([line for line in table if line.lstrip()[:1].isdigit()]) == len(rows)
    assert max(map(len, table)) <= 80
    assert {"context", "device", "memory,", "fit"} <= set(table[0].split())
    (prefill,) = json.loads(
        console("capture", target, "--vary", "context=16", "--soc", "910c", "--format", "json").stdout
    )["rows"]
    assert prefill["server_ms"] == 0
    for wrong in ("batch=0", "heads=2", "batch", "batch=x"):
        console("capture", target, "--vary", wrong, "--soc", "910c", code=2)
    ranks = ("--tensor-parallel", "2", "--cluster", "1x1x910c", "--vary", "context=16")
    assert "2 ranks on 1 die" in " ".join(console("capture", target, *ranks).stdout.split())
    (by_default,) = json.loads(console("capture", target, "--vary", "context=16", "--format", "json").stdout)["rows"]
    assert by_default["soc"] == "910b3"
    console("capture", target, "context=1k", code=2)
    # Stages take a token one after the other, each its own time, and each has another batch.
    steps_us: list[float] = []
    for rank in ("0", "1"):
        stage = ("--pipeline-parallel", "2", "--set", f"rank={rank}", "-o", plan, "--force")
        console("capture", target, *options, *stage)
        shown = console("timeline", plan, "--soc", "910c", "--format", "json").stdout
        steps_us.append(json.loads(shown)["socs"]["910c"]["step_us"])
    varied = ("--pipeline-parallel", "2", "--vary", "batch=1", "--soc", "910c", "--format", "json")
    found = json.loads(console("capture", target, *options, *varied).stdout)
    (row,) = found["rows"]
    assert any("all pipeline stages (all captured)" in note for note in found["notes"])
    assert not any("in one of 2 stages" in note for note in found["notes"])
    (fused,) = (note for note in found["notes"] if note.startswith("calls are fused"))
    assert "2 npu::npu_swiglu" in fused, "those of all stages"
    assert row["token_ms"] == pytest.approx(sum(steps_us) / 1e3 + row["server_ms"])
    assert row["tokens_per_s"] == pytest.approx(2e3 / row["token_ms"])


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["decode", "train"])
def test_widths_are_split_over_tensor_ranks(console: Console, config: Any, tmp_path: Path, phase: str) -> None:
    target, plan = config(LLAMA), tmp_path / "plan.json"
    shape = ("--phase", phase, "--batch", "2", "--context", "16")
    whole = captured(console, target, *shape)
    half = captured(console, target, *shape, "--tensor-parallel", "2", "-o", plan)
    assert 2 * half["flops"]["forward"] == whole["flops"]["forward"]
    # Norms alone are on every rank: two a layer and the last.
    norms = 5 * 64 * 2
    parameters, part = (found["peaks"][0]["by_kind"]["parameter"] for found in (whole, half))
    assert 2 * (part - norms) == parameters - norms
    # Of the embedding and after attention and MLP of two layers; as many before them and the head come back.
    assert collectives(plan) == {("all_reduce", 2): 5 if phase == "decode" else 10, ("all_gather", 2): 1}
    shown = console("timeline", plan, "--soc", "910c", "--format", "json").stdout
    assert json.loads(shown)["socs"]["910c"]["communication_us"] > 0


@pytest.mark.slow
def test_experts_and_latent_heads_are_split_over_tensor_ranks(console: Console, config: Any, tmp_path: Path) -> None:
    target, plan = config(MIXTURE), tmp_path / "plan.json"
    shape = ("--phase", "decode", "--context", "16")
    whole = captured(console, target, *shape)
    half = captured(console, target, *shape, "--tensor-parallel", "2", "-o", plan)
    gone = whole["peaks"][0]["by_kind"]["parameter"] - half["peaks"][0]["by_kind"]["parameter"]
    attention = 3 * 4 * (24 * 24 + 16 * 32 + 16 * 64)  # layers, heads: queries, keys and values, output
    widths = 3 * 64 * (96 + 2 * 32 + 2 * 16 * 32)  # one dense layer, two of a shared and 16 chosen experts
    assert gone == 2 * (attention + widths + 2 * 128 * 64) // 2
    # The embedding, three attentions, one MLP, and chosen and shared experts of two layers.
    assert collectives(plan) == {("all_reduce", 2): 9, ("all_gather", 2): 1}
    # Whole experts in place of their halves: as many bytes, and as many tokens summed.
    ranks = ("--tensor-parallel", "2", "--expert-parallel", "2")
    for phase in ("decode", "train"):
        shape = ("--phase", phase, "--batch", "2", "--context", "16", "--force", "-o", plan)
        part = captured(console, target, *shape, "--tensor-parallel", "2")
        summed = collectives(plan)
        spread = captured(console, target, *shape, *ranks)
        assert collectives(plan) == summed
        assert spread["flops"]["forward"] == part["flops"]["forward"]
        assert spread["peaks"][0]["by_kind"]["parameter"] == part["peaks"][0]["by_kind"]["parameter"]


DELTA_NETS = {
    "model_type": "qwen3_next", "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 128,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5_moe_text"])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_heads_of_gated_delta_nets_are_split(
    console: Console, config: Any, tmp_path: Path, kind: str, phase: str
) -> None:
    target, plan = config({**DELTA_NETS, "model_type": kind}), tmp_path / "plan.json"
    shape = ("--phase", phase, "--context", "16")
    whole = captured(console, target, *shape)
    half = captured(console, target, *shape, "--tensor-parallel", "2", "-o", plan)
    gone = whole["peaks"][0]["by_kind"]["parameter"] - half["peaks"][0]["by_kind"]["parameter"]
    keys, values = 2 * 2 * 8, 4 * 16
    recurrent = 64 * (keys + 2 * values + 2 * 4) + 4 * (keys + values) + 2 * 4 + 64 * values
    attention = 64 * 16 * (2 * 4 + 2 * 2 + 4)  # queries with their gates, keys and values, output
    widths = 2 * 3 * 64 * 32 * (1 + 4)
    assert gone == 2 * (recurrent + attention + widths + 2 * 128 * 64) // 2
    # The embedding, and two layers: attention, chosen experts and the shared one.
    assert collectives(plan) == {("all_reduce", 2): 7, ("all_gather", 2): 1}


@pytest.mark.slow
def test_layers_are_split_over_stages(console: Console, config: Any, tmp_path: Path) -> None:
    target, plan = config({**LLAMA, "num_hidden_layers": 3}), tmp_path / "plan.json"
    ranks = ("--tensor-parallel", "2", "--pipeline-parallel", "2")
    shape = ("--phase", "train", "--context", "16", *ranks, "--force", "-o", plan)
    whole = captured(console, target, "--phase", "train", "--context", "16", "--tensor-parallel", "2")
    first = captured(console, target, *shape)
    assert collectives(plan)["send", 4] == collectives(plan)["recv", 4] == 1
    last = captured(console, target, *shape, "--rank", "3")
    assert collectives(plan)["send", 4] == collectives(plan)["recv", 4] == 1
    sums = first["flops"]["forward"] + last["flops"]["forward"]
    assert sums == whole["flops"]["forward"]
    parts = sum(found["peaks"][0]["by_kind"]["parameter"] for found in (first, last))
    assert parts == whole["peaks"][0]["by_kind"]["parameter"]


@pytest.mark.parametrize(
    "options",
    [
        ("--tensor-parallel", "3"),
        ("--pipeline-parallel", "4"),
        ("--tensor-parallel", "2", "--expert-parallel", "4"),
        ("--pipeline-parallel", "2", "--expert-parallel", "4"),
        ("--tensor-parallel", "2", "--set", "world_size is 8"),
    ],
)
def test_what_does_not_divide_is_refused(console: Console, config: Any, options: tuple[str, ...]) -> None:
    assert "Traceback" not in console("capture", config(MIXTURE), *options, code=2).stderr


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3", "minicpm3"])
def test_absorbed_latent_attention_gives_what_the_expanded_one_gives(config: Any, kind: str) -> None:
    """Logits of both forms; `hf:` names a file of its own."""
    import torch

    from opreplay.replay.capture.from_config import Mla, Shape, maker

    path = config({**MIXTURE, "model_type": kind, "architectures": [], "topk_method": "greedy"}).removeprefix("hf:")

    def logits(mla: Mla) -> Any:
        torch.manual_seed(0)
        return maker(path, Shape(phase="decode", batch=3, context=17, dtype="float32", mla=mla))().run().logits

    torch.testing.assert_close(logits("absorbed"), logits("expanded"))


@pytest.mark.slow
def test_weights_in_8_bits_take_half_and_in_4_bits_a_quarter(console: Console, config: Any, tmp_path: Path) -> None:
    plan, dense = tmp_path / "plan.json", config(LLAMA)
    options = ("--phase", "decode", "--context", "16", "--fused", "ascend", "--force", "-o", plan)

    def bytes_of(target: str, *more: str) -> tuple[int, dict[str, Any]]:
        captured(console, target, *options, *more)
        kinds = json.loads(plan.read_text())
        ops = {op["name"]: op for op in kinds["ops"]}
        return kinds["capture"]["peaks"][0]["by_kind"]["parameter"], ops

    whole, _ = bytes_of(dense)
    # Queries, keys, values, output, and a gate, up and down projection of two layers, and a scale a column.
    rows, columns, layers = LLAMA["hidden_size"], LLAMA["intermediate_size"], LLAMA["num_hidden_layers"]
    keys = rows * LLAMA["num_key_value_heads"] // LLAMA["num_attention_heads"]
    numbers = layers * (2 * rows * rows + 2 * rows * keys + 3 * rows * columns)
    scales = layers * (2 * rows + 2 * keys + 2 * columns + rows)
    eight, ops = bytes_of(dense, "--weights", "w8a8")
    assert whole - eight == numbers - 2 * scales
    assert ops["npu::npu_quant_matmul"]["args"][0]["tensors"][0]["dtype"] == "int8"
    assert sum(op["count"] for op in ops.values() if op["name"] == "aten::mm") == 1, "the head"
    simulated = json.loads(console("simulate", plan, "--soc", "910b3", "--format", "json").stdout)
    assert simulated["covered_share"] == 1
    # Experts alone: 16 of 64 x 32, three matrices each, in two layers.
    target = config(MIXTURE)
    mixture, _ = bytes_of(target)
    four, ops = bytes_of(target, "--weights", "w4a16")
    numbers = 2 * 16 * 3 * 64 * 32
    assert mixture - four == 2 * numbers - numbers // 2 - 2 * numbers // 32
    assert ops["npu::npu_grouped_matmul"]["args"][1]["tensors"][0]["dtype"] == "int32"
    simulated = json.loads(console("simulate", plan, "--soc", "910b3", "--format", "json").stdout)
    assert simulated["covered_share"] == 1
    console("capture", dense, "--phase", "train", "--context", "16", "--weights", "w8a8", code=2)


@pytest.mark.slow
def test_fused_kernels_of_a_server_stand_in_the_plan(console: Console, config: Any, tmp_path: Path) -> None:
    target, shape = config(MIXTURE), ("--phase", "decode", "--batch", "2", "--context", "64")
    plain, plan = captured(console, target, *shape), tmp_path / "fused.plan.json"
    fused = captured(console, target, *shape, "--fused", "ascend", "--check", "-o", plan)
    assert fused["equal"] is True, "what is checked is the plan before"
    assert len(json.loads(plan.read_text())["sequence"]["calls"]) < plain["calls"]
    assert "npu::npu_fused_infer_attention_score" in fused["notes"][-1]
    names = {op["name"] for op in json.loads(plan.read_text())["ops"]}
    assert {"npu::npu_add_rms_norm", "npu::npu_interleave_rope", "npu::npu_swiglu"} <= names
    assert (
        "simulated 100.0 % of ops by rules"
        in console("simulate", plan, "--soc", "910b3", "--set", "no_cache=true").stdout
    )


@pytest.mark.slow
def test_absorbed_latents_are_not_expanded(console: Console, config: Any) -> None:
    target, shape = config(MIXTURE), ("--phase", "decode", "--batch", "2", "--context", "256")
    absorbed, expanded = captured(console, target, *shape), captured(console, target, *shape, "--set", "mla=expanded")
    assert 3 * absorbed["flops"]["forward"] < expanded["flops"]["forward"]
    assert absorbed["notes"][1] != expanded["notes"][1]
    # Keys and values of 4 heads, 16 + 8 and 16 wide, of 2 sequences of 257 tokens, in 2 bytes.
    assert expanded["peaks"][0]["by_kind"]["activation"] > 2 * 257 * 4 * 40 * 2
    assert absorbed["peaks"][0]["by_kind"]["activation"] < 2 * 257 * 4 * 40


def test_what_is_no_config_says_so(console: Console, config: Any, tmp_path: Path) -> None:
    assert "does not know model_type 'nothing'" in console("capture", config({"model_type": "nothing"}), code=2).stderr
    assert "no model_type" in console("capture", config([]), code=2).stderr
    assert r"\x0a" not in console("capture", config({**LLAMA, "num_attention_heads": 3}), code=2).stderr
    assert "cannot read" in console("capture", f"hf:{tmp_path / 'absent.json'}", code=2).stderr
    (tmp_path / "text.json").write_text("{")
    assert "not JSON" in console("capture", f"hf:{tmp_path / 'text.json'}", code=2).stderr
    (tmp_path / "train.py").write_text("def make(): return (print, ())")
    assert "--batch needs hf" in console("capture", f"{tmp_path / 'train.py'}:make", "--batch", "2", code=2).stderr


def test_code_that_a_config_names_is_not_run(console: Console, config: Any) -> None:
    hostile = {**LLAMA, "auto_map": {"AutoModelForCausalLM": "evil--modeling.Evil"}, "architectures": ["os"]}
    found = captured(console, config(hostile), "--context", "8")
    assert found["calls"] > 0


VIT = {
    "model_type": "vit",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
}
BERT = {
    "model_type": "bert",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
SOUND = {
    "model_type": "wav2vec2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": [32] * 7,
}


@pytest.mark.slow
@pytest.mark.parametrize("held", [VIT, BERT, SOUND], ids=lambda held: held["model_type"])
def test_inputs_follow_from_what_the_model_takes(console: Console, config: Any, held: dict[str, Any]) -> None:
    """Images, tokens whose embedding is tied to the head, and sound."""
    context = ("--context", "8") if held is BERT else ()
    assert captured(console, config(held), *context, "--dtype", "float32", "--check")["equal"] is True


@pytest.mark.slow
def test_a_translator_trains_where_its_config_names_no_first_token(console: Console, config: Any) -> None:
    fields = {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    facts = captured(console, config(fields), "--phase", "train", "--context", "8")
    assert {"forward", "backward", "optimizer"} <= {peak["phase"] for peak in facts["peaks"]}


def test_an_image_model_does_not_decode(console: Console, config: Any) -> None:
    refused = console("capture", config(VIT), "--phase", "decode", code=2)
    assert "vit cannot generate token by token" in refused.stderr


def test_a_model_of_the_hub_is_taken_from_its_cache_alone(console: Console) -> None:
    refused = console("capture", "hf:no-such/model", code=2)
    assert "neither a file nor a model in the hub's cache" in refused.stderr
