"""`compare` holds traces against traces, results against the trace, and measured against predicted times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import opreplay
from opreplay.traces.samples import sample_path
from tests.replay.timeline.machine import Machine, training
from tests.scenarios.events import owner

pytestmark = pytest.mark.slow

Console = Callable[..., Result]
SAMPLE = sample_path("transformer_infer")
SHAPE = [512, 512]


def calls(name: str, first: int, times: list[float], dims: list[Any], **more: Any) -> list[dict[str, Any]]:
    return [event for i, us in enumerate(times) for event in owner(name, first + i, dims, us, **more)]


@pytest.fixture
def gpus(trace_of: Callable[..., Path]) -> tuple[Path, Path]:
    """One model on two GPUs: the product is 28 times slower on the second, the sum as fast, one op is of the first."""
    first = trace_of(
        *calls("aten::mm", 1, [10.0] * 8, [SHAPE, SHAPE]),
        *calls("aten::add", 20, [5.0, 5.1, 4.9, 5.0, 5.0, 5.1, 4.9, 5.0], [SHAPE, SHAPE]),
        *calls("aten::cudnn_batch_norm", 40, [100.0], [SHAPE]),
        device="NVIDIA H100",
        name="h100.json",
    )
    second = trace_of(
        *calls("aten::mm", 1, [280.0] * 8, [SHAPE, SHAPE]),
        *calls("aten::add", 20, [5.0, 4.9, 5.1, 5.0, 5.0, 4.9, 5.1, 5.0], [SHAPE, SHAPE]),
        *calls("aten::miopen_batch_norm", 40, [100.0], [SHAPE]),
        device="AMD MI300X",
        name="mi300.json",
    )
    return first, second


def test_two_gpus(console: Console, gpus: tuple[Path, Path], tmp_path: Path) -> None:
    lines = console("compare", *gpus).stdout.splitlines()
    assert lines[0] == "device time 11× (slower): 220 µs → 2.38 ms, h100.json → mi300.json"
    assert lines[2:4] == ["before, NVIDIA H100", "after, AMD MI300X"]
    assert any("compared 2 ops: 1 slower, 1 only before, 1 only after, 1 same" in line for line in lines)
    assert next(line for line in lines if line.startswith("slower")).split()[1] == "28×"
    facts = json.loads(console("compare", *gpus, "--format", "json", "-o", tmp_path / "c.html").stdout)
    assert [side["on"] for side in facts["sides"]] == ["NVIDIA H100", "AMD MI300X"]
    slow = next(op for op in facts["ops"] if op["verdict"] == "slower")
    assert (slow["name"], slow["before_us"], slow["after_us"], slow["ratio"]) == ("aten::mm", 10.0, 280.0, 28.0)
    assert slow["before_kernel"].startswith("kernel_")
    assert (slow["low"], slow["high"]) == (28.0, 28.0)
    assert "AMD MI300X" in (tmp_path / "c.html").read_text()
    assert "NVIDIA H100" in console("compare", *gpus, "--format", "markdown").stdout
    console("compare", *gpus, "--fail-if", "slower>5%", code=5)
    console("compare", *gpus, "--fail-if", "total>3%", code=5)
    console("compare", gpus[0], gpus[0], "--fail-if", "slower>5%", "--fail-if", "total>3%")


def test_the_total_of_traces_holds_what_one_of_them_has_alone_and_calls_that_stand_out(
    console: Console, trace_of: Callable[..., Path]
) -> None:
    """Ops on both sides are faster by their medians; an op of the second alone and one slow call make it slower."""
    first = trace_of(*calls("aten::mm", 1, [100.0] * 8, [SHAPE, SHAPE]), device="H", name="a.json")
    second = trace_of(
        *calls("aten::mm", 1, [50.0] * 7 + [450.0], [SHAPE, SHAPE]),
        *calls("aten::add", 40, [800.0], [SHAPE, SHAPE]),
        device="H",
        name="b.json",
    )
    found = console("compare", first, second, "--fail-if", "total>3%", code=5)
    assert found.stdout.splitlines()[0].startswith("device time 2.000× (slower): 800 µs → 1.60 ms")
    assert "total>3%: 2.000× of all recorded time" in found.stderr
    facts = json.loads(console("compare", first, second, "--format", "json").stdout)
    assert (facts["whole"], facts["total"]["ratio"]) == (2.0, 0.5)
    console("compare", second, first, "--fail-if", "total>3%")


def test_views_are_not_lost_on_a_device(console: Console, trace_of: Callable[..., Path]) -> None:
    trace = trace_of(
        *calls("aten::mm", 1, [10.0], [SHAPE, SHAPE]), *calls("aten::t", 20, [3.0], [SHAPE]), name="v.json"
    )
    facts = json.loads(console("compare", trace, "--times", "recorded:910b3", "--format", "json").stdout)
    assert [op["name"] for op in facts["ops"]] == ["aten::mm"]
    assert facts["counts"]["lost"] == 0
    assert "left out: 1 op without a kernel on the simulated device (views)" in facts["notes"]


def test_results_against_their_trace_and_their_predictions(console: Console, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    console("run", SAMPLE, "--top", 4, "--set", "op_time=2ms", "--set", "threads=1", "-o", out)
    against_trace = console("compare", SAMPLE, out).stdout.splitlines()
    assert against_trace[1].startswith("before: On the host alone: ")
    assert against_trace[2].startswith("before: recorded on cpu (transformer_infer.json.gz); on both sides 4 of ")
    assert against_trace[3].startswith("after: measured on cpu (")
    own = json.loads(console("compare", out, "--format", "json").stdout)
    assert [side["what"] for side in own["sides"]] == ["measured", "simulated"]
    results = {one["id"]: one for one in map(json.loads, out.read_text().splitlines()) if one["record"] == "op"}
    for op in own["ops"]:
        assert op["before_us"] == results[op["id"]]["measured_us"]
        assert op["after_us"] == results[op["id"]]["simulated_us"]["910b3"]
    asked = console("compare", out, "--times", "recorded:910b3").stdout.splitlines()
    assert asked[1].startswith("before: recorded on cpu")
    assert asked[2].startswith("after: simulated on 910b3")
    assert "sides" in console("compare", out, out, "--format", "json").stdout
    assert json.loads(console("compare", out, out, "--format", "json").stdout)["sides"] is None, "two runs, as ever"
    found = opreplay.compare(str(SAMPLE), str(out))
    assert found.found.sides is not None


def test_a_plan_says_what_its_trace_does(console: Console, gpus: tuple[Path, Path], tmp_path: Path) -> None:
    plan = tmp_path / "p.json"
    console("plan", gpus[1], "-o", plan)
    lines = console("compare", gpus[0], plan).stdout.splitlines()
    assert lines[0] == console("compare", *gpus).stdout.splitlines()[0]


def test_times_that_are_not_there_are_refused(
    console: Console, gpus: tuple[Path, Path], trace_of: Callable[..., Path]
) -> None:
    assert "AFTER is missing" in console("compare", gpus[0], code=2).stderr
    assert (
        "contains recorded times, not measured ones" in console("compare", *gpus, "--times", "measured", code=2).stderr
    )
    assert "is not a kind of times" in console("compare", *gpus, "--times", ":x", code=2).stderr
    assert "combined only for measured times" in console("compare", *gpus, "--also-after", gpus[0], code=2).stderr
    other = trace_of(*owner("aten::mm", 1, [[7, 7], [7, 7]], 3.0), name="o.json")
    assert "no op has a time on both sides" in console("compare", gpus[0], other).stdout
    assert "no op was measured in both" in console("compare", gpus[0], other, "--fail-if", "slower>5%", code=6).stderr


def test_traces_of_two_versions_of_torch_are_matched_by_what_both_record(
    console: Console, gpus: tuple[Path, Path], tmp_path: Path
) -> None:
    """Older profiles have no values of scalars: ids made of them would match nothing."""
    document = json.loads(gpus[0].read_text())
    for event in document["traceEvents"]:
        event["args"].pop("Concrete Inputs", None)
    old = tmp_path / "old.json"
    old.write_text(json.dumps(document))
    text = " ".join(console("compare", old, gpus[1]).stdout.split())
    assert "compared 2 ops: 1 slower" in text
    assert "ops are matched without strides and values" in text


def test_public_traces(console: Console, shared_traces: Path) -> None:
    """Two ranks of one job."""
    ranks = [shared_traces / f"nvidia_sampled_rank{rank}.json.gz" for rank in (0, 1)]
    facts = json.loads(console("compare", *ranks, "--format", "json").stdout)
    assert facts["sides"][0]["matched_ops"] == facts["sides"][1]["matched_ops"] > 300
    same = json.loads(console("compare", ranks[0], ranks[0], "--select", "leaf", "--format", "json").stdout)
    assert same["counts"]["same"] == len(same["ops"]) > 300
    assert same["total"]["ratio"] == 1.0


def test_what_a_trace_calls_its_device_acts_on_no_terminal(
    console: Console, gpus: tuple[Path, Path], trace_of: Callable[..., Path]
) -> None:
    evil = trace_of(*calls("aten::mm", 1, [5.0] * 8, [SHAPE, SHAPE]), device="\x1b[2J[red]", name="e.json")
    for format_ in ("table", "markdown"):
        text = console("compare", gpus[0], evil, "--format", format_).stdout
        assert "\x1b" not in text
        assert "x1b[2J" in text.replace("\\", "")
    assert "\x1b" not in console("plan", evil).stdout


def test_a_trace_with_its_own_prediction(console: Console, gpus: tuple[Path, Path]) -> None:
    """No run is needed to hold what a GPU took against a simulated device."""
    lines = console("compare", gpus[0], "--times", "recorded:910b3").stdout.splitlines()
    assert lines[0].startswith("compared 3 ops")
    assert lines[1] == "before: recorded on NVIDIA H100 (h100.json); on both sides 3 of 3 ops = 100.0 % of 220 µs"
    assert lines[2].startswith("after: simulated on 910b3 (h100.json)")
    facts = json.loads(console("compare", gpus[0], "--times", "recorded:910b3", "--format", "json").stdout)
    predicted = json.loads(console("simulate", gpus[0], "--format", "json").stdout)["unique_ops"]
    assert {op["id"]: op["after_us"] for op in facts["ops"]} == {
        op["id"]: op["simulated"]["910b3"]["time_us"] for op in predicted
    }
    assert opreplay.compare(gpus[0], times="recorded:910b3").found.sides[1].on == "910b3"
    assert "--times recorded:910b3" in console("compare", gpus[0], code=2).stderr
    assert "known devices" in console("compare", gpus[0], "--times", "recorded:910zz", code=2).stderr
    assert "contains recorded times" in console("compare", gpus[0], "--times", "recorded:measured", code=2).stderr


def test_totals_by_class_of_work(console: Console, gpus: tuple[Path, Path]) -> None:
    text = console("compare", *gpus, "--all").stdout
    row = next(line.split() for line in text.splitlines() if line.startswith("GEMM"))
    assert row == ["GEMM", "80.0", "µs", "2.24", "ms", "+2.16", "ms", "1"]
    norms = next(line.split() for line in text.splitlines() if line.startswith("normalization"))
    assert norms == ["normalization", "100", "µs", "100", "µs", "0", "µs", "0"]
    facts = json.loads(console("compare", *gpus, "--format", "json").stdout)
    assert [one["name"] for one in facts["classes"]] == ["GEMM", "normalization", "elementwise"]
    assert "| GEMM | 80.0 µs | 2.24 ms | +2.16 ms | 1 |" in console("compare", *gpus, "--format", "markdown").stdout


def test_a_change_within_the_band_of_the_prediction_is_unclear(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    """How little the recording scatters says nothing of the prediction's error, which the interval holds."""
    once = trace_of(*owner("aten::mm", 1, [SHAPE, SHAPE], 10.0), name="once.json")
    (op,) = json.loads(console("simulate", once, "--format", "json").stdout)["unique_ops"]
    band = op["simulated"]["910b3"]
    (us, low, high) = (band[key] for key in ("time_us", "low_us", "high_us"))
    assert low < us < high
    for factor, verdict in (((us + high) / 2 / us, "unclear"), (1.5 * high / us, "faster"), (0.5 * low / us, "slower")):
        trace = trace_of(*calls("aten::mm", 1, [factor * us] * 8, [SHAPE, SHAPE]), name=f"{verdict}.json")
        found = json.loads(console("compare", trace, "--times", "recorded:910b3", "--format", "json").stdout)
        (one,) = found["ops"]
        assert (one["verdict"], one["level"], found["total"]["level"]) == (verdict, 0.8, 0.8)
        assert one["low"] == pytest.approx(low / (factor * us), rel=1e-3)
        assert one["high"] == pytest.approx(high / (factor * us), rel=1e-3)
        assert found["total"]["low"] == pytest.approx(one["low"], rel=0.02)
        assert (one["low"] <= 1.0 <= one["high"]) == (verdict == "unclear")
        text = " ".join(console("compare", trace, "--times", "recorded:910b3", "--all").stdout.split())
        assert "(80 %: " in text.partition("before:")[0]
        assert "verdict ratio 80 % before" in text
        assert "interval: the 80 % band of the prediction" in text
        if verdict == "unclear":
            assert "80 % band of the prediction includes both slower and faster" in text
    near = trace_of(*calls("aten::mm", 1, [1.01 * us] * 8, [SHAPE, SHAPE]), name="near.json")
    found = json.loads(console("compare", near, "--times", "recorded:910b3", "--format", "json").stdout)
    assert found["counts"]["unclear"] == 1, "as close as that by chance"
    console("compare", near, "--times", "recorded:910b3", "--fail-if", "slower>0%", "--fail-if", "total>0%", code=6)
    run = tmp_path / "r.jsonl"
    console("run", SAMPLE, "--top", 3, "--set", "op_time=2ms", "--set", "threads=1", "-o", run)
    results = {one["id"]: one for one in map(json.loads, run.read_text().splitlines()) if one["record"] == "op"}
    for one in json.loads(console("compare", run, "--times", "measured:910b3", "--format", "json").stdout)["ops"]:
        band = results[one["id"]]["simulated"]["910b3"]
        assert one["level"] == 0.8
        assert one["low"] <= band["low_us"] / one["before_us"]
        assert one["high"] >= band["high_us"] / one["before_us"]
    both = json.loads(console("compare", run, "--times", "910b3:910b3", "--format", "json").stdout)
    assert {one["verdict"] for one in both["ops"]} == {"same"}
    assert "no interval: both sides are predictions with similar errors, compared as exact values" in both["notes"]


