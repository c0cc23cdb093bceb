"""A layer whose weights are in no argument: bounded by what the recorded device can have done, or not predicted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.scenarios.conftest import kernel, op
from tests.scenarios.events import owner

pytestmark = pytest.mark.slow

Console = Callable[..., Result]
BF16 = "c10::BFloat16"
WIDTH, EXPERTS, TOKENS = 3072, 128, 64
PRODUCT = "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x8x512u2_s3_et64x8_m64x8x32_cga1x1x1_16dp256b_rM_TN_transOut_schPd4x2x2x3"
KERNELS = ((PRODUCT, 52.0), ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x8x512u2_s4_et128x8", 36.0),
           ("moe::dev::routing::routingRenormalize", 30.0), ("moe::dev::finalize::finalizeKernel", 51.0))  # fmt: skip
RECORDED_US = sum(us for _, us in KERNELS)


def layer(name: str = "vllm::moe_forward", at: float = 1000.0) -> list[dict[str, Any]]:
    """A call of the layer and its kernels, as vLLM runs gpt-oss on a B200."""
    dims = [[TOKENS, WIDTH], [TOKENS, EXPERTS], []]
    events = [op(name, at, dims, [BF16, BF16, ""], dur=200.0, id_=int(at))]
    for number, (name_of_kernel, us) in enumerate(KERNELS):
        correlation = int(at) + number
        launch = {"correlation": correlation, "External id": int(at)}
        events.append(
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 10 + number}
            | {"dur": 0.5, "args": launch}
        )
        made = kernel(name_of_kernel, at + 300 + 60 * number, us, correlation)
        made["args"]["External id"] = int(at)
        events.append(made)
    return events


@pytest.fixture
def b200(trace_of: Callable[..., Path]) -> Path:
    return trace_of(*owner("aten::mm", 1, [[1024, 1024]] * 2, RECORDED_US), *layer(), device="NVIDIA B200")


@pytest.fixture
def unknown(trace_of: Callable[..., Path]) -> Path:
    return trace_of(*owner("aten::mm", 1, [[1024, 1024]] * 2, RECORDED_US), *layer(), device=None)


def simulated(console: Console, trace: Path, *more: object, name: str = "vllm::moe_forward") -> dict[str, Any]:
    facts = json.loads(console("simulate", trace, "--soc", "910b3", "--format", "json", *more).stdout)
    return next(one for one in facts["unique_ops"] if one["name"] == name) | {"facts": facts}


def test_sizes_that_are_in_no_argument_stay_within_what_was_recorded(console: Console, b200: Path) -> None:
    """7.2 GB were charged for 169 us, which is 43 TB/s, and called a prediction by rules."""
    found = simulated(console, b200)
    one = found["simulated"]["910b3"]
    assert one["by"] == "invented sizes"
    assert one["confidence"] == "uncalibrated"
    assert RECORDED_US < one["time_us"] < 6 * RECORDED_US
    coverage = found["facts"]["socs"]["910b3"]["coverage"]
    assert coverage["invented"] == pytest.approx(0.5)
    assert coverage["rules"] == pytest.approx(0.5)


@pytest.mark.parametrize("command", ["simulate", "plan", "run", "timeline"])
def test_every_command_says_in_its_first_lines_how_much_rests_on_invented_sizes(
    console: Console, b200: Path, tmp_path: Path, command: str
) -> None:
    more = ("--set", "op_time=1ms", "--set", "threads=1", "-o", tmp_path / "r.jsonl")
    lines = console(command, b200, "--soc", "910b3", *(more if command == "run" else ())).stdout.splitlines()
    text = " ".join(" ".join(lines[:6]).split())
    assert "on invented sizes" in text or "with invented weights" in text, text


def test_what_nothing_bounds_is_left_out_and_said_to_be(console: Console, unknown: Path) -> None:
    found = simulated(console, unknown)
    assert found["simulated"] == {}
    assert found["facts"]["socs"]["910b3"]["coverage"]["nothing"] == pytest.approx(0.5)
    (why,) = found["suspicions"]
    assert "moe_routing.intermediate" in why
    mm = next(one for one in found["facts"]["unique_ops"] if one["name"] == "aten::mm")
    assert found["facts"]["socs"]["910b3"]["total_us"] == pytest.approx(mm["simulated"]["910b3"]["time_us"])


def test_the_users_word_goes_before_all(console: Console, b200: Path, unknown: Path) -> None:
    words = ("intermediate=512", "dtype=float4", "top_k=4", "experts=128")
    said = [part for word in words for part in ("--set", f"init_arg=moe_routing.{word}")]
    times = []
    for trace in (b200, unknown):
        one = simulated(console, trace, *said)["simulated"]["910b3"]
        assert one["by"] == "rule"
        times.append(one["time_us"])
    assert times[0] == pytest.approx(times[1])
    # 128 experts of 3 x 512 x 3072 weights of 8 bits at 1.6 TB/s take 0.38 ms.
    assert 300 < times[0] < 900


def test_a_replay_takes_the_same_sizes_as_a_prediction(console: Console, b200: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    quick = ("--set", "op_time=1ms", "--set", "threads=1", "--soc", "910b3")
    console("run", b200, *quick, "--include", "vllm::moe_forward", "-o", out)
    (found,) = [json.loads(line) for line in out.read_text().splitlines() if '"record":"op"' in line]
    (weights,) = [one["what"] for one in found["assumptions"] if one["argument"] == "weights"]
    assert weights.startswith("invented: 128 experts of ")
    assert found["simulated"]["910b3"]["by"] == "invented sizes"


def test_what_nothing_bounds_is_not_replayed_until_sizes_are_named(
    console: Console, unknown: Path, tmp_path: Path
) -> None:
    """It ran with an intermediate size equal to the hidden one: 7 GB of weights that no one has."""
    quick = ("--set", "op_time=1ms", "--set", "threads=1", "--set", "visits=1", "--include", "vllm::moe_forward")
    results = []
    for said in ((), ("--set", "init_arg=moe_routing.intermediate=64", "--set", "init_arg=moe_routing.experts=4")):
        out = tmp_path / f"{len(said)}.jsonl"
        console("run", unknown, *quick, *said, "-o", out)
        results += [json.loads(line) for line in out.read_text().splitlines() if '"record":"op"' in line]
    assert [one["status"] for one in results] == ["skipped", "replayed"]
    assert results[0]["reason"]["kind"] == "metadata missing"
