"""What users met and reported, each as a test through the console script or the library's door."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

import opreplay
from opreplay.replay.export.bundle import SOURCE
from opreplay.replay.ir.reasons import NotReplayable, Reason
from opreplay.traces.errors import Malformed, OpReplayError
from opreplay.traces.samples import sample_path
from tests.scenarios.conftest import kernel, launch, op
from tests.scenarios.events import owner

pytestmark = pytest.mark.slow

Console = Callable[..., Result]
QUICK = ("--set", "op_time=1ms", "--set", "threads=1")
SHAPE = [64, 64]


def test_an_estimator_that_raises_ends_no_command(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "custom"
    folder.mkdir()
    (folder / "mine.py").write_text(
        "from opreplay import register_op_estimator\n"
        "@register_op_estimator('mylib::odd', None)\n"
        "def estimate(op, device):\n"
        "    return 1 / 0\n"
    )
    trace = trace_of(*owner("aten::mm", 1, [SHAPE, SHAPE], 50.0), *owner("mylib::odd", 2, [SHAPE], 50.0))
    out = tmp_path / "r.jsonl"
    for command in (("plan", trace), ("simulate", trace), ("run", trace, *QUICK, "-o", out)):
        text = console(*command, "--plugin", folder).stdout
        assert "! mylib::odd" in text, command
        assert "mine.py:4:estimatefailedformylib::odd:ZeroDivisionError" in "".join(text.split()), command
    rows = {one["name"]: one for one in map(json.loads, out.read_text().splitlines()) if one["record"] == "op"}
    assert rows["aten::mm"]["simulated_us"]["910b3"] > 0
    assert rows["mylib::odd"].get("simulated_us", {}) == {}
    assert "ZeroDivisionError" in rows["mylib::odd"]["suspicions"][0]


def test_the_median_of_an_op_is_that_of_its_calls(console: Console, trace_of: Callable[..., Path]) -> None:
    """Two kernels of 10 and 30 µs a call: the median of launches is 20, of calls 40."""
    events: list[dict[str, Any]] = []
    for i in range(3):
        at, number = 1000.0 * i, 10 * i + 1
        events += [op("aten::mm", at, [SHAPE, SHAPE], ["float", "float"], dur=50.0, id_=number)]
        events += [launch(at + 5, number), launch(at + 10, number + 1)]
        events += [kernel("gemm", at + 100, 10.0, number), kernel("reduce", at + 200, 30.0, number + 1)]
    facts = json.loads(console("inspect", trace_of(*events), "--by", "op", "--format", "json").stdout)
    row = facts["breakdown"]["rows"][0] if "breakdown" in facts else facts["rows"][0]
    assert (row["name"], row["calls"], row["median_us"]) == ("aten::mm", 3, 40.0)


def test_a_prediction_that_is_far_too_large_is_a_suspect_however_small_its_op_was(
    console: Console, trace_of: Callable[..., Path]
) -> None:
    """0.1 % of the recorded time, and ten times all of it as predicted: the share of the recorded time hid it."""
    big = [1 << 14, 1 << 14]
    trace = trace_of(*owner("aten::mm", 1, [[8192, 8192]] * 2, 2000.0), *owner("aten::add", 2, [big, big], 1.0))
    told = [line for line in console("plan", trace).stdout.splitlines() if line.startswith("! ")]
    assert len(told) == 1
    assert "aten::add" in told[0]
    assert "! aten::add" in console("simulate", trace).stdout


def test_a_finished_run_says_so(console: Console, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    arguments = ("run", sample_path("transformer_infer"), "--top", 2, *QUICK, "-o", out)
    console(*arguments)
    done = console(*arguments, "--resume")
    assert "the resumed run was already complete; none of its 2 ops was measured again" in done.stderr


def test_a_module_that_is_not_found_says_where_it_is_looked_for(
    console: Console, trace_of: Callable[..., Path]
) -> None:
    trace = trace_of(*owner("mylib::odd", 2, [SHAPE], 50.0))
    text = " ".join(console("plan", trace, "--allow-import", "mylib=no_such_module").stdout.split())
    assert "no_such_module cannot be imported: is it on PYTHONPATH?" in text


def test_long_names_have_the_room(console: Console, trace_of: Callable[..., Path]) -> None:
    name = "void cutlass::Kernel2<cutlass_80_tensorop>(Params)"
    trace = trace_of(op("aten::mm", 0, [SHAPE] * 2, ["float"] * 2), launch(1, 1), kernel(name, 10, 5.0, 1))
    assert name[:20] in console("inspect", trace, "--by", "kernel").stdout
    assert name[-20:] in console("inspect", trace, "--by", "kernel").stdout
    slow = "aten::_scaled_dot_product_efficient_attention"
    dims = [[1, 8, 128, 64]] * 3
    trace = trace_of(*owner(slow, 1, dims, 0.5))
    told = console("simulate", trace).stdout
    assert slow[:14] in told
    assert slow[-17:] in told, "both ends, beside the sizes that tell ops apart"


def test_a_trace_without_steps_says_how_to_mark_them(console: Console, trace_of: Callable[..., Path]) -> None:
    trace = trace_of(*owner("aten::mm", 1, [SHAPE, SHAPE], 50.0))
    told = console("timeline", trace)
    assert "call profiler.step() to mark them" in " ".join((told.stdout + told.stderr).split())


def test_what_is_no_event_is_a_clear_error() -> None:
    for wrong in (None, [], "aten::mm"):
        with pytest.raises(Malformed, match="an event is a mapping, not"):
            opreplay.op_of_event(wrong)  # type: ignore[arg-type]
    assert issubclass(NotReplayable, OpReplayError)
    assert NotReplayable(Reason("policy", "x")).hint


def test_benchmark_takes_arguments_by_name() -> None:
    seen: list[tuple[int, bool]] = []

    def total(x: torch.Tensor, *, dim: int, device: bool = False) -> torch.Tensor:
        seen.append((dim, device))
        return x.sum(dim)

    x = torch.ones(8, 8)
    assert opreplay.benchmark(total, x, dim=1, op_time_s=0.002).median_us > 0
    assert opreplay.benchmark(total, x, kwargs={"dim": 0, "device": True}, op_time_s=0.002).median_us > 0
    assert set(seen) == {(1, False), (0, True)}


def test_a_bundle_chooses_its_threads_and_takes_gradients(console: Console, tmp_path: Path) -> None:
    """On a busy machine as many threads as are idle; batch_norm with gradients, whose running means have none."""
    folder = tmp_path / "bundle"
    console("export", sample_path("cnn_train"), "-o", folder, "--select", "top", "--include", "aten::batch_norm")
    command = [sys.executable, str(folder / "replay.py"), "--iterations", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["threads"] >= 1
    assert {one["status"] for one in facts["results"]} == {"replayed"}
    table = subprocess.run([*command[:-1], "--threads", "1"], capture_output=True, text=True, check=True).stdout
    assert "on cpu with 1 thread, torch" in table
    assert SOURCE == "bundle"


def test_rows_show_the_numbers_that_tell_calls_apart(console: Console, trace_of: Callable[..., Path]) -> None:
    """Three sums of one tensor were three equal rows."""
    kinds = ["float", "ScalarList", "Scalar", ""]
    sums = [("[0]", "True"), ("[1]", "True"), ("[1]", "False")]
    events = [
        op("aten::sum", 10.0 * i, [[8, 16], [], [], []], kinds, ["", dim, keep, ""])
        for i, (dim, keep) in enumerate(sums)
    ]
    norm = [[8, 16], [], [16], []]
    events.append(op("aten::rms_norm", 50.0, norm, ["float", "ScalarList", "float", "Scalar"], ["", "[16]", "", EPS]))
    trace = trace_of(*events)
    for command in (("plan", trace), ("run", trace, *QUICK)):
        text = console(*command).stdout
        for shown in ("dim=[0] · keepdim=True", "dim=[1] · keepdim=True", "dim=[1] · keepdim=False"):
            assert shown in text, command
    told = json.loads(console("plan", trace, "--format", "json").stdout)["unique_ops"]
    assert {one["inputs"] for one in told if one["name"] == "aten::sum"} == {"f32[8,16]"}
    explained = console("plan", trace, "--explain", "aten::rms_norm").stdout
    assert "float   1e-06" in explained
    assert "eps=9.999999974752427e-07" in "".join(explained.split()), "the call in full is exact"


EPS = "9.9999999747524271e-07"


@pytest.mark.parametrize("foreach", [False, True])
def test_step_counters_of_an_optimizer_stay_on_the_host(console: Console, tmp_path: Path, foreach: bool) -> None:
    """One op and one wait for each parameter counted as work of the simulated NPU."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=foreach)
    path = tmp_path / "adamw.json"

    def step() -> float:
        loss = net(torch.ones(2, 8)).sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(str(path))
    found = json.loads(console("timeline", path, "--soc", "910b3", "--format", "json").stdout)["socs"]["910b3"]
    assert found["categories_us"]["idle_launch_latency"] < 3 * 44, "it waits for the loss, not for each parameter"
    ops = json.loads(console("simulate", path, "--format", "json").stdout)["unique_ops"]
    counters = [one for one in ops if one["name"] in ("aten::add_", "aten::_foreach_add_") and "f32[]" in one["inputs"]]
    assert counters
    for one in counters:
        assert {soc["time_us"] for soc in one["simulated"].values()} <= {0.0}
    told = console("plan", path, "--explain", counters[0]["id"]).stdout
    assert "optimizer step counter" in " ".join(told.split())
    named = {"plan": "for all calls", "simulate": "sum of", "timeline": "step with gaps"}
    for command, figure in named.items():
        soc = ("--soc", "910b3") if command == "timeline" else ()
        assert figure in " ".join(console(command, path, *soc).stdout.split()), "what each total is"


