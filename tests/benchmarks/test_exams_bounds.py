"""Physical bounds of captured steps: what is read, what a few layers tell of all, and when a step is out of bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import steps_of_configs
from benchmarks.exams.bounds import (
    CASES,
    Captured,
    Case,
    Checked,
    bound_us,
    captured,
    split,
    unread_bytes,
    whole,
)
from benchmarks.exams.configs_of import CONFIGS, config_of, layers_of
from opreplay.replay.ascend import load_device

pytestmark = pytest.mark.slow

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
    assert (carried.parameters, carried.cache, carried.flops) == (real.parameters, real.cache, real.flops)
    assert carried.memory == pytest.approx(real.memory, rel=0.02)
    assert carried.times_us == pytest.approx(real.times_us, rel=2e-3)


def test_layers_that_are_captured_hold_every_kind() -> None:
    assert layers_of(config_of("llama-3-8b")) == (1, 2)
    assert layers_of(config_of("deepseek-v3")) == (4, 5)
    assert layers_of(config_of("gemma-3-27b")) == (6, 12)


def test_a_decode_reads_weights_and_cache_but_no_embeddings() -> None:
    case, device = Case("small", 8, 2048), load_device("910b3")
    layer = 256 * 256 * 2 + 2 * 256 * 128 + 3 * 256 * 512
    step = Captured(2.0 * (6 * layer + 2 * 512 * 256), 8 * 2048 * 6 * 128 * 2 * 2.0, 1e9, 1e9, (1.0,))
    read = 2 * (6 * layer + 512 * 256) + 8 * 2048 * 6 * 128 * 4
    assert bound_us(case, SMALL, "decode", step, device) == pytest.approx(read / 1.6e6)


def test_experts_that_no_token_is_routed_to_are_not_read() -> None:
    config = config_of("qwen3-30b-a3b")
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


def test_a_public_time_is_put_beside_the_step_of_all_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(steps_of_configs.CONFIGS, "Small", SMALL)
    table = tmp_path / "e2e.csv"
    table.write_text(
        "source,soc,n_devices,parallelism,model,phase,batch,context,dtype,ms,note\n"
        "a,910b3,1,TP1,Small,decode,8,2k,bf16,6,one full graph\na,910b3,1,TP1,Other,decode,8,2k,bf16,6,\n"
    )
    found, reasons, rows = steps_of_configs.compared(table)
    real = steps_of_configs.captured_step(
        SMALL, phase="decode", batch=8, context=2048, options=("--tensor-parallel", "1"), soc="910b3"
    )
    (one,) = found
    assert (one.measured_ms, one.is_graph, rows, len(reasons)) == (6.0, True, 2, 1)
    told = real.graph_token_ms, real.graph_low_ms, real.graph_high_ms
    assert one.times == pytest.approx(told, rel=1e-2)


@pytest.mark.parametrize(
    ("note", "context", "batch"),
    [
        ("mean TTFT 50000 ms", "1k+500", 8),  # 100 s of 150 s
        ("mean TTFT 100.5 ms", "1k+500", 12),
        ("mean TTFT 50000 ms", "1k", 12),
        ("TTFT 50 s", "1k+500", 12),
    ],
)
def test_requests_that_wait_for_their_first_token_do_not_decode(note: str, context: str, batch: int) -> None:
    assert steps_of_configs.running_batch(12, {"note": note, "context": context}, 200.0) == batch


def test_a_recipe_without_a_batch_bounds_the_time_of_one_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(steps_of_configs.CONFIGS, "Small", SMALL)
    table = tmp_path / "e2e.csv"
    lines = [
        f"a,910b3,2,PD mixed,Small,decode,,{context},bf16,{ms},a target so an upper mark"
        for context, ms in (("1k+1k", 50), ("2k", 0.01))
    ]
    table.write_text("source,soc,n_devices,parallelism,model,phase,batch,context,dtype,ms,note\n" + "\n".join(lines))
    found, _, _ = steps_of_configs.compared(table)
    assert [(one.is_target, one.is_fastest, one.question[2:4]) for one in found] == [(True, True, (1, 2048))] * 2
    assert steps_of_configs.kept_targets(found) == (2, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch", "context", "ranks", "soc", "least_ms", "most_ms"),
    [
        ("llama-3-8b", 32, 8192, "1", "910b3", 35, 62),
        ("qwen3-30b-a3b", 32, 4096, "1", "910b3", 41.2, 2.2 * 41.2),
        ("qwen3-32b", 16, 2048, "2", "910b4-1", 47.6 / 1.3, 47.6 * 1.3),
        ("qwen3-32b", 2, 65536, "2", "910b4-1", 40.0 / 1.7, 40.0 * 1.7),
    ],
)
def test_whole_decode_steps_take_what_is_known_of_them(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    batch: int,
    context: int,
    ranks: str,
    soc: str,
    least_ms: float,
    most_ms: float,
) -> None:
    """Bytes over the rate of memory, at most 2.2 times, or public times of MindIE (47.6 and 40.0 ms)."""
    monkeypatch.setitem(steps_of_configs.CONFIGS, name, config_of(name))
    graph, _ = steps_of_configs.whole_step(name, "decode", batch, context, ("--tensor-parallel", ranks), soc)
    assert least_ms <= graph.token <= most_ms
