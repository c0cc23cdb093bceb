"""A plan in the form that servers run is written, read back and predicted, whatever the kind of model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.exams.bounds import CASES, Case
from benchmarks.exams.configs_of import config_of, layers_of
from opreplay import simulate
from opreplay.cli.main import opreplay
from opreplay.cli.terminal.console import json_text
from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.simulate.devices import simulate_plan
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.capture.capture import capture_made, capture_target
from opreplay.replay.capture.serving.form import as_served
from opreplay.replay.capture.target import target_of
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ir.plan_file import load_plan
from opreplay.replay.ops.work.expected import expected_contents
from opreplay.replay.report.text import fusing
from opreplay.replay.timeline.captured import captured_timeline

TINY = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 128, "num_key_value_heads": 2,
}  # fmt: skip
KINDS = [
    "llama", "qwen3", "mistral", "phi3", "gemma2", "gemma3_text", "olmo2", "cohere", "gpt2", "gptj", "bloom", "falcon",
    "mixtral", "qwen2_moe", "olmoe", "gpt_oss", "granitemoe", "deepseek_v2", "deepseek_v3", "llama4_text", "bert",
    "t5", "vit", "whisper", "clip", "qwen2_5_vl", "mamba2", "recurrent_gemma", "jamba", "lfm2", "patchtst",
]  # fmt: skip
"""Of `benchmarks/config_models.py`."""
OWN = """
import torch
from torch.nn import functional as F


def make():
    return lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], (torch.zeros(4, 64),)
"""
ONE_FORWARD = {"t5", "vit", "whisper", "clip", "patchtst"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_plan_can_be_read_back(tmp_path: Path, kind: str) -> None:
    from benchmarks.config_models import CONFIGS
    from opreplay.replay.capture.from_config import Shape, maker

    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": kind, **CONFIGS[kind]}))
    shape = Shape(phase="prefill" if kind in ONE_FORWARD else "decode", batch=2, context=24)
    plan = capture_made(maker(str(config), shape), source=kind)
    for weights in (None, "w8a8"):
        served = as_served(plan, fused="ascend", weights=weights)
        file = tmp_path / "plan.json"
        file.write_text(json_text(served))
        back = load_plan(str(file))
        assert json_text(back) == json_text(served)
        assert_predicted(back)


def assert_predicted(plan: ReplayPlan) -> None:
    """Check that `simulate` and `timeline` predict a plan."""
    steps = simulate_plan(PlannedStep(plan, expected_contents()), [load_device("910b3")])
    assert steps[0].total_us > 0
    assert captured_timeline(plan, steps).socs["910b3"].step_us > 0


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.config)
def test_a_fused_plan_of_a_public_config_can_be_read_back(tmp_path: Path, case: Case, phase: str) -> None:
    config = config_of(case.config)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "num_hidden_layers": layers_of(config)[0]}))
    fields = {"phase": phase, "batch": 2, "context": 256, **case.ranks}
    file = tmp_path / "plan.json"
    file.write_text(json_text(as_served(capture_target(target_of(f"hf:{path}", fields)), fused="ascend")))
    back = load_plan(str(file))
    assert back.capture is not None
    assert (back.capture.fused, back.capture.unfused) == (True, ())
    assert_predicted(back)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("softcap", "unfused", "title"),
    [(50.0, ["attention"], ", fused\nexcept attention"), (None, [], ", fused")],
)
def test_a_part_that_no_kernel_replaces_is_named(
    tmp_path: Path, softcap: float | None, unfused: list[str], title: str
) -> None:
    path = tmp_path / "config.json"
    sizes = {**TINY, "model_type": "gemma2", "head_dim": 16, "attn_logit_softcapping": softcap}
    path.write_text(json.dumps(sizes))
    sizes = ("--phase", "decode", "--vary", "batch=2", "context=64")
    found = told("capture", f"hf:{path}", *sizes)
    (row,) = found["rows"]
    assert (row["fused"], row["unfused"]) == (True, unfused)
    assert any("softcap" in note for note in found["notes"]) is bool(unfused)
    assert fusing(row["fused"], row["unfused"]) == title


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bloom", "hidden_size": 64, "n_head": 4, "n_layer": 2, "vocab_size": 128},
        {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 128},
    ],
    ids=lambda config: config["model_type"],
)
def test_attention_with_biases_by_distance_is_named(tmp_path: Path, config: dict[str, Any]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    plan = as_served(capture_target(target_of(f"hf:{path}", {"phase": "decode", "batch": 2, "context": 24})))
    assert plan.capture is not None
    assert plan.capture.unfused == ("attention",)


@pytest.mark.slow
def test_a_head_that_shares_the_weight_of_the_embeddings_is_not_quantised(tmp_path: Path) -> None:
    """GPT-2's, MPT's and GPTBigCode's was, since the first name of its weight is that of the embeddings: wte."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 128}))
    plan = capture_target(target_of(f"hf:{path}", {"phase": "decode", "batch": 2, "context": 24}))
    counts = {op.name: op.count for op in as_served(plan, weights="w8a8").ops if op.name == "aten::mm"}
    assert counts == {"aten::mm": 1}