def test_casts_of_autocast_are_rows_that_are_predicted(console: Console, trace_of: Callable[..., Path]) -> None:
    """They were in the recorded time of the call around them, and in no prediction."""
    wide, narrow, to = "float", "c10::BFloat16", ["", "15", "False", "False", ""]
    types = [wide, "Scalar", "Scalar", "Scalar", ""]
    linear = [[64, 128], [32, 128], [32]]
    events = [op("aten::linear", 0.0, linear, [narrow, wide, wide], dur=100.0)]
    for at, dims in ((5.0, [32]), (20.0, [32, 128])):
        events.append(op("aten::to", at, [dims, [], [], [], []], types, to, dur=10.0))
    events.append(op("aten::linear", 40.0, linear, [narrow] * 3, dur=50.0))
    events.append(op("aten::linear", 200.0, linear, [narrow, wide, wide], dur=60.0))  # the copies are still there
    events.append(op("aten::linear", 205.0, linear, [narrow] * 3, dur=50.0))
    trace = trace_of(*events)
    out = trace.with_name("plan.json")
    console("plan", trace, "--output", out)
    ops = json.loads(out.read_text())["ops"]
    seen = sorted((one["name"], one["count"], one["recorded"]["host_us_total"]) for one in ops)
    assert seen == [("aten::linear", 2, 100.0), ("aten::to", 1, 10.0), ("aten::to", 1, 10.0)]
    text = console("plan", trace, "--explain", "aten::to").stdout
    assert "Cast" in text
    assert "→ bfloat16[32" in text