def on_host(name: str, first: int, times: list[float], dims: list[Any]) -> list[dict[str, Any]]:
    """Calls of an op on the host alone."""
    made: list[dict[str, Any]] = []
    for i, us in enumerate(times):
        event = owner(name, first + i, dims, 1.0)[0]
        made.append({**event, "ts": 1e6 * (first + i), "dur": us})
    return made


def test_few_calls_on_a_host_clock_say_nothing(console: Console, trace_of: Callable[..., Path]) -> None:
    steady = [99.0, 101.0, 100.0, 100.0, 99.0, 101.0, 100.0, 100.0]
    first, second = (
        trace_of(
            *on_host("aten::detach", 1, [us, us + 0.1, us - 0.1][:number], [SHAPE]),
            *on_host("aten::mm", 10, steady, [SHAPE, SHAPE]),
            *on_host("aten::add", 30, [factor * one for one in steady], [SHAPE, SHAPE]),
            device=None,
            name=name,
        )
        for name, us, number, factor in (("a.json", 3.0, 3, 1.0), ("b.json", 6.0, 3, 2.0))
    )
    found = json.loads(console("compare", first, second, "--format", "json").stdout)
    assert {op["name"]: op["verdict"] for op in found["ops"]} == {
        "aten::detach": "unclear",
        "aten::mm": "same",
        "aten::add": "slower",
    }
    assert [side["clock"] for side in found["sides"]] == ["host", "host"]
    detach = next(op for op in found["ops"] if op["name"] == "aten::detach")
    assert detach["note"] == "too few calls on a host clock to know their variation"
    assert detach["ratio"] == pytest.approx(2.0)
    assert (found["total"]["low"], found["total"]["high"]) == (None, None)
    assert "including other load on the host" in console("compare", first, second).stdout.splitlines()[1]
    asked = console("compare", first, second, "--fail-if", "total>3%", code=6)
    assert "total>3% could not be tested: recorded host times include" in asked.stderr
    facts = json.loads(console("compare", first, second, "--fail-if", "total>3%", "--format", "json", code=6).stdout)
    assert (facts["violations"], len(facts["unchecked"])) == ([], 1)
    slow = console("compare", first, second, "--fail-if", "slower>5%", code=5).stderr
    assert "aten::add" in slow
    assert "aten::detach" not in slow


