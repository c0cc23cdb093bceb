"""Physical bounds of captured steps: what is read, what a few layers tell of all, and when a step is out of bounds."""

from __future__ import annotations

import json

import pytest

from benchmarks.exams.bounds import (
    CASES,
    CONFIGS,
    Captured,
    Case,
    Checked,
    bound_us,
    captured,
    split,
    unread_bytes,
    whole,
)
from opreplay.replay.ascend import load_device

SMALL = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
}  # fmt: skip


def test_each_case_has_a_config_and_12_are_asked() -> None:
    assert {case.config for case in CASES} == {path.stem for path in CONFIGS.glob("*.json")}
    assert len(CASES) == 12
    assert all(case.batch >= 8 and case.context >= 2048 and len(case.socs) == 3 for case in CASES)


def test_a_few_layers_tell_of_all() -> None:
    devices = [load_device("910b3")]
    case = Case("small", 8, 2048)
    carried = whole(case, SMALL, "decode", devices)
    real = captured(SMALL, {"phase": "decode", "batch": 8, "context": 2048}, devices)
    assert carried[:4] == real[:4]
    assert carried.times_us == pytest.approx(real.times_us, rel=2e-3)


def test_a_decode_reads_weights_and_cache_but_no_embeddings() -> None:
    case, device = Case("small", 8, 2048), load_device("910b3")
    layer = 256 * 256 * 2 + 2 * 256 * 128 + 3 * 256 * 512
    step = Captured(2.0 * (6 * layer + 2 * 512 * 256), 8 * 2048 * 6 * 128 * 2 * 2.0, 1e9, 1e9, (1.0,))
    read = 2 * (6 * layer + 512 * 256) + 8 * 2048 * 6 * 128 * 4
    assert bound_us(case, SMALL, "decode", step, device) == pytest.approx(read / 1.6e6)


def test_experts_that_no_token_is_routed_to_are_not_read() -> None:
    config = json.loads((CONFIGS / "qwen3-30b-a3b.json").read_text())
    embeddings = 2 * 151936 * 2048 / 2
    experts = 48 * 64 * 3 * 2 * 2048 * 768
    case = Case("qwen3-30b-a3b", 8, 2048, split(2, experts=True))
    assert unread_bytes(case, config) == pytest.approx(embeddings + (1 - 8 / 128) ** 8 * experts)


@pytest.mark.parametrize(
    ("time_us", "fits", "holds"),
    [(1.0, True, True), (2.2, True, True), (0.99, True, False), (2.3, True, False), (1.5, False, False)],
)  # fmt: skip
def test_a_step_is_within_its_bounds_and_the_memory(time_us: float, fits: bool, holds: bool) -> None:
    checked = Checked("a decode", "decode", "910b3", time_us, 1.0, 2.2, 1e9, fits)
    assert checked.holds is holds
    assert str(checked).startswith("FAILS") is not holds
