"""What a serving framework's annotation tells of a batch decides what attention costs; nothing impossible is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

HEADS, DIM = 16, 128
FULL_888 = "execute_888_context_1(sq888sk888sqsq788544sqsk788544)_generation_0(sq0sk0sqsq0sqsk0)"
FULL_64 = "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk131072sqsq64sqsk131072)"
FULL_4 = "execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk2048sqsq4sqsk2048)"


def event(name: str, ts: float, dims: list[object], types: list[str], dur: float = 50.0) -> dict[str, object]:
    args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": [""] * len(dims)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def step(annotation: str, call: dict[str, object]) -> list[dict[str, object]]:
    mark = {"ph": "X", "cat": "user_annotation", "name": annotation, "pid": 1, "tid": 1, "ts": 0.0, "dur": 500.0}
    return [mark, call]


def layer(tokens: int) -> dict[str, object]:
    rows = [tokens, HEADS, DIM]
    dims: list[object] = [rows, rows, rows, rows, [], [], []]
    return event("vllm::unified_attention_with_output", 10.0, dims, ["c10::BFloat16"] * 4 + [""] * 3)


def total(console: Callable[..., Result], trace: Path) -> float:
    done = console("simulate", trace, "--soc", "910b3", "--select", "all", "--format", "json")
    return json.loads(done.stdout)["socs"]["910b3"]["total_us"]


@pytest.mark.parametrize("second", ["888_788544", "888"])
def test_the_second_number_of_a_phase_is_no_number_of_tokens(
    console: Callable[..., Result], trace_of: Callable[..., Path], second: str
) -> None:
    plain = trace_of(*step(FULL_888, layer(888)))
    told = total(console, plain)
    other = trace_of(*step(f"execute_context_1({second})_generation_0(0)", layer(888)))
    assert total(console, other) == pytest.approx(told, rel=0.01)


def test_contexts_of_decoding_sequences_are_read_from_their_products(
    console: Callable[..., Result], trace_of: Callable[..., Path]
) -> None:
    full = trace_of(*step(FULL_64, layer(64)))
    told = total(console, full)
    short = trace_of(*step("execute_context_0(0_0)_generation_64(64_131072)", layer(64)))
    assert total(console, short) == pytest.approx(told, rel=0.01)


@pytest.mark.parametrize("annotation", ["execute_context_0(0)_generation_64(64)", "step[DECODE bs=64]", "warm-up"])
def test_contexts_that_nothing_tells_are_said_and_no_number_is_sure(
    console: Callable[..., Result], trace_of: Callable[..., Path], annotation: str
) -> None:
    """The cache of vLLM's layer is no argument: 64 sequences of one token each were "calibrated", 20 times too fast."""
    trace = trace_of(*step(annotation, layer(64)))
    done = console("simulate", trace, "--soc", "910b3", "--select", "all", "--format", "json")
    assert "context lengths are not recorded" in done.stderr
    (found,) = json.loads(done.stdout)["unique_ops"]
    made = found["simulated"]["910b3"]
    assert made["confidence"] == "uncalibrated"
    assert made["high_us"] >= 3 * made["time_us"]
    explained = console("plan", trace, "--soc", "910b3", "--select", "all", "--explain", "vllm::*").stdout
    assert "context lengths are not recorded" in " ".join(explained.split())
    told = console("simulate", trace_of(*step(FULL_64, layer(64))), "--soc", "910b3", "--select", "all")
    assert "not recorded" not in told.stderr


@pytest.mark.parametrize("annotation", ["execute_64_context_0(0_0)_generation_64(64_131072)"])
def test_a_total_before_the_phases_changes_nothing(
    console: Callable[..., Result], trace_of: Callable[..., Path], annotation: str
) -> None:
    told = total(console, trace_of(*step(FULL_64, layer(64))))
    assert total(console, trace_of(*step(annotation, layer(64)))) == pytest.approx(told, rel=0.01)


def test_more_context_than_the_call_holds_is_impossible_and_said(
    console: Callable[..., Result], trace_of: Callable[..., Path]
) -> None:
    """32 pages of 16 tokens: no sequence of this call sees a million."""
    rows, scalar = [4, HEADS, DIM], ([], "Scalar")
    arguments = [
        (rows, "c10::BFloat16", ""),
        (rows, "c10::BFloat16", ""),
        ([32, HEADS, 16, 16, 8], "c10::BFloat16", ""),
        ([32, HEADS, DIM, 16], "c10::BFloat16", ""),
        (*scalar, "16"),
        (*scalar, "0.1"),
        ([4, 32], "int", ""),
        ([4], "int", ""),
        (*scalar, "16"),
        (*scalar, "512"),
        ([], "", ""),
        ([], "", ""),
        ([1], "float", ""),
        ([1], "float", ""),
        *[(*scalar, "0")] * 5,
    ]
    call = event("_C::paged_attention_v1", 10.0, [a[0] for a in arguments], [a[1] for a in arguments])
    call["args"] |= {"Concrete Inputs": [a[2] for a in arguments]}  # type: ignore[operator]
    trace = trace_of(*step("execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk4000000sqsq4sqsk4000000)", call))
    done = console("simulate", trace, "--soc", "910b3", "--select", "all", "--format", "json")
    assert "impossible in this call" in done.stderr
    most = trace_of(*step(FULL_4, call), name="most.json")
    assert json.loads(done.stdout)["socs"]["910b3"]["total_us"] == pytest.approx(total(console, most), rel=0.01)
    explained = console("plan", trace, "--soc", "910b3", "--select", "all", "--explain", "_C::paged_attention_v1")
    assert "impossible in this call" in explained.stdout


def test_an_annotation_that_is_not_understood_is_said_once(tmp_path: Path, console: Callable[..., Result]) -> None:
    names = ["execute_diffusion_1_1024x1024", "step[DECODE bs=2]", "execute_diffusion_1_512x512"]
    events = [
        event
        for at, name in enumerate(names)
        for event in (
            {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": 100 * at, "dur": 90},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 100 * at + 5, "dur": 50}
            | {"args": {"External id": at + 1, "Input Dims": [[8, 8], [8, 8]], "Input type": ["float", "float"]}},
        )
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    lines = [
        line for line in console("plan", str(path), "--notes").stdout.splitlines() if "could not be parsed" in line
    ]
    (line,) = lines
    assert "2 annotations" in line