def test_a_recording_with_more_calls_is_not_called_slower(console: Console, trace_of: Callable[..., Path]) -> None:
    few, many = (
        trace_of(*on_host("aten::mm", 1, [100.0] * count, [SHAPE, SHAPE]), device=None, name=f"{count}.json")
        for count in (2, 6)
    )
    head, ways, *_ = console("compare", few, many).stdout.splitlines()
    assert "3.000× (with 3.000× as many calls)" in head
    assert "before and" not in ways
    other = trace_of(*on_host("aten::add", 1, [100.0] * 2, [SHAPE, SHAPE]), device=None, name="other.json")
    assert "0 % of the time before and 0 % after" in console("compare", few, other).stdout.splitlines()[1]


def test_plans_of_host_times_keep_no_scatter(console: Console, trace_of: Callable[..., Path], tmp_path: Path) -> None:
    trace = trace_of(*on_host("aten::mm", 1, [100.0] * 8, [SHAPE, SHAPE]), device=None)
    plan = tmp_path / "p.json"
    console("plan", trace, "-o", plan)
    (op,) = json.loads(console("compare", plan, trace, "--format", "json").stdout)["ops"]
    assert (op["verdict"], "only the median of its calls" in op["note"]) == ("unclear", True)


def test_the_threshold_of_two_host_recordings_is_what_their_ops_scatter_by(
    console: Console, trace_of: Callable[..., Path]
) -> None:
    """Ops that are all off by up to a fifth between two recordings of the same hide changes of a fifth, none of ten."""
    factors = [1.2, 0.85, 1.1, 0.9, 1.15, 0.95] * 4 + [10.0]
    first, second = (
        trace_of(
            *[
                event
                for i, factor in enumerate(factors)
                for event in on_host("aten::mm", 1 + 10 * i, [100.0 * factor**power] * 6, [[8, 8 + i], [8 + i, 8]])
            ],
            device=None,
            name=f"{power}.json",
        )
        for power in (0, 1)
    )
    found = json.loads(console("compare", first, second, "--format", "json").stdout)
    assert (found["counts"]["slower"], found["counts"]["faster"]) == (1, 0)
    assert found["applied"] > 0.2
    assert "raised to" in console("compare", first, second).stdout


