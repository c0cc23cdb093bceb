"""Captured plans of small models, replayed on real values, are the models, in eval and in training."""

from __future__ import annotations

import pytest
import torch

from benchmarks.capture_models import SHARE, calls_compared
from benchmarks.config_models import step_of_config
from benchmarks.small_models import MODELS, step_of_model
from opreplay.replay.capture.capture import capture_made, check_made

pytestmark = pytest.mark.slow

CASES = [
    ("resnet_basic", "sgd"),
    ("mobilenet", "eval"),
    ("convnext", "adamw"),
    ("diffusion_unet", "eval"),
    ("llama", "adamw"),
    ("decode_with_cache", "eval"),
    ("mixture_of_experts", "sgd"),
    ("bert", "eval"),
    ("torch_encoder", "eval"),
    ("lstm", "sgd"),
    ("graph_attention", "adamw"),
    ("dlrm", "sgd"),
    ("checkpointed", "sgd"),
    ("patches_of_one_image", "sgd"),
    ("written_in_place", "adamw"),
    ("sequence_to_sequence", "sgd"),
]
"""Some of them; `benchmarks/capture_models.py` has all."""


CONFIGS = [
    ("mistral", "prefill"), ("gpt_neox", "sgd"), ("detr", "prefill"), ("dinov3_vit", "prefill"), ("patchtst", "sgd"),
    ("vivit", "prefill"), ("llava", "prefill"), ("qwen2_vl", "prefill"), ("qwen2_vl", "sgd"),
]  # fmt: skip
"""Of `benchmarks/config_models.py`."""


@pytest.mark.parametrize(("name", "mode"), CONFIGS)
def test_a_model_of_a_config_computes_what_it_computes(name: str, mode: str) -> None:
    make = step_of_config(name, mode)
    plan = capture_made(make, source=name)
    found = check_made(make, plan)
    assert found.equal
    assert all(one.bits_equal for one in (*found.outputs, *found.parameters))
    assert calls_compared(plan, make).share >= SHARE


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_captured_model_computes_what_the_model_computes(name: str, mode: str) -> None:
    torch.manual_seed(0)
    make = step_of_model(name, mode)
    plan = capture_made(make, source=name)
    found = check_made(make, plan)
    assert found.reason is None
    assert found.equal
    assert all(one.bits_equal for one in (*found.outputs, *found.parameters))
    calls = calls_compared(plan, make)
    assert calls.added == ()
    assert len(calls.missing) == (name == "checkpointed"), "one op ends before it runs: nothing needs its result"
    net = MODELS[name]()[0]
    if mode != "eval":  # else some buffers have no use
        assert len(found.parameters) == len([*net.parameters(), *net.buffers()])
