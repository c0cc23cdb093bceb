"""Device times that nothing can have taken are told, and those of sound recordings are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.plan.inputs import impossible_notes
from opreplay.traces import Trace, read_trace
from opreplay.traces.times.doubts import doubts_of
from opreplay.traces.times.impossible import impossible_kernels, outlying_kernel
from tests.scenarios.events import owner
from tests.traces.events import document, kernel, launch, op, write

Event = dict[str, Any]


def step() -> list[Event]:
    events = [event for number in range(1, 7) for event in owner("aten::mm", number, [[64, 64]] * 2, 20.0)]
    for number, event in enumerate(kernels(events)):
        event["ts"] = 200.0 + 100.0 * number
    return events


def written(tmp_path: Path, events: list[Event]) -> Path:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": events}))
    return path


def kernels(events: list[Event]) -> list[Event]:
    return [event for event in events if event["cat"] == "kernel"]


def again(events: list[Event]) -> None:
    twice = kernels(events)[2]
    events.append({**twice, "args": {**twice["args"], "correlation": 999}})


def lasting(number: int, us: float) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        kernels(events)[number]["dur"] = us

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (again, {"recorded twice": 1}),
        (lasting(2, 120.0), {"overlaps another kernel on its stream": 2}),
        (lasting(-1, 2e7), {"longer than the rest of the recording": 1}),
        (lasting(2, 2e7), {"longer than the rest of the recording": 1, "overlaps another kernel on its stream": 3}),
        (lasting(-1, 2e4), {}),
    ],
)
def test_each_kind_is_counted(tmp_path: Path, change: Callable[[list[Event]], None], told: dict[str, int]) -> None:
    events = step()
    change(events)
    faults = impossible_kernels(read_trace(written(tmp_path, events)))
    assert {one.kind: one.kernels for one in faults} == told
    assert all(0 <= one.share <= 1 for one in faults)


def pairs(short_us: float, ahead_us: float, names: tuple[str, str]) -> list[Event]:
    """15 pairs of kernels of one stream: one of 30 us and one that begins `ahead_us` before its end."""
    events = [event for number in range(1, 31) for event in owner("aten::mm", number, [[64, 64]] * 2, 30.0)]
    for number, event in enumerate(kernels(events)):
        event["ts"], event["name"] = 200.0 + 50.0 * (number // 2), names[number % 2]
        if number % 2:
            event["ts"], event["dur"] = event["ts"] + 30.0 - ahead_us, short_us
    return events


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (pairs(8.0, 5.0, ("gemm", "rms_norm")), False),  # a dependent launch waits for the one ahead, ends after it
        (pairs(30.0, 28.0, ("gemm", "gemm")), True),  # two recordings of one sequence
        (pairs(8.0, 9.0, ("gemm", "rms_norm")), True),  # ends within the one ahead
    ],
)
def test_dependent_launches_may_overlap(tmp_path: Path, events: list[Event], told: bool) -> None:
    trace = read_trace(written(tmp_path, events))
    assert bool(impossible_kernels(trace)) is told
    assert bool(doubts_of(trace).impossible) is told


def test_three_kernels_at_once_are_impossible(tmp_path: Path) -> None:
    events = [event for number in range(1, 31) for event in owner("aten::mm", number, [[64, 64]] * 2, 20.0)]
    for number, event in enumerate(kernels(events)):
        event["ts"], event["name"] = 200.0 + 6.0 * number, f"kernel_{number % 3}"
    assert doubts_of(read_trace(written(tmp_path, events))).impossible


@pytest.mark.parametrize(("lead_us", "told"), [(0.4, 0.0), (30.0, 30.0)])
def test_clocks_differ_only_by_more_than_they_jitter(tmp_path: Path, lead_us: float, told: float) -> None:
    events = step()
    for event in kernels(events):
        launch = next(
            other
            for other in events
            if other["cat"] == "cuda_runtime" and other["args"]["correlation"] == event["args"]["correlation"]
        )
        event["ts"] = launch["ts"] - lead_us
    assert doubts_of(read_trace(written(tmp_path, events))).clock_offset_us == pytest.approx(told)


@pytest.mark.parametrize("command", [("inspect",), ("plan",), ("simulate", "--soc", "910b3"), ("timeline",)])
@pytest.mark.parametrize("us", [120.0, float("nan"), -20.0, 2e7])
def test_every_command_warns_of_them(tmp_path: Path, command: tuple[str, ...], us: float) -> None:
    """A total with a kernel of 20 s in a step of 1 ms looked like any other."""
    events = step()
    lasting(2, us)(events)
    result = CliRunner().invoke(opreplay, [*command, str(written(tmp_path, events))])
    assert result.exit_code == 0, result.output
    assert "opreplay: warning: t.json" in result.stderr


def test_public_recordings_are_sound(shared_traces: Path) -> None:
    for path in sorted(shared_traces.glob("[hn]*0_*.json.gz"))[:4]:
        assert impossible_kernels(read_trace(path)) == (), path.name


def traced(folder: Path, durations_us: list[float], *, shapes: list[int] | None = None) -> Trace:
    """One aten::add a kernel, with a kernel of aten::mm beside each."""
    events: list[Any] = []
    at = 1000
    for call, us in enumerate(durations_us):
        rows = 8 if shapes is None else shapes[call]
        dims = {"Input Dims": [[rows, 8], [rows, 8]], "Input type": ["float", "float"]}
        for step, (name, took) in enumerate((("aten::add", us), ("aten::mm", 30))):
            ident = 2 * call + step + 1
            events += [op(name, at, 20, ident, **dims), launch(at + 5, ident)]
            ids: dict[str, Any] = {"External id": ident, "correlation": ident}
            events.append(kernel(f"k_{name[6:]}", at + 30, took, **ids))
            at += int(took) + 50
    return read_trace(write(folder, document(events)))


def test_one_kernel_far_longer_than_others_like_it(tmp_path: Path) -> None:
    found = outlying_kernel(traced(tmp_path, [100.0] * 7 + [20_000.0]))
    assert found is not None
    assert (found.kernel, found.op, found.us, found.usual_us, found.others) == (
        "k_add",
        "aten::add",
        20_000.0,
        100.0,
        7,
    )
    assert found.share == pytest.approx(20_000 / (20_000 + 700 + 240))
    (told,) = impossible_notes(traced(tmp_path, [100.0] * 7 + [20_000.0]), "t.json")
    assert (
        "one kernel of 20,000 µs takes 96 % of the device time, but the 7 other kernels of this name in aten::add"
        in told
    )


@pytest.mark.parametrize(
    ("durations_us", "shapes"),
    [
        ([100.0] * 8, None),
        ([100.0] * 7 + [1_500.0], None),  # 15 times as long
        ([100.0] * 2 + [20_000.0], None),  # too few to compare with
        ([100.0] * 7 + [20_000.0], [8] * 7 + [4096]),  # other shapes
        ([100.0] * 300 + [20_000.0], None),  # less than half of the time
    ],
)
def test_kernels_that_are_no_outliers(tmp_path: Path, durations_us: list[float], shapes: list[int] | None) -> None:
    assert outlying_kernel(traced(tmp_path, durations_us, shapes=shapes)) is None
