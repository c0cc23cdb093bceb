"""Which step is taken, in which order its calls come, and what a plan of the step holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from opreplay.replay.ir import model as ir
from opreplay.replay.ir.model import RecordedSequence, ReplayPlan
from opreplay.replay.ir.plan_file import dump_plan, parse_plan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.selection import OpFilter
from opreplay.replay.plan.step.of_step import step_plan
from opreplay.traces import read_trace
from opreplay.traces.errors import FormatError, UsageError

DIMS = {"Input Dims": [[4, 8]], "Input type": ["float"]}


def op(name: str, ts: float, dur: float = 1.0, *, tid: int = 1, pid: int = 7) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {**DIMS, "External id": int(ts * 10)},
    }


def step(name: str, ts: float, dur: float, *, pid: int = 7) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": pid, "tid": 1, "ts": ts, "dur": dur, "args": {}}


def plan_of(tmp_path: Path, events: list[dict[str, Any]], **how: Any) -> ReplayPlan:
    path = tmp_path / "t.json"
    path.write_bytes(orjson.dumps({"traceEvents": events}))
    return build_plan(read_trace(path), in_order=True, **how)


def sequence_of(plan: ReplayPlan) -> RecordedSequence:
    assert plan.sequence is not None
    return plan.sequence


def names(plan: ReplayPlan) -> list[str]:
    by_id = {one.id: one.name for one in plan.ops}
    sequence = sequence_of(plan)
    return [by_id[sequence.ids[call]] for call in sequence.calls]


STEPS = [
    step("ProfilerStep#1", 0, 100),
    op("aten::relu", 10),
    op("aten::tanh", 20),
    step("ProfilerStep#2", 100, 50),
    op("aten::tanh", 130, 2.5),
    op("aten::relu", 120, 1.5),
    op("aten::relu", 140),
    step("ProfilerStep#3", 150, 20),
    op("aten::sigmoid", 160),
]


def test_the_step_of_median_duration_in_order_of_start(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, STEPS)
    sequence = sequence_of(plan)
    assert (sequence.step, sequence.steps, sequence.dur_us) == ("ProfilerStep#2", 3, 50.0)
    assert names(plan) == ["aten::relu", "aten::tanh", "aten::relu"]
    assert sequence.host_us == (1.5, 2.5, 1.0)
    assert sequence.device_us == ()


def test_a_plan_of_the_step_counts_what_the_step_calls(tmp_path: Path) -> None:
    plan = step_plan(plan_of(tmp_path, STEPS))
    assert {(one.name, one.count, one.recorded.host_us_total) for one in plan.ops} == {
        ("aten::relu", 2, 2.5),
        ("aten::tanh", 1, 2.5),
    }
    assert plan.host_us_total == 5.0


def test_a_trace_without_steps_is_one(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, [op("aten::relu", 10), op("aten::tanh", 20, 5)])
    sequence = sequence_of(plan)
    assert (sequence.step, sequence.steps, sequence.dur_us) == ("", 0, 15.0)
    assert names(plan) == ["aten::relu", "aten::tanh"]


def test_steps_of_another_process_are_its_own(tmp_path: Path) -> None:
    events = [step("ProfilerStep#1", 0, 100, pid=8), op("aten::relu", 10, pid=8), op("aten::tanh", 20)]
    assert names(plan_of(tmp_path, events)) == ["aten::relu"]


def test_iterations_of_a_server_are_steps_too(tmp_path: Path) -> None:
    events = [
        step("execute_context_1(8)_generation_0(0)", 0, 100),
        op("aten::relu", 10),
        step("execute_context_0(0)_generation_2(2)", 100, 10),
        op("aten::tanh", 105),
        step("execute_context_0(0)_generation_2(2)", 110, 12),
        op("aten::tanh", 115),
        op("aten::tanh", 116.5),
    ]
    plan = plan_of(tmp_path, events)
    assert (sequence_of(plan).step, names(plan)) == ("iteration 3 of 3", ["aten::tanh"] * 2)
    prefill = plan_of(tmp_path, events, filters=OpFilter(phase="prefill"))
    assert (sequence_of(prefill).step, names(prefill)) == ("iteration 1 of 3", ["aten::relu"])


def test_calls_inside_others_are_left_to_them(tmp_path: Path) -> None:
    events = [op("aten::matmul", 10, 10), op("aten::mm", 12, 5), op("aten::relu", 30)]
    plan = plan_of(tmp_path, events, select="all")
    assert names(plan) == ["aten::matmul", "aten::relu"]
    assert sequence_of(plan).nested == 0, "all means the outermost ones here"


def test_device_time_inside_goes_to_the_call_around_it(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "mi300_resnet_ddp_act_checkpoint.json.gz")
    sequence = sequence_of(build_plan(trace, in_order=True))
    assert (sequence.step, sequence.steps, sequence.nested) == ("ProfilerStep#16", 3, 2)
    assert len(sequence.calls) == 434
    assert sum(sequence.device_us) == pytest.approx(sequence.device_us_total - sequence.unowned_device_us)


def test_filters_leave_calls_out_and_totals_as_they_are(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, STEPS, filters=OpFilter(include=("aten::relu",)))
    assert names(plan) == ["aten::relu"] * 2
    assert sequence_of(plan).host_us_total == 5.0


def test_long_sequences_are_cut_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opreplay.replay.plan.step.order.MAX_CALLS", 2)
    plan = plan_of(tmp_path, STEPS)
    assert names(plan) == ["aten::relu", "aten::tanh"]
    assert sequence_of(plan).cut == 1


def test_a_plan_file_holds_the_order(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, STEPS)
    assert parse_plan(dump_plan(plan)) == plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"calls": (0, 2, 0)}, "an op that it does not list"),
        ({"calls": (0, -1, 0)}, "an op that it does not list"),
        ({"host_us": (1.0,)}, "one recorded time per call"),
        ({"device_us": (1.0,)}, "one recorded time per call"),
        ({"dur_us": -1.0}, "negative"),
        ({"host_us": (1.0, float("inf"), 1.0)}, "negative or not finite"),
    ],
)
def test_damaged_sequences_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    plan = plan_of(tmp_path, STEPS)
    broken = msgspec.structs.replace(plan, sequence=msgspec.structs.replace(sequence_of(plan), **change))
    data = dump_plan(broken) if "inf" not in repr(change) else dump_plan(broken).replace(b"null", b"1e999", 1)
    with pytest.raises(FormatError, match=f"{message}|out of range|Expected"):
        parse_plan(data)


def test_a_plan_has_no_more_calls_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path, STEPS)
    monkeypatch.setattr("opreplay.replay.ir.verify.MAX_CALLS", 2)
    with pytest.raises(FormatError, match="3 calls, over the limit of 2"):
        parse_plan(dump_plan(plan))
    assert ir.MAX_CALLS == 100_000


def test_a_plan_without_an_order_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(orjson.dumps({"traceEvents": [op("aten::relu", 1)]}))
    with pytest.raises(UsageError, match="order") as raised:
        step_plan(build_plan(read_trace(path)))
    assert "plan TRACE --output" in raised.value.hint