def take_samples(results: Path, most: int) -> None:
    """Leave so many samples of each measurement: a run takes more, an op of seconds or an older file has fewer."""
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    for line in lines:
        if (measurement := line.get("measurement")) is not None:
            few = {"kind": "few samples", "data": {"samples": float(most), "wanted": 8.0}}
            measurement |= {"samples": most, "ci_low_us": None, "ci_high_us": None, "warnings": [few], "visits": []}
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_few_samples_have_no_interval_and_say_how_many_they_are(console: Console, tmp_path: Path) -> None:
    """One or two samples had a 95 % interval of no width, which reads as certainty; and a total of such ops passed."""
    trace = sample_path("transformer_infer")
    for name in ("before", "after"):
        out = tmp_path / f"{name}.jsonl"
        console(
            "run",
            trace,
            "--include",
            "aten::silu",
            "--set",
            "op_time=1ms",
            "--set",
            "visits=1",
            "--set",
            "threads=1",
            "-o",
            out,
        )
        take_samples(out, 5)
    rows = list(csv.DictReader(io.StringIO(console("show", tmp_path / "after.jsonl", "--format", "csv").stdout)))
    assert {int(row["measured_samples"]) < 6 for row in rows} == {True}
    assert {(row["measured_ci_low_us"], row["measured_ci_high_us"]) for row in rows} == {("", "")}
    facts = json.loads(console("show", tmp_path / "after.jsonl", "--format", "json").stdout)
    assert {one["measurement"]["ci_low_us"] for one in facts["ops"]} == {None}
    # What the table marks with a star and says below it is in JSON as well.
    starred = {one["id"] for one in facts["ops"] if one["measurement"]["samples"] == 1}
    assert starred <= {id_ for id_, why in facts["marks"].items() if why}
    assert any("measuring: warnings on" in note for note in facts["notes"])
    assert facts["suspects"] == []
    pair = (tmp_path / "before.jsonl", tmp_path / "after.jsonl")
    asked = console("compare", *pair, "--fail-if", "total>400%", code=6)
    assert "total>400% could not be tested: no op has an interval in both runs" in asked.stderr


