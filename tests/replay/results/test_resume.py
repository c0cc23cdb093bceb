"""What makes two runs one: the same ops, options, seed, devices and versions."""

from __future__ import annotations

from pathlib import Path
from time import sleep
from typing import Any

import msgspec
import pytest

from opreplay.replay.execute.executors.fake import FakeExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.runner import InProcess
from opreplay.replay.ir.model import Reason, Recorded, ReplayOp, ReplayPlan
from opreplay.replay.results.outcome import unable
from opreplay.replay.results.reading import read_result_file
from opreplay.replay.results.records import Record
from opreplay.replay.results.resume import WHILE_IT_RAN
from opreplay.replay.results.writing import JsonLinesSink
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta
from tests.running import run_plan

OPTIONS = RunOptions(executor="fake", isolation="none", max_op_bytes=10**6)


def fake_op(index: int) -> ReplayOp:
    recorded = Recorded(host_us_total=4, host_us_median=2, device_us_total=10)
    return ReplayOp(id=f"{index:012x}", name=f"fake::{index + 1}us", count=2, recorded=recorded)


PLAN = ReplayPlan(source="t.json", device_us_total=100.0, host_us_total=9.0, ops=tuple(fake_op(i) for i in range(4)))


class Counting(InProcess):
    """Remembers what it measured, and is interrupted before one op."""

    def __init__(self, stop_at: str = "") -> None:
        super().__init__(FakeExecutor(), WorkerConfig(memory_bytes=10**6))
        self.stop_at = stop_at
        self.measured: list[str] = []

    def measure(self, op: ReplayOp) -> Any:
        if op.name == self.stop_at:
            raise KeyboardInterrupt
        self.measured.append(op.name)
        return super().measure(op)


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """Results of two of four ops."""
    path = tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink, pytest.raises(KeyboardInterrupt):
        run_plan(PLAN, OPTIONS, sink=sink, runner=Counting("fake::3us"))
    return path


def go_on(path: Path, plan: ReplayPlan = PLAN, options: RunOptions = OPTIONS, **more: Any) -> Counting:
    runner = Counting()
    sink, earlier = JsonLinesSink.reopen(path)
    with sink:
        run_plan(plan, options, sink=sink, runner=runner, earlier=earlier, **more)
    return runner


def test_a_run_goes_on_with_the_ops_that_are_missing(cut: Path) -> None:
    assert go_on(cut).measured == ["fake::3us", "fake::4us"]
    whole = read_result_file(cut)
    assert [result.name for result in whole.results] == [op.name for op in PLAN.ops]
    assert whole.summary is not None
    assert (whole.summary.replayed, whole.summary.interrupted) == (4, False)
    size = cut.stat().st_size
    assert go_on(cut).measured == []
    assert cut.stat().st_size == size, "a run that is complete is left as it is"


def test_every_cut_of_the_file_is_continued_to_the_same_results(cut: Path, tmp_path: Path) -> None:
    go_on(cut)
    data = cut.read_bytes()
    names = [op.name for op in PLAN.ops]
    for length in range(data.index(b"\n") + 1, len(data), 131):
        part = tmp_path / "part.jsonl"
        part.write_bytes(data[:length])
        before = [result.name for result in read_result_file(part).results]
        runner = go_on(part)
        assert before + runner.measured == names
        assert [result.name for result in read_result_file(part).results] == names


def heavier() -> ReplayPlan:
    return msgspec.structs.replace(PLAN, ops=(*PLAN.ops[:3], fake_op(9)))


@pytest.mark.parametrize(
    ("plan", "options", "more", "what"),
    [
        (heavier(), {}, {}, "another trace"),
        (PLAN, {"seed": 3}, {}, r"seed \(0 before, 3 now\)"),
        (PLAN, {"op_time_s": 0.5}, {}, r"cannot resume: --set op_time \(0.2 before, 0.5 now\) differ"),
        (PLAN, {}, {"devices": ("910b3 2",)}, r"devices \(none before, 910b3 2 now\)"),
    ],
)
def test_another_run_is_no_continuation(
    cut: Path, plan: ReplayPlan, options: dict[str, Any], more: dict[str, Any], what: str
) -> None:
    before = cut.read_bytes()
    with pytest.raises(UsageError, match=what):
        go_on(cut, plan, msgspec.structs.replace(OPTIONS, **options), **more)
    assert cut.read_bytes() == before


