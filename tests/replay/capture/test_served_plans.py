"""A plan in the form that servers run is written, read back and predicted, whatever the kind of model."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from opreplay.cli.terminal.console import json_text
from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.simulate.devices import simulate_plan
from opreplay.replay.capture.capture import capture_made
from opreplay.replay.capture.serving.form import as_served
from opreplay.replay.ir.plan_file import load_plan
from opreplay.replay.ops.work.expected import expected_contents

KINDS = [
    "llama", "qwen3", "mistral", "phi3", "gemma2", "gemma3_text", "olmo2", "cohere", "gpt2", "gptj", "bloom", "falcon",
    "mixtral", "qwen2_moe", "olmoe", "gpt_oss", "granitemoe", "deepseek_v2", "deepseek_v3", "llama4_text", "bert",
    "t5", "vit", "whisper", "clip", "qwen2_5_vl", "mamba2", "recurrent_gemma", "jamba", "lfm2", "patchtst",
]  # fmt: skip
"""Of `benchmarks/config_models.py`."""
ONE_FORWARD = {"t5", "vit", "whisper", "clip", "patchtst"}


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed (extra hf)")
@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_plan_can_be_read_back(tmp_path: Path, kind: str) -> None:
    from benchmarks.config_models import CONFIGS
    from opreplay.replay.capture.from_config import Shape, maker

    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": kind, **CONFIGS[kind]}))
    shape = Shape(phase="prefill" if kind in ONE_FORWARD else "decode", batch=2, context=24)
    plan = capture_made(maker(str(config), shape), source=kind)
    for weights in (None, "w8a8"):
        served = as_served(plan, fused=True, weights=weights)
        file = tmp_path / "plan.json"
        file.write_text(json_text(served))
        back = load_plan(str(file))
        assert json_text(back) == json_text(served)
        (step,) = simulate_plan(back, [load_device("910b3")], expected_contents())
        assert step.total_us > 0