def test_a_call_that_was_interrupted_and_carries_the_total_is_named(
    console: Console, trace_of: Callable[..., Path]
) -> None:
    first, second = (
        trace_of(
            *on_host("aten::mm", 1, [100.0] * 8, [SHAPE, SHAPE]),
            *on_host("aten::add", 20, [10.0] * 7 + [last], [SHAPE, SHAPE]),
            device=None,
            name=name,
        )
        for name, last in (("a.json", 10.0), ("b.json", 5000.0))
    )
    notes = json.loads(console("compare", first, second, "--format", "json").stdout)["notes"]
    assert (
        "b.json: one call of aten::add took 5,000 µs, 500 times its median: 85 % of the total (880 µs without it)"
    ) in notes
    assert not [note for note in notes if note.startswith("a.json: one call")]


def test_steps_of_two_recordings_stand_side_by_side(tmp_path: Path, console: Console) -> None:
    sample = training().write(tmp_path / "t.json")
    found = json.loads(console("compare", sample, sample, "--format", "json").stdout)
    first, second = (side["steps"] for side in found["sides"])
    assert first == second
    assert first["count"] == 2
    assert first["shortest_us"] <= first["median_us"] <= first["longest_us"]
    steps = found["steps"]
    assert (steps["paired"], steps["ratio"], steps["before_us"]) == ("number", 1.0, steps["after_us"])
    assert [step["name"] for step in steps["before"]] == [step["name"] for step in steps["after"]]
    assert console("compare", sample, sample).stdout.startswith("step 1.000× (same): ")