def test_the_head_counts_what_an_attention_calls_as_the_rows_do(
    console: Console, trace_of: Callable[..., Path]
) -> None:
    """The head said GEMM and softmax of a row that says attention: 60 % of the time were in no class that a row has."""
    types = ["float"] * 3
    trace = trace_of(
        op("aten::scaled_dot_product_attention", 0, [[1, 64, 64]] * 3, types, dur=60.0),
        op("aten::bmm", 2, [[1, 64, 64]] * 2, types[:2], dur=30.0),
        op("aten::_softmax", 40, [[1, 64, 64]], types[:1], dur=10.0),
        op("aten::mm", 100, [[64, 64]] * 2, types[:2], dur=40.0),
        device=None,
    )
    for command in ("plan", "inspect"):
        told = " ".join(console(command, trace, "--notes").stdout.split())
        assert "attention 60.0 %, GEMM 40.0 %" in told, command
    table = console("inspect", trace, "--by", "category", "--format", "csv").stdout
    assert [line.split(",")[0] for line in table.splitlines()[1:]] == ["attention", "GEMM"]


def test_a_softmax_under_autocast_has_the_dtype_that_it_ran_with(
    console: Console, trace_of: Callable[..., Path]
) -> None:
    """On a GPU autocast leaves the input and adds the dtype: the outer call's `dtype=None` was replayed, in bf16."""
    made: list[dict[str, Any]] = []
    given = {
        "aten::softmax": (["c10::BFloat16", "Scalar"], ["", "-1"]),
        "aten::sum": (["c10::BFloat16", "ScalarList", "Scalar"], ["", "[1]", "False"]),
    }
    for i, (name, (types, values)) in enumerate(given.items()):
        at, number, dims = 1000.0 * i, 1 + i, [[8, 64], *[[]] * len(values)]
        made += [
            op(name, at, dims, [*types, ""], [*values, ""], dur=90.0),
            op(name, at + 1, dims, [*types, "Scalar"], [*values, "6"], dur=80.0, id_=number),
            launch(at + 3, number),
            kernel("softmax_warp_forward", at + 90, 20.0, number),
        ]
    facts = json.loads(console("plan", trace_of(*made), "--select", "top", "--format", "json").stdout)
    calls = {one["name"]: one["call"] for one in facts["unique_ops"]}
    assert "dtype=torch.float32" in calls["aten::softmax"]
    assert "dtype=torch.float32" in calls["aten::sum"]


def test_a_step_of_training_in_bfloat16_has_finite_values(console: Console, tmp_path: Path) -> None:
    """41 results were not finite: gradients were multiplied with each other, and weights of N(0, 1) let values grow
    eightfold from layer to layer."""
    layers = [torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(16)]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x, wanted = torch.randn(128, 64), torch.randint(0, 10, (128,))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(net(x), wanted)
        loss.backward()
        optimizer.step()

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        step()
    profile.export_chrome_trace(str(tmp_path / "t.json"))
    given = ("--mode", "sequence", "--set", "op_time=1ms", "--set", "threads=1", "--format", "json")
    found = json.loads(console("run", tmp_path / "t.json", *given).stdout)
    assert found["sequence"]["tensors"]["refilled"] == 0
    assert "not finite" not in json.dumps(found["ops"])
    assert "outside the op's domain" not in json.dumps(found["ops"])


def test_an_empty_trace_is_refused_before_the_device_is_waited_for(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    """A profiler whose schedule has no repeat waits again after its active steps, and then nothing is recorded."""
    out = tmp_path / "r.jsonl"
    done = console("run", trace_of(device=None), "-o", out, code=2)
    assert "t.json records no op" in done.stderr
    assert "schedule" in done.stderr
    assert not out.exists()