def test_an_op_that_took_a_runs_time_comes_last_in_each_that_goes_on(tmp_path: Path) -> None:
    """It came first in each, so that no other op was ever tried."""

    class Endless(Counting):
        def measure(self, op: ReplayOp) -> Any:
            if op.name != "fake::1us":
                return super().measure(op)
            self.measured.append(op.name)
            sleep(0.06)
            return unable(Reason("out of time", f"{WHILE_IT_RAN} (--set total_time)"))

    path, short = tmp_path / "r.jsonl", msgspec.structs.replace(OPTIONS, total_time_s=0.05)
    runner = Endless()
    with JsonLinesSink.open(path) as sink:
        run_plan(PLAN, short, sink=sink, runner=runner)
    assert runner.measured == ["fake::1us"]
    go_on(path, PLAN, msgspec.structs.replace(OPTIONS, total_time_s=0.0))
    first = read_result_file(path).results[0]
    assert str(first.reason) == f"out of time: {WHILE_IT_RAN} before, and the run's 0 s were used up (--set total_time)"
    assert go_on(path).measured == ["fake::2us", "fake::3us", "fake::4us", "fake::1us"]
    assert [result.name for result in read_result_file(path).results] == [op.name for op in PLAN.ops]


def test_time_limits_may_change_and_ops_without_time_get_another_chance(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink:
        run_plan(PLAN, msgspec.structs.replace(OPTIONS, total_time_s=0.0), sink=sink, runner=Counting())
    assert {result.status for result in read_result_file(path).results} == {"skipped"}
    assert len(go_on(path).measured) == 4
    assert {result.status for result in read_result_file(path).results} == {"replayed"}


def test_the_memory_limit_of_the_first_part_stays(tmp_path: Path) -> None:
    open_limit = msgspec.structs.replace(OPTIONS, max_op_bytes=None)
    path = tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink, pytest.raises(KeyboardInterrupt):
        run_plan(PLAN, open_limit, sink=sink, runner=Counting("fake::2us"))
    assert len(go_on(path, options=open_limit).measured) == 3


def test_values_are_told_apart_by_their_contents(tmp_path: Path) -> None:
    from opreplay.replay.results.resume import identity_of

    file = tmp_path / "v.safetensors"
    found = []
    for contents in (b"one", b"two"):
        file.write_bytes(contents)
        found.append(identity_of(PLAN, {"values": str(file), "seed": 1}, {})["values"])
    assert found[0] != found[1]


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"

    class Full(JsonLinesSink):
        def write(self, record: Record) -> None:
            if path.stat().st_size > 3000:
                raise OSError(28, "No space left on device")
            super().write(record)

    with path.open("xb", buffering=0) as stream, pytest.raises(OSError, match="No space"):
        run_plan(PLAN, OPTIONS, sink=Full(stream, close=True), runner=Counting())
    assert go_on(path).measured
    assert len(read_result_file(path).results) == 4


def test_a_refusal_names_the_op_that_differs(cut: Path) -> None:
    """By its calls, by its way of being called, or as one that is not there any more."""
    first, *others = PLAN.ops
    for op, why in (
        (msgspec.structs.replace(first, count=3), "2 calls before and 3 now"),
        (msgspec.structs.replace(first, resolved_by="reference"), "nothing before and reference now"),
        (msgspec.structs.replace(first, id="f" * 12), "which is not an op of this plan"),
    ):
        with pytest.raises(UsageError, match=f"the ops .* starting with {first.name}.*{first.id}.*{why}"):
            go_on(cut, msgspec.structs.replace(PLAN, ops=(op, *others)))


def test_what_a_helper_process_found_makes_no_other_run(cut: Path) -> None:
    """Outputs on meta tensors, and reasons of a process that died while it called an op."""
    first, second, *others = PLAN.ops
    found = msgspec.structs.replace(first, outputs=(TensorMeta(shape=(2,), dtype="float32"),))
    lost = msgspec.structs.replace(second, reason=Reason("worker lost", "SIGKILL on meta tensors"))
    assert go_on(cut, msgspec.structs.replace(PLAN, ops=(found, lost, *others))).measured