def attention(tmp_path: Path, name: str, *parts: str) -> str:
    """Steps of layers whose attention is one op, or these."""
    machine = Machine()
    for _ in range(3):
        machine.begin()
        for _ in range(8):
            machine.op("aten::mm", 5.0, ("gemm", 50.0))
            for part in parts:
                machine.op(part, 5.0, (part, 40.0))
            machine.op("aten::add", 5.0, ("add", 0.01))
        machine.synchronize()
        machine.end()
    return machine.write(tmp_path / name)


def test_steps_come_first_and_ops_by_their_part_of_the_difference(tmp_path: Path, console: Console) -> None:
    fused = "aten::_flash_attention_forward"
    unfused = ("aten::bmm", "aten::_softmax", "aten::bmm")
    first, second = attention(tmp_path, "a.json", fused), attention(tmp_path, "b.json", *unfused)
    found = json.loads(console("compare", first, second, "--format", "json").stdout)
    changes = {op["name"]: op["step_change_us"] for op in found["ops"]}
    assert changes == pytest.approx(
        {fused: -320.0, "aten::bmm": 640.0, "aten::_softmax": 320.0, "aten::mm": 0.0, "aten::add": 0.0}
    )
    assert found["ops"][0]["name"] == "aten::bmm"
    (replaced,) = found["replaced"]
    assert (replaced["before"], replaced["after"], replaced["places"]) == ([fused], list(unfused), 8)
    assert (replaced["before_us"], replaced["after_us"]) == pytest.approx((320.0, 960.0))
    steps = [found["step"][side]["window"]["step_us"] for side in ("before", "after")]
    assert sum(changes.values()) == pytest.approx(steps[1] - steps[0], rel=0.05)
    text = console("compare", first, second).stdout
    assert text.splitlines()[0].startswith("step 1.871× (slower): ")
    assert "_flash_attention_forward → bmm + _softmax + bmm" in text
    assert "in place of others" not in console("compare", first, first).stdout
