"""The first screen of `run`, `plan` and `simulate`: a head, one line an op, and only notes that change a decision."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from opreplay.traces.samples import sample_path
from tests.scenarios.conftest import kernel, launch, op
from tests.scenarios.events import owner

pytestmark = pytest.mark.slow

Console = Callable[..., Result]
SAMPLE = sample_path("transformer_infer")
QUICK = ("--set", "op_time=1ms", "--set", "threads=1")


def test_notes_that_change_no_decision_are_asked_for(console: Console) -> None:
    short, whole = (console("run", SAMPLE, *QUICK, "--top", 3, *more).stdout for more in ((), ("--notes",)))
    assert "more notes with --notes" in short or "more note with --notes" in short
    assert "measuring: warnings on" not in short
    assert "measuring: warnings on" in whole
    assert "with --notes" not in whole
    assert "with --notes" not in console("plan", SAMPLE, "--notes").stdout
    assert "assumptions: " in console("plan", SAMPLE, "--notes").stdout


def test_rows_appear_while_they_are_measured(console: Console) -> None:
    done = console("run", SAMPLE, *QUICK, "--top", 3, "--rows")
    told = [line for line in done.stderr.splitlines() if " recorded " in line]
    assert len(told) == 3
    assert all("aten::" in line for line in told)
    assert " recorded " not in console("run", SAMPLE, *QUICK, "--top", 3).stderr


def test_a_quick_look(console: Console, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    console("run", SAMPLE, "--quick", "--set", "threads=1", "--include", "aten::linear", "-o", out)
    header = json.loads(out.read_text().splitlines()[0])
    assert header["options"]["op_time_s"] == 0.02
    assert header["trace"]["ops"] <= 20
    console("run", SAMPLE, "--quick", "--set", "threads=1", "--top", 2, "--set", "op_time=1ms", "-o", out, "--force")
    header = json.loads(out.read_text().splitlines()[0])
    assert (header["options"]["op_time_s"], header["trace"]["ops"]) == (0.001, 2)


def region(ts: float, dur: float) -> dict[str, Any]:
    event = op("Torch-Compiled Region: 0/0", ts, [], [], dur=dur)
    event["args"] = {}
    return event


def test_a_compiled_model_on_a_cpu_is_not_covered_by_half_of_it(
    console: Console, trace_of: Callable[..., Path]
) -> None:
    """The region's own code is nowhere else: 100 % were what is called, and half of the time."""
    inside = op("aten::mm", 10, [[64, 64], [64, 64]], ["float", "float"], dur=50.0)
    trace = trace_of(region(0, 100.0), inside, device=None)
    text = console("plan", trace).stdout
    assert "would replay 1 of 1 op = 50.0 % of host time; 50.0 % outside the selected ops" in text
    label = "labels: 50.0 % of host time is inside labels but outside ops: Torch-Compiled Region: 0/0 50.0 %"
    assert label in " ".join(text.split())
    facts = json.loads(console("plan", trace, "--format", "json").stdout)
    assert facts["host_us_total"] == 100.0
    assert [(one["name"], one["share"]) for one in facts["where"]["labels"]] == [("Torch-Compiled Region: 0/0", 0.5)]


