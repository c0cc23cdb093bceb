"""`opreplay timeline`."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.ir.step import IDLE_CAUSES
from opreplay.traces.samples import sample_path
from tests.replay.timeline.job_machine import Job
from tests.replay.timeline.machine import Machine, training

CONTRACT = {
    "socs",
    "recorded_step_us",
    "retimed_step_us",
    "structure_error",
    "categories_us",
    "critical_path",
    "what_if",
}


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return training().write(tmp_path / "t.json")


def invoke(*args: str) -> Result:
    return CliRunner().invoke(opreplay, ["timeline", *args])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_json_keeps_its_contract(trace: str) -> None:
    result = invoke(trace, "--format", "json", "--what-if", "aten::mm=0.5x", "--what-if", "nccl*=0")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found.keys() >= CONTRACT
    assert found["schema_version"] == 1
    assert {"name", "us"} <= found["critical_path"][0].keys()
    assert [one["change"] for one in found["what_if"]] == ["aten::mm=0.5x", "nccl*=0"]
    assert all(one["step_us"] < found["retimed_step_us"] for one in found["what_if"])


def test_step_is_chosen(trace: str) -> None:
    assert "for ProfilerStep#1, 1 of 2" in invoke(trace, "--step", "1", "--notes").stdout
    result = invoke(trace, "--step", "5")
    assert result.exit_code == 3
    assert "has no step 5" in result.stderr


def test_steps_that_differ_much_are_told(tmp_path: Path) -> None:
    machine = training()
    even = invoke(machine.write(tmp_path / "even.json"))
    assert "on the host);" not in " ".join(even.stdout.split())
    (last,) = [event for event in machine.events if event["name"] == "ProfilerStep#1" and event["ph"] == "X"]
    last["dur"] = 3 * last["dur"]
    path = machine.write(tmp_path / "t.json")
    told = " ".join(invoke(path).stdout.split())
    low, high = json.loads(invoke(path, "--format", "json").stdout)["step"]["all_host_us"]
    assert high == pytest.approx(last["dur"])
    assert low < high / 2
    assert "for ProfilerStep#0, median length of 2 steps (" in told
    assert "for ProfilerStep#1, 1 of 2 (" in " ".join(invoke(path, "--step", "1").stdout.split())
    assert "on the host);" in told


def test_a_note_on_idle_time_names_the_rows_of_the_table(tmp_path: Path) -> None:
    """The device waits for Python before the first task and after the last one, and hardly in between."""
    machine = Machine()
    machine.begin()
    machine.host(3000.0)
    for _ in range(4):
        machine.op("aten::mm", 12.0, ("gemm", 150.0))
    machine.synchronize()
    machine.host(2000.0)
    machine.end()
    path = machine.write(tmp_path / "t.json")
    found = json.loads(invoke(path, "--soc", "910b3", "--format", "json").stdout)["socs"]["910b3"]
    parts = found["categories_us"]
    (note,) = [line for line in found["notes"] if line.startswith("host-bound: ")]
    for cause in ("before_first_task", "after_last_task"):
        assert f"{100 * parts[f'idle_{cause}'] / found['step_us']:.1f} % {IDLE_CAUSES[cause]}" in note
    shown = invoke(path, "--soc", "910b3").stdout
    assert "more note" in shown
    assert "launch latency 44" not in shown
    everything = " ".join(invoke(path, "--soc", "910b3", "--notes").stdout.split())
    assert "launch latency 44 µs" in everything
    assert "more note" not in everything


def _loading(stacks: bool) -> Machine:
    """A step that loads a batch for 3 ms, then runs; with its Python frames, or the range that the loader marks."""
    machine = Machine()
    machine.begin()
    for frame, before, us in (("train.py(9): main", 0.0, 9000.0), ("data/dataloader.py(701): __next__", 50.0, 3000.0)):
        if stacks:
            machine._add("python_function", frame, machine.now + before, us)
            machine._add("python_function", "data/fetch.py(3): short", machine.now + before + 1.0, 20.0)
    if not stacks:
        machine._add("user_annotation", "enumerate(DataLoader)#_Iter.__next__", machine.now + 50.0, 3000.0)
    machine.host(3100.0)
    for _ in range(4):
        machine.op("aten::mm", 12.0, ("gemm", 150.0))
    machine.synchronize()
    machine.end()
    return machine


@pytest.mark.slow
def test_advice_is_the_first_line_and_in_json_and_on_the_page(tmp_path: Path) -> None:
    path = _loading(True).write(tmp_path / "t.json")
    page = tmp_path / "page.html"
    shown = invoke(path, "--advise", "-o", str(page))
    assert "would save" in shown.stdout.splitlines()[0]
    assert "dataloader.py(701): __next__" in shown.stdout.splitlines()[0]
    assert "What to do first" in page.read_text()
    found = json.loads(invoke(path, "--advise", "--format", "json").stdout)
    first = found["advice"]["items"][0]
    assert (first["kind"], first["function"]) == ("python", "dataloader.py(701): __next__")
    assert found["step"]["window"]["step_us"] > first["gain_us"] > 2900.0
    assert CliRunner().invoke(opreplay, ["timeline", path, "--advise", "--what-if", "cudagraph"]).exit_code == 2


@pytest.mark.parametrize(
    ("stacks", "name"),
    [(True, "data/dataloader.py(701): __next__"), (False, "enumerate(DataLoader)#_Iter.__next__")],
)
def test_what_python_did_before_the_first_task_is_named(stacks: bool, name: str, tmp_path: Path) -> None:
    path = _loading(stacks).write(tmp_path / "t.json")
    found = json.loads(invoke(path, "--format", "json").stdout)
    assert found["critical_path_python_us"][name] == pytest.approx(3000.0, rel=0.01)
    python = sum(part["us"] for part in found["critical_path"] if part["name"] == "(Python, between ops)")
    assert sum(found["critical_path_python_us"].values()) <= python * 1.001
    assert not any("short" in one for one in found["critical_path_python_us"])
    text = " ".join(invoke(path).stdout.split())
    assert f"with the host mostly in {name} (3.00 of 3.1" in text
    assert "Python, between ops" in text
    assert "critical_path_python_us" in found
    assert not json.loads(invoke(training().write(tmp_path / "u.json"), "--format", "json").stdout)[
        "critical_path_python_us"
    ]


def test_a_bad_change_says_what_a_change_is(trace: str) -> None:
    result = invoke(trace, "--what-if", "faster please")
    assert result.exit_code == 3
    assert "PATTERN=0.5x" in result.stderr


@pytest.mark.slow
def test_a_simulated_device_stands_beside_the_recording(shared_traces: Path, shared_ascend: Path) -> None:
    trace = str(shared_traces / "h100_qwen1.5_0.5b.json.gz")
    result = invoke(trace, "--soc", "910b3", "--soc", "910b4", "--what-if", "aten::mm=0.5x", "--format", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    for name in ("910b3", "910b4"):
        one = found["socs"][name]
        assert one["low_us"] < one["step_us"] < one["high_us"]
        made = one["categories_us"]
        total = made["computing"] + made["communication_not_overlapped"] + made["copies"] + made["idle"]
        assert total == pytest.approx(one["step_us"])
        assert one["predicted_share"] > 0.95
        assert found["what_if"][0]["socs_us"][name] < one["step_us"]
    assert found["socs"]["910b3"]["step_us"] < found["socs"]["910b4"]["step_us"]
    table = invoke(trace, "--soc", "910b3", "--set", "host_scale=2")
    assert table.exit_code == 0
    assert "80 % band" in table.stdout


def test_a_public_step_of_an_npu_takes_what_its_profile_says(shared_traces: Path, shared_ascend: Path) -> None:
    trace, table = shared_traces / "npu_alexnet_trace_view.json.gz", shared_ascend / "910b2_alexnet_train_level1.csv"
    result = invoke(str(trace), "--set", f"kernel_details={table}", "--soc", "910b2", "--format", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    steps = rows_of(shared_ascend / "step_times.csv")
    profiled = float(steps[0]["computing_us"])
    assert found["socs"]["910b2"]["categories_us"]["computing"] == pytest.approx(profiled, rel=0.15)
    rows = [row["Duration(us)"] for row in rows_of(table) if "hcom" not in row["Name"]]
    known, blank = [float(text) for text in rows if text], rows.count("")
    # Of kernels whose duration is kept aside, the trace holds 10 µs.
    assert found["categories_us"]["computing"] == pytest.approx(sum(known) + 10 * blank, rel=0.01)


def test_a_step_of_ops_without_arguments_has_nothing_to_simulate(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    machine.op("aten::mm", 100.0)
    machine.end()
    result = invoke(machine.write(tmp_path / "t.json"), "--soc", "910b3")
    assert result.exit_code == 3
    assert "opreplay simulate" in result.stderr


@pytest.mark.slow
def test_measured_times_are_those_of_a_result_file(tmp_path: Path) -> None:
    sample = str(Path("traces/samples/cnn_train.json.gz").absolute())
    lines = str(tmp_path / "r.jsonl")
    run = CliRunner().invoke(opreplay, ["run", sample, "--top", "3", "--set", "op_time=50ms", "--output", lines])
    assert run.exit_code == 0, run.stderr
    result = invoke(sample, "--measured", lines, "--format", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["measured_ops"] > 0
    assert 0 < found["measured_step_us"] != found["recorded_step_us"]


@pytest.mark.slow
def test_the_caches_of_a_step_are_for_whole_steps_in_their_order(tmp_path: Path) -> None:
    sample = str(Path("traces/samples/moe_block.json.gz").absolute())
    lines = str(tmp_path / "r.jsonl")
    flags = ["--cache", "step", "--set", "op_time=2ms", "--set", "threads=1"]
    for extra, why in (["--top", "3"], "all ops"), (["--mode", "sequence"], "cannot be combined with"):
        refused = CliRunner().invoke(opreplay, ["run", sample, *flags, *extra])
        assert (refused.exit_code, why in refused.stderr) == (2, True)
    refused = CliRunner().invoke(opreplay, ["op", "aten::relu(f32[8])", *flags])
    assert "the order of its ops" in refused.stderr
    run = CliRunner().invoke(opreplay, ["run", sample, *flags, "--output", lines])
    assert run.exit_code == 0, run.stderr
    result = invoke(sample, "--measured", lines, "--format", "json")
    found = json.loads(result.stdout)
    assert found["measured_profiler_us"] > 0
    assert found["measured_step_us"] > found["measured_profiler_us"]


def test_names_of_a_trace_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    machine = training()
    for event in machine.events:
        event["name"] = event["name"].replace("aten::mm", "aten::\x1b[31mmm\u202e")
    result = invoke(machine.write(tmp_path / "t.json"))
    assert result.exit_code == 0
    assert "\x1b[31m" not in result.stdout
    assert "\u202e" not in result.stdout


def test_a_change_that_matches_nothing_is_the_only_thing_printed(tmp_path: Path) -> None:
    path = training().write(tmp_path / "t.json")
    result = invoke(path, "--what-if", "aten::conv2d=0.5x", "--what-if", "aten::mm=0.5x")
    assert result.exit_code == 2, "as filters that select nothing"
    assert not result.stdout
    assert "'aten::conv2d=0.5x' matches nothing" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 70, 80])
def test_tables_of_changes_and_ranks_are_whole_on_narrow_terminals(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    sample = Path("traces/samples").absolute()
    ranks = [str(sample / f"ddp_step_rank{rank}.json.gz") for rank in (0, 1)]
    change = "aten::mm*=0.5x,aten::addmm=0.5x,aten::add_=0.25x"
    for shown in (
        invoke("--ranks", *ranks, "--what-if", change),
        invoke(ranks[0], "--what-if", change, "--soc", "910b3", "--soc", "910c"),
    ):
        assert shown.exit_code == 0, shown.stderr
        assert "…" not in "".join(
            line for line in shown.stdout.splitlines() if "::" not in line and " more " not in line
        )
        table = shown.stdout[shown.stdout.index("what if") :].partition("\n\n")[0]
        first = [line.partition("  ")[0] for line in table.splitlines()[2:]]
        assert change in "".join(part.strip() for part in first)


def test_a_plan_has_no_times_and_the_error_says_what_takes_it(tmp_path: Path) -> None:
    plan = tmp_path / "step.plan.json"
    sample = str(sample_path("transformer_infer"))
    assert CliRunner().invoke(opreplay, ["plan", sample, "--top", "2", "--output", str(plan)]).exit_code == 0
    for command in (
        ["timeline"],
        ["timeline", "--soc", "910b3"],
        ["trim", "--step", "1", "--output", str(tmp_path / "o.json")],
    ):
        done = CliRunner().invoke(opreplay, [command[0], str(plan), *command[1:]])
        assert done.exit_code == 2
        assert "a plan, which has no recorded times" in done.stderr
        assert "opreplay simulate" in done.stderr


def test_of_a_step_without_common_collectives_nothing_is_said_of_waiting(tmp_path: Path) -> None:
    job = Job(2)
    for step in range(2):
        for machine in job.ranks:
            machine.begin()
            machine.op("aten::mm", 12.0, ("gemm", 150.0))
        if step == 0:
            job.all_reduce(300.0)
        for machine in job.ranks:
            machine.synchronize()
            machine.end()
    page = tmp_path / "ranks.html"
    traces = job.write(tmp_path)
    result = invoke("--ranks", *traces, "--step", "1", "--soc", "910b3", "--output", str(page))
    assert result.exit_code == 0, result.stderr
    for text in (" ".join(result.stdout.split()), page.read_text()):
        assert "unknown, because no collective of this step was found on two of these ranks" in text
        assert "no rank is late" not in text
        assert "without waiting" not in text
    assert " 0 µs" not in result.stdout
    assert "without waiting" in invoke("--ranks", *traces, "--step", "0").stdout


def test_ranks_whose_steps_hardly_overlap_say_so(tmp_path: Path) -> None:
    job = Job(2)
    job.ranks[1].now += 60_000.0
    for _ in range(2):
        for machine in job.ranks:
            machine.begin()
            machine.op("aten::mm", 12.0, ("gemm", 150.0))
            machine.end()
    job.all_reduce(300.0)
    result = invoke("--ranks", *job.write(tmp_path), "--step", "1")
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert "0 % of the shorter step, for the two ranks that overlap least: probably different steps" in text
    assert "the steps of these ranks hardly overlap: ProfilerStep#1 of rank 0 and ProfilerStep#1 of rank 1" in text
    sample = Path("traces/samples").absolute()
    together = invoke("--ranks", *(str(sample / f"ddp_step_rank{rank}.json.gz") for rank in (0, 1)))
    assert "hardly" not in together.stdout


def test_ranks_have_a_page(tmp_path: Path) -> None:
    sample = Path("traces/samples").absolute()
    page = tmp_path / "ranks.html"
    done = invoke(
        "--ranks",
        *(str(sample / f"ddp_step_rank{rank}.json.gz") for rank in (0, 1)),
        "--output",
        str(page),
        *("--what-if", "aten::mm=0.5x"),
    )
    assert done.exit_code == 0, done.stderr
    assert "what if aten::mm=0.5x" in page.read_text()
    text = page.read_text()
    assert "Critical path across ranks" in text
    assert "ddp_step_rank1.json.gz" in text
    assert "all_reduce" in text


@pytest.mark.slow
def test_a_page_has_what_changes_gain_on_devices_and_a_fusion_says_what_would_match(tmp_path: Path) -> None:
    sample, page = str(Path("traces/samples/transformer_infer.json.gz")), tmp_path / "p.html"
    fuse = "fuse aten::mul,aten::add"
    done = invoke(sample, "--soc", "910b3", "--what-if", "aten::linear=0.5x", "--output", str(page))
    assert done.exit_code == 0, done.stderr
    assert re.search(r"what if aten::linear=0\.5x.{1,80}gains.{1,40}on 910b3.{1,40}gains", page.read_text(), re.DOTALL)
    alone = invoke(sample, "--what-if", fuse)
    assert alone.exit_code == 2
    assert "this step has none: fuse them on a simulated device" in alone.stderr
    assert "'aten::mm'" in alone.stderr
    given = invoke(sample, "--soc", "910b3", "--what-if", "fuse aten::no,aten::other")
    assert given.exit_code == 2
    assert "on 910b3 the change has no effect: No tasks of these ops follow each other" in given.stderr
    assert "simulated device (--soc" not in given.stderr + given.stdout
    pair = re.search(r"The pairs with the most time that do: '(fuse [^']+)'", given.stderr)
    assert pair is not None, given.stderr
    matched = invoke(sample, "--soc", "910b3", "--what-if", pair[1])
    assert matched.exit_code == 0, matched.stderr
    assert "simulated device (--soc" not in matched.stdout
    assert "the step ran on the CPU" in " ".join(matched.stdout.split())


def test_a_fusion_without_a_match_names_ops_that_follow_each_other(trace: str) -> None:
    done = invoke(trace, "--what-if", "fuse aten::no,aten::other")
    assert done.exit_code == 2
    pair = re.search(r"The pairs with the most time that do: '(fuse [^']+)'", done.stderr)
    assert pair is not None, done.stderr
    assert invoke(trace, "--what-if", pair[1]).exit_code == 0


def test_what_is_said_of_a_device_names_it(shared_traces: Path) -> None:
    """Kernels lose 24 % beside collectives as recorded, and nothing on a simulated device: two notes looked alike."""
    trace = str(shared_traces / "nvidia_nccl_parser.json.gz")
    done = invoke(trace, "--soc", "910b3", "--what-if", "*gemm*=0.5x", "--format", "json")
    notes = [note for note in json.loads(done.stdout)["what_if"][0]["assumptions"] if "during collectives" in note]
    assert [note.startswith("on 910b3: ") for note in notes] == [False, True]
