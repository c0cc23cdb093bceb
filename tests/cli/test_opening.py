"""TRACE may be a trace, a plan, or TraceLens's IR, told by content; an ExecutionTrace completes a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from opreplay.cli.main import opreplay
from opreplay.cli.opening import open_trace, parse_limits
from opreplay.replay.ir.plan_file import load_plan
from opreplay.replay.plan import inputs
from opreplay.traces import Limits
from opreplay.traces.errors import UsageError

pytestmark = pytest.mark.usefixtures("forked_children")

MM = {
    "Input Dims": [[8, 4], [4, 2]],
    "Input type": ["float", "float"],
    "Input Strides": [[4, 1], [2, 1]],
    "Concrete Inputs": ["", ""],
}
TENSOR = {"shape": [8, 8], "dtype": "c10::BFloat16", "strides": [8, 1], "init": "normal"}


def event(name: str, ts: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": 2, "pid": 1, "tid": 1, "args": args}


def node(number: int, name: str, values: list[Any], shapes: list[Any], types: list[str]) -> dict[str, Any]:
    return {
        "id": number,
        "name": name,
        "ctrl_deps": 1,
        "inputs": {"values": values, "shapes": shapes, "types": types},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": "rf_id", "type": "uint64", "value": number}, {"name": "tid", "type": "uint64", "value": 1}],
    }


def tracelens_entry(name: str) -> dict[str, Any]:
    args = [{"arg_name": n, "arg_type": "Tensor", "value": TENSOR} for n in ("self", "mat2")]
    return {"op_name": name, "replay_ir": {"list_pos_args": args, "list_kwargs": []}}


def saved(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return saved(
        tmp_path / "t.json",
        {
            "traceEvents": [
                event("aten::mm", 1, **MM),
                event(
                    "aten::relu",
                    9,
                    **{"Input Dims": [[8]], "Input type": ["float"], "Input Strides": [[1]], "Concrete Inputs": [""]},
                ),
            ]
        },
    )


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    return saved(tmp_path / "bare.json", {"traceEvents": [event("aten::mm", 1, **{"Record function id": 5})]})


@pytest.fixture
def donor(tmp_path: Path) -> Path:
    tensors = [[3, 3, 0, 32, 4, "cpu"], [4, 4, 0, 8, 4, "cpu"]]
    return saved(
        tmp_path / "et.json",
        {
            "schema": "1.1.0-chakra.0.0.4",
            "pid": 77,
            "nodes": [node(5, "aten::mm", tensors, [[8, 4], [4, 2]], ["Tensor(float)"] * 2)],
        },
    )


def opreplay_(*args: object) -> Result:
    return CliRunner().invoke(opreplay, [*map(str, args)], env={"COLUMNS": "100"})


def plan_of(*args: object) -> tuple[Any, Result]:
    """What `opreplay plan` prints as JSON."""
    result = opreplay_("plan", *args, "--output", "-")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), result


def kind_of(path: Path) -> str:
    dialect = inputs.plan_dialect(str(path))
    return "trace" if dialect is None else dialect.name


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"schema_version": 1, "source"', "plan"),
        ('\ufeff {"source": "x", "schema_version": 9}', "plan"),
        ('{"schemaVersion": 1, "traceEvents": [', "trace"),
        ('{"traceEvents": [{"schema_version": 1, "x": ', "trace"),
        ('{"schema": "1.1.1", "nodes": []}', "trace"),
        ('[{"replay_ir": {}, "op_name": "x"}, ', "tracelens"),
        ('[{"ph": "X", "args": {"op_name": 1, "replay_ir": 2}}]', "trace"),
        ("[]", "trace"),
        ("", "trace"),
    ],
)
def test_the_kind_is_told_by_content(tmp_path: Path, text: str, kind: str) -> None:
    path = tmp_path / "misleading_plan_event_replay_ir.txt"
    path.write_text(text, encoding="utf-8")
    assert kind_of(path) == kind


@given(st.binary(max_size=80) | st.text('[{":,}\\ a1', max_size=60).map(str.encode))
def test_any_bytes_are_of_some_kind(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    assert kind_of(path) in ("trace", "plan", "tracelens", "comms", "results", "backendbench")


def test_nesting_without_end_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "deep"
    path.write_text('{"a": ' + "[" * 500_000)
    assert kind_of(path) == "trace"


@pytest.mark.slow
def test_a_plan_is_taken_back_and_stays_the_same(trace: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    assert opreplay_("plan", trace, "--output", first).exit_code == 0
    assert opreplay_("plan", first, "--output", second).exit_code == 0
    assert load_plan(first) == load_plan(second)
    ran = opreplay_("run", first, "--include", "aten::mm", "--set", "op_time=1ms")
    assert ran.exit_code == 0, ran.stderr
    assert "replayed 1 of 1 op = " in ran.stdout


def test_a_plan_is_filtered_but_not_selected_anew(trace: Path, tmp_path: Path) -> None:
    saved_plan = tmp_path / "a.json"
    opreplay_("plan", trace, "--output", saved_plan)
    assert [op["name"] for op in plan_of(saved_plan, "--exclude", "aten::mm")[0]["ops"]] == ["aten::relu"]
    assert len(plan_of(saved_plan, "--top", 1)[0]["ops"]) == 1
    refused = opreplay_("plan", saved_plan, "--select", "leaf")
    assert refused.exit_code == 2
    assert "contains the ops selected by owner, not those by " in refused.stderr


@pytest.mark.slow
def test_a_plan_cannot_smuggle_in_what_a_trace_may_not(trace: Path, tmp_path: Path) -> None:
    saved_plan = tmp_path / "a.json"
    opreplay_("plan", trace, "--output", saved_plan)
    plan = json.loads(saved_plan.read_text())
    plan["ops"][0] |= {"name": "aten::from_file", "via": None, "overload": "", "args": []}
    ran = opreplay_("run", saved(tmp_path / "evil.json", plan), "--include", "aten::from_file")
    assert "replayed 0 of 1 op" in ran.stdout, ran.output


@pytest.mark.slow
def test_tracelens_is_read_run_and_written(tmp_path: Path) -> None:
    entries = [tracelens_entry("aten::mm"), tracelens_entry("aten::mm"), tracelens_entry("aten::nonesuch")]
    source = saved(tmp_path / "ops.txt", entries)
    ran = opreplay_("run", source, "--set", "op_time=1ms")
    assert ran.exit_code == 0, ran.stderr
    assert "replayed 2 of 3 ops, no times recorded; 1 skipped: 1 library missing" in ran.stdout
    again = tmp_path / "again.tracelens.json"
    assert opreplay_("plan", source, "--output", again).exit_code == 0
    assert json.loads(again.read_text()) == entries
    assert opreplay_("plan", source, "--output", again).exit_code == 2
    assert opreplay_("simulate", source).exit_code == 0


def test_what_tracelens_cannot_hold_is_narrated(trace: Path, bare: Path, tmp_path: Path) -> None:
    made = tmp_path / "event_replay_ir.json"
    assert "lacks 1 of 1 ops" in opreplay_("plan", bare, "--output", made).stderr
    assert opreplay_("plan", trace, "--output", made, "--force").exit_code == 0
    assert {entry["op_name"] for entry in json.loads(made.read_text())} == {"aten::mm", "aten::relu"}


def test_a_vendor_op_of_tracelens_goes_to_its_reference(tmp_path: Path) -> None:
    args = [{"arg_name": n, "arg_type": "Tensor", "value": TENSOR} for n in ("result", "input", "weight")]
    args += [{"arg_name": "epsilon", "arg_type": "float", "value": 1e-6}]
    args[2] = {**args[2], "value": {**TENSOR, "shape": [8], "strides": [1]}}
    entry = {"op_name": "_C::rms_norm", "replay_ir": {"list_pos_args": args, "list_kwargs": []}}
    plan, _ = plan_of(saved(tmp_path / "ops.json", [entry]))
    assert plan["ops"][0]["resolved_by"] == "reference", plan["ops"][0]


@pytest.mark.slow
def test_an_execution_trace_works_alone_and_as_donor(bare: Path, donor: Path) -> None:
    alone, _ = plan_of(donor)
    assert [op["name"] for op in alone["ops"]] == ["aten::mm"]
    without, _ = plan_of(bare)
    assert without["ops"][0]["reason"] == {"kind": "metadata missing", "detail": "shapes"}
    joined, result = plan_of(bare, "--execution-trace", donor)
    (mm,) = joined["ops"]
    assert [arg["tensors"][0]["shape"] for arg in mm["args"]] == [[8, 4], [4, 2]]
    assert "provided the arguments of 1 of 1 calls" in result.stderr
    assert "have different process ids" in result.stderr
    ran = opreplay_("run", bare, "--execution-trace", donor, "--set", "op_time=1ms")
    assert "replayed 1 of 1 op" in ran.stdout, ran.output


def test_a_wrong_donor_or_a_plan_with_one_is_refused(trace: Path, donor: Path, tmp_path: Path) -> None:
    refused = opreplay_("plan", trace, "--execution-trace", trace)
    assert refused.exit_code == 2
    assert "is not an ExecutionTrace" in refused.stderr
    saved_plan = tmp_path / "a.json"
    opreplay_("plan", trace, "--output", saved_plan)
    assert opreplay_("plan", saved_plan, "--execution-trace", donor).exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "plan", "simulate"])
def test_phase_takes_calls_of_one_phase_from_a_trace_and_from_a_plan(tmp_path: Path, command: str) -> None:
    notes = [
        {"ph": "X", "cat": "user_annotation", "name": name, "ts": ts, "dur": 50, "pid": 1, "tid": 1}
        for ts, name in ((0, "step[EXTEND bs=2 toks=9]"), (100, "step[DECODE bs=2]"))
    ]
    relu = {"Input Dims": [[8]], "Input type": ["float"], "Input Strides": [[1]], "Concrete Inputs": [""]}
    events = [event("aten::mm", 10, **MM), event("aten::relu", 110, **relu)]
    trace = saved(tmp_path / "t.json", {"traceEvents": notes + events})
    plan = tmp_path / "plan.json"
    assert CliRunner().invoke(opreplay, ["plan", str(trace), "-o", str(plan)]).exit_code == 0
    fast = ["--set", "op_time=1ms", "-o", str(tmp_path / "r.jsonl"), "--force"] if command == "run" else []
    for file in (trace, plan):
        done = CliRunner().invoke(opreplay, [command, str(file), "--phase", "decode", *fast])
        assert done.exit_code == 0, done.output
        assert "aten::mm" not in done.output
        refused = CliRunner().invoke(opreplay, [command, str(file), "--phase", "mixed", *fast])
        assert refused.exit_code == 2
        assert "There are iterations of phase prefill, decode." in refused.output


def test_limits_take_units() -> None:
    assert parse_limits([("decompressed_bytes", "128GiB"), ("events", "7")]) == Limits(
        decompressed_bytes=128 << 30, events=7
    )
    with pytest.raises(UsageError, match="unknown limit 'colour'"):
        parse_limits([("colour", "1")])


def test_a_glob_must_mean_one_file(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"traceEvents": []}')
    assert open_trace(str(tmp_path / "a*.json"), []).info.events == 0
    with pytest.raises(UsageError, match="matches 2 files"):
        open_trace(str(tmp_path / "*.json"), [])