@pytest.mark.slow
def test_scores_that_a_fused_attention_does_not_hold_need_no_memory(tmp_path: Path) -> None:
    """A prefill of gpt-oss did not fit, because all scores of an attention with sinks counted."""
    from benchmarks.config_models import CONFIGS

    path, tokens = tmp_path / "config.json", 512
    path.write_text(json.dumps({"model_type": "gpt_oss", **CONFIGS["gpt_oss"]}))
    plan = capture_target(target_of(f"hf:{path}", {"context": tokens}))
    (before,), (after,) = (one.capture.peaks for one in (plan, as_served(plan)) if one.capture is not None)
    scores = 4 * tokens * tokens * 2  # heads, in two bytes
    assert before.by_kind["activation"] > 2 * scores
    cache = 2 * 2 * tokens * 2 * 8 * 2  # layers, keys and values, heads, width
    assert cache < after.by_kind["activation"] < scores
    assert after.peak_bytes == sum(after.by_kind.values())
    assert after.by_kind["parameter"] == before.by_kind["parameter"]


@pytest.mark.slow
def test_experts_that_compute_all_tokens_are_named(tmp_path: Path) -> None:
    """Transformers runs each expert of Llama 4 on each token, and nothing said that servers do not."""
    from benchmarks.config_models import CONFIGS

    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama4_text", **CONFIGS["llama4_text"]}))
    capture = as_served(capture_target(target_of(f"hf:{path}", {"context": 24})), fused="ascend").capture
    assert capture is not None
    assert "experts" in capture.unfused
    assert any("each expert computes all tokens" in note for note in capture.notes)


@pytest.mark.slow
def test_sparse_attention_that_reads_all_tokens_is_named(tmp_path: Path) -> None:
    """A token after many others took several times as long as servers need, and nothing said so."""
    from benchmarks.config_models import CONFIGS

    path = tmp_path / "config.json"
    indexer = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
    path.write_text(json.dumps({**CONFIGS["deepseek_v3"], "model_type": "deepseek_v32", **indexer}))
    plan = capture_target(target_of(f"hf:{path}", {"phase": "decode", "context": 24}))
    capture = as_served(plan, fused="ascend").capture
    assert capture is not None
    assert "sparse attention" in capture.unfused


def told(*arguments: str) -> Any:
    done = CliRunner(env={"COLUMNS": "120"}).invoke(opreplay, [*arguments, "--format", "json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return f"hf:{path}"


@pytest.mark.slow
def test_steps_of_a_config_are_fused_unless_it_is_refused(config: str) -> None:
    sizes = ("--vary", "batch=2", "context=64")
    (fused,), (plain,), (asked,) = (
        told("capture", config, "--phase", "decode", *sizes, *options)["rows"]
        for options in ((), ("--fused", "none"), ("--fused", "ascend"))
    )
    assert (fused["fused"], plain["fused"]) == (True, False)
    assert fused == asked
    assert fused["token_ms"] < plain["token_ms"]


def test_training_steps_of_a_config_are_not_fused(config: str) -> None:
    (row,) = told("capture", config, "--phase", "train", "--vary", "batch=1", "context=16")["rows"]
    assert row["fused"] is False


@pytest.mark.slow
def test_a_captured_config_is_predicted_fused(config: str, tmp_path: Path) -> None:
    plan = str(tmp_path / "step.plan.json")
    told("capture", config, "--phase", "decode", "--context", "64", "--output", plan)
    captured = load_plan(plan)
    assert captured.capture is not None
    assert captured.capture.fused is False, "what was captured is the model"
    for command in (("simulate", plan, "--soc", "910b3"), ("timeline", plan, "--soc", "910b3")):
        assert told(*command) == told(*command, "--fused", "ascend")
        assert told(*command) != told(*command, "--fused", "none")
        for options, word in (((), "fused"), (("--fused", "none"), "not fused")):
            shown = CliRunner(env={"COLUMNS": "120"}).invoke(opreplay, [*command, *options]).stdout
            assert f", {word} " in shown
    assert simulate(plan).total_us["910b3"] < simulate(plan, fused="none").total_us["910b3"]


def test_a_step_of_the_users_own_code_is_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "own_step.py").write_text(OWN)
    plan = str(tmp_path / "own.plan.json")
    told("capture", f"{tmp_path / 'own_step.py'}:make", "--output", plan)
    assert told("timeline", plan, "--soc", "910b3")["fused"] is None
    assert told("timeline", plan, "--soc", "910b3", "--fused", "ascend")["fused"] is True
