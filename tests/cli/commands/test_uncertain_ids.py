"""Ids that collide and kernels before their launch: one fact, which `inspect`, `timeline` and --process tell alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.traces import read_trace
from opreplay.traces.processes.select import one_process
from opreplay.traces.times.doubts import doubts_of
from tests.traces.events import DIMS, document, kernel, launch, note, op, write

Event = dict[str, Any]


def invoke(*args: object) -> Result:
    return CliRunner().invoke(opreplay, [*map(str, args)], env={"COLUMNS": "100"})


def step_in(*args: object) -> Any:
    result = invoke(*args, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["step"]


def profile(pid: int, *, shift: float, calls: int = 20, dur: float = 90, marked: bool = True) -> list[Event]:
    """A process whose device works nearly all of the time."""
    events = [note("ProfilerStep#1", shift, 100 * calls)] if marked else []
    for call in range(1, calls + 1):
        at, ids = 100 * call + shift - 100, {"External id": call, "correlation": call}
        events += [op("aten::mm", at, 30, call, **DIMS), launch(at + 5, call), kernel("gemm", at + 8, dur, **ids)]
    for event in events:
        event["pid"] = 0 if event["cat"] == "kernel" else pid
    return events


def by_time(*profiles: list[Event]) -> list[Event]:
    return sorted((event for events in profiles for event in events), key=lambda event: event["ts"])


@pytest.mark.parametrize("marked", [True, False])
def test_two_processes_on_one_device_have_no_verdict(tmp_path: Path, marked: bool) -> None:
    """Work of 40 us each, one after the other on the stream: possible times, but nobody knows whose."""
    events = by_time(*(profile(pid, shift=50 * (pid - 41), dur=40, marked=marked) for pid in (41, 42)))
    for event in events:
        if event["cat"] == "kernel":
            event["ts"] += 120  # behind the next launch of its id
    path = write(tmp_path, document(events))
    whole = read_trace(path, activity=True)
    assert whole.info.collided.events == len(whole.kernels) == 40
    assert (whole.info.collided.ids, whole.info.collided.of) == ((1, 2, 3), ("41", "42"))
    assert doubts_of(whole).collided_share == doubts_of(one_process(whole)).collided_share == 1.0
    inspected, timed = invoke("inspect", path), invoke("timeline", path)
    for result in (inspected, timed):
        assert "bound" not in result.stdout.splitlines()[0].replace("bounds", "")
        assert "1, 2, 3 of processes 41, 42" in result.stderr


def test_a_kernel_long_before_its_launch_takes_the_verdict(tmp_path: Path) -> None:
    events = profile(7, shift=10_000)
    moved = [event for event in events if event["cat"] == "kernel"][12]
    sound = step_in("timeline", write(tmp_path, document(events), "sound.json"))
    moved["ts"] -= 5_000
    path = write(tmp_path, document(events))
    steps = [step_in(command, path) for command in ("inspect", "timeline")]
    assert sound["bound"] == "device"
    assert [step["bound"] for step in steps] == ["unknown", "unknown"]
    assert steps[0]["doubts"]["displaced"] == 1
    assert steps[0]["doubts"]["displaced_by_us"] == pytest.approx(4_997)
    assert steps[0]["verdict"] == steps[1]["verdict"]
    stderr = invoke("inspect", path).stderr
    assert "5.00 ms before the launch" in stderr
    assert "collide" not in stderr
    assert "launched before" not in invoke("inspect", path).stdout


def test_one_of_many_kernels_before_its_launch_leaves_the_verdict(tmp_path: Path) -> None:
    events = profile(7, shift=10_000, calls=400)
    [event for event in events if event["cat"] == "kernel"][12]["ts"] -= 5_000
    step = step_in("inspect", write(tmp_path, document(events)))
    assert (step["bound"], step["doubts"]["displaced"]) == ("device", 0)


def test_the_offset_of_clocks_is_that_of_each_process(tmp_path: Path) -> None:
    """Every kernel 70 us early, in a file of two processes whose ids differ."""
    events = profile(41, shift=0) + profile(42, shift=30)
    for number, event in enumerate(events):
        second = number >= len(events) // 2
        if event["cat"] == "kernel":
            event["ts"] -= 70
            event["pid"], event["args"]["device"] = int(second), int(second)
        for key in {"External id", "correlation"} & event["args"].keys() if second else ():
            event["args"][key] += 1000
    path = write(tmp_path, document(events))
    for process in ("41", "42"):
        step = step_in("timeline", path, "--process", process)
        assert (step["bound"], step["process"]) == ("unknown", process)
        assert step["doubts"]["clock_offset_us"] == 67.0


@pytest.mark.parametrize(
    ("ts", "corr", "count"),
    [
        (-500, 4, 1),  # before all that the host did
        (6, 4, 1),  # before the first kernel of its stream with a launch, with an id from before
        (6, 400, 0),  # the same with an id that no launch has: its launch may be lost
        (6, None, 0),
    ],
)
def test_what_is_known_to_be_launched_before(tmp_path: Path, ts: float, corr: int | None, count: int) -> None:
    events = profile(7, shift=0)
    for event in events:
        for key in {"External id", "correlation"} & event["args"].keys():
            event["args"][key] += 100
    events.append(kernel("past", ts, 1, **({} if corr is None else {"correlation": corr})))
    links = read_trace(write(tmp_path, document(events))).info.links
    assert (links.launched_before, links.unowned) == (count, 1)


@pytest.mark.parametrize("command", ["inspect", "timeline"])
def test_idle_time_of_one_stream_is_not_for_others(tmp_path: Path, command: str) -> None:
    """The launches are far ahead, and 10 us lie between two kernels."""
    events = profile(7, shift=0)
    for event in events:
        event["ts"] = event["ts"] + 400 if event["cat"] == "kernel" else event["ts"] / 10
        event["dur"] /= 10 if event["cat"] == "cpu_op" else 1
    shown = invoke(command, write(tmp_path, document(events), "a.json")).stdout
    assert "between tasks" in shown
    assert "other stream" not in shown