def test_what_labels_own_on_a_gpu_is_told_by_class(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    trace = trace_of(
        region(0, 100.0),
        launch(10, 1),
        kernel("ampere_bf16_s16816gemm_128x64", 1000, 60.0, 1),
        launch(20, 2),
        kernel("triton_poi_fused_7", 1100, 25.0, 2),
        launch(30, 3),
        kernel("flash_fwd_kernel", 1200, 15.0, 3),
        *owner("aten::mm", 40, [[64, 64], [64, 64]], 100.0),
    )
    text = " ".join(console("plan", trace).stdout.split())
    told = "Torch-Compiled Region: 0/0 50.0 % (GEMM 60.0 %, Triton 25.0 %, attention 15.0 %)"
    assert f"labels: 50.0 % of device time belongs to a label but to no op: {told}" in text
    facts = json.loads(console("plan", trace, "--format", "json").stdout)
    (label,) = facts["where"]["labels"]
    assert label["classes"] == {"GEMM": 0.6, "Triton": 0.25, "attention": 0.15}
    of_op = {one["name"]: one["kernel_classes"] for one in facts["unique_ops"]}
    assert of_op["Torch-Compiled Region: 0/0"] == label["classes"]
    out = tmp_path / "r.jsonl"
    console("run", trace, *QUICK, "-o", out)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert records[0]["trace"]["where"]["labels"][0]["classes"] == label["classes"]
    assert {"GEMM": 0.6, "Triton": 0.25, "attention": 0.15} in [one.get("kernel_classes") for one in records]
    assert "Triton 25.0 %" in " ".join(console("show", out).stdout.split())
    assert json.loads(console("simulate", trace, "--format", "json").stdout)["where"]["labels_us"] == 100.0


def test_work_without_an_op_is_named_by_class(console: Console, trace_of: Callable[..., Path], tmp_path: Path) -> None:
    """HCCL's tasks belong to no op: 58 % of an AlexNet on NPUs, and what else has none was not told apart."""
    events = [*owner("aten::mm", 1, [[64, 64]] * 2, 40.0), launch(2000, 50), launch(2010, 51), launch(2020, 52)]
    events += [kernel("SDMA", 2100, 20.0, 50), kernel("Notify Wait", 2150, 30.0, 51), kernel("odd", 2200, 10.0, 52)]
    trace, out = trace_of(*events), tmp_path / "r.jsonl"
    told = "no op: 60.0 % of device time is in kernels without a recorded op (communication 50.0 %, other 10.0 %)"
    assert told in " ".join(console("plan", trace, "--notes").stdout.split())
    facts = json.loads(console("plan", trace, "--format", "json").stdout)
    assert facts["where"]["unowned"] == {"communication": 0.5, "other": 0.1}
    assert told in " ".join(console("run", trace, *QUICK, "--notes", "-o", out).stdout.split())
    assert told in " ".join(console("show", out).stdout.split())


def test_work_of_before_the_recording_is_named_alike_everywhere(
    console: Console, trace_of: Callable[..., Path]
) -> None:
    """Of 100 µs, 30 were launched before the profiler: no step's, whatever is predicted of the others."""
    before = kernel("vectorized_elementwise_kernel", 10, 30.0, 900)
    trace = trace_of(before, *owner("aten::mm", 1, [[64, 64]] * 2, 70.0, ["float", "float"]))
    for command in ("simulate", "plan"):
        text = console(command, trace).stdout
        assert "launched before the recording: 30.0 % of device time (ops not recorded)" in text, command
    told = "simulated 70.0 % of device time by rules, 30.0 % outside the selected ops"
    assert told in console("simulate", trace).stdout.splitlines()
    step = " ".join(console("timeline", trace, "--soc", "910b3").stdout.split())
    assert "0.03 ms of device work were launched before the recording, 30.0 % of all in the file" in step
    assert "in `opreplay simulate` to all device time" in step


def test_simulate_is_short_unless_asked_for_more(console: Console, trace_of: Callable[..., Path]) -> None:
    names = ("aten::mm", "aten::bmm", "aten::add", "aten::gelu", "aten::exp", "aten::neg", "aten::sum")
    trace = trace_of(*(e for i, name in enumerate(names) for e in owner(name, i + 1, [[64, 64, 64]] * 2, 1.0)))
    short, whole = (console("simulate", trace, *more).stdout for more in ((), ("--notes",)))
    lines = short.splitlines()
    assert max(map(len, lines[2:])) <= 80
    assert sum(line.startswith("910b3, time by ") for line in lines) == 2
    at = next(i for i, line in enumerate(lines) if "loses most on 910b3" in line) + 2
    told = lines[at : lines.index("", at)]
    assert len(told) > 3
    assert all("aten::" in line for line in told), "each op has one line"
    assert "more note" in lines[-1]
    assert "with --notes" in lines[-1]
    assert "time by kernel family    910b3" in whole
    assert "with --notes" not in whole


def test_what_caches_hold_is_said_beside_a_prediction(console: Console) -> None:
    """`plan` predicts ops one by one as they would be measured, `simulate` in the order of a step."""
    alone = " ".join(console("plan", SAMPLE, "--top", 3).stdout.split())
    assert "each op predicted alone with cold caches" in alone
    assert "caches as left by earlier ops (--l2 sequence)" in " ".join(
        console("plan", SAMPLE, "--top", 3, "--l2", "sequence").stdout.split()
    )
    assert "contents from the order of 356 calls" in " ".join(console("simulate", SAMPLE, "--notes").stdout.split())
    facts = json.loads(console("plan", SAMPLE, "--top", 1, "--format", "json").stdout)
    assert facts["unique_ops"][0]["l2"] == {"910b3": "cold"}
