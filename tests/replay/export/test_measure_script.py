"""The parts of the file that measures calls: samples, spread, rows, an earlier run, and what is printed."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from opreplay.replay.export import measure_script
from opreplay.replay.export.measure_script import Timer

CPU = torch.device("cpu")
FACTS = {"name": "Ascend910B3", "software": "torch 2", "cann": "8.3"}


class FakeDevice:
    """A device with a queue: `now_us` is its clock, `queued_us` when it is done; the host takes 10 us for a call."""

    def __init__(self) -> None:
        self.now_us = self.done_us = 0.0

    def queue(self, us: float) -> None:
        self.now_us += 10.0
        self.done_us = max(self.done_us, self.now_us) + us

    def synchronize(self) -> None:
        self.now_us = max(self.now_us, self.done_us)

    def Event(self, enable_timing: bool = False) -> Any:
        device = self

        class Event:
            def record(self) -> None:
                self.at_us = max(device.now_us, device.done_us)

            def query(self) -> bool:
                return device.now_us > self.at_us

            def elapsed_time(self, end: Any) -> float:
                return (end.at_us - self.at_us) / 1e3

        return Event()


@pytest.fixture
def fake() -> tuple[Timer, FakeDevice]:
    timer, device = Timer(CPU, 64), FakeDevice()
    timer.has_events, timer.backend, timer.hold_us = True, device, 100.0
    timer.hold = lambda products: device.queue(100.0 * products)  # pyright: ignore[reportAttributeAccessIssue]
    return timer, device


def test_warm_times_are_of_the_device_although_the_host_is_slower(fake: tuple[Timer, FakeDevice]) -> None:
    timer, device = fake
    took_us, waited = timer.warm(lambda: device.queue(2.0), 50, queue_us=10.0)
    assert took_us == pytest.approx(2.0)
    assert not waited
    took_us, waited = timer.warm(lambda: device.queue(2.0), 50, queue_us=0.1)
    assert waited, "held back too shortly: the device waited for the host"


def test_cold_times_are_of_one_call(fake: tuple[Timer, FakeDevice]) -> None:
    timer, device = fake
    assert timer.cold(lambda: device.queue(7.0), queue_us=10.0) == (pytest.approx(7.0), False)


class Steps:
    """A call whose times are those given, the last one again and again."""

    def __init__(self, *times_us: float) -> None:
        self.times_us = list(times_us)

    def reset(self) -> None:
        pass

    def __call__(self) -> None:
        pass


def timed(times_us: list[float]) -> Timer:
    timer = Timer(CPU, 64)
    rest = iter(times_us)

    def cold(call: Callable[[], Any], queue_us: float) -> tuple[float, bool]:
        return next(rest, times_us[-1]), False

    timer.cold = cold  # pyright: ignore[reportAttributeAccessIssue]
    return timer


def test_unsteady_times_are_taken_more_often() -> None:
    row = measure_script.measured(timed([10.0] * 5), Steps(), "cold", 5, deadline=float("inf"))  # pyright: ignore[reportArgumentType]
    assert (row["us"], row["spread"], row["samples"]) == (10.0, 0.0, 5)
    unsteady = [10.0, 20.0, 10.0, 20.0, 10.0, 20.0] + [15.0] * 60
    row = measure_script.measured(timed(unsteady), Steps(), "cold", 5, deadline=float("inf"))  # pyright: ignore[reportArgumentType]
    assert 5 < row["samples"] <= measure_script.MOST_SAMPLES
    assert row["us"] == 15.0
    row = measure_script.measured(timed(unsteady), Steps(), "cold", 5, deadline=0.0)  # pyright: ignore[reportArgumentType]
    assert row["samples"] == 5, "no time is left"


def test_on_a_cpu_times_are_of_the_host() -> None:
    timer = Timer(CPU, 1 << 16)
    a = torch.ones(64, 64)
    for took_us, waited in (timer.warm(lambda: a @ a, 5, 0.0), timer.cold(lambda: a @ a, 0.0)):
        assert 0.1 < took_us < 1e5
        assert not waited


def test_a_row_says_how_it_was_measured() -> None:
    found = {"l2": "warm", "us": 12.3456789, "spread": 0.021, "samples": 9, "calls": 20, "host_bound": False}
    cells = measure_script.row_of({"text": "aten::x()"}, found, "910b3", FACTS, "npu")
    row = dict(zip(measure_script.COLUMNS, cells, strict=True))
    assert row["torch_us"] == "12.346"
    assert row["exact"] == "yes"
    assert "spread 2.1 %" in row["note"]
    assert row["state"] == "device events, 20 calls in a loop"
    bound = measure_script.row_of({"text": "aten::x()"}, {**found, "host_bound": True}, "910b3", FACTS, "npu")
    assert bound[7] == "no"
    assert "host-bound" in bound[10]


def test_an_earlier_run_is_read_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "measured.csv"
    assert measure_script.read_done(path) == set()
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(measure_script.COLUMNS)
        rows.writerow(["measure.py", "910b3", "", "", "cold", "aten::x(f32[4], f32[4])", "3", "yes", "", "", ""])
    assert measure_script.read_done(path) == {("910b3", "cold", "aten::x(f32[4], f32[4])")}
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="not a table of measured calls"):
        measure_script.read_done(path)


def test_a_row_that_was_cut_is_dropped_and_not_taken_for_done(tmp_path: Path) -> None:
    path, header = tmp_path / "measured.csv", ",".join(measure_script.COLUMNS)
    whole = f"{header}\nmeasure.py,910b3,,loop,warm,aten::x(),3,yes,,,\n"
    path.write_text(f"{whole}measure.py,910b3,,cleared,cold,aten::x(),1")
    assert measure_script.read_done(path) == {("910b3", "warm", "aten::x()")}
    assert path.read_text() == whole
    path.write_text("some,other\nfile")
    with pytest.raises(ValueError, match="not a table"):
        measure_script.read_done(path)
    assert path.read_text() == "some,other\nfile"


@pytest.mark.parametrize(("text", "wanted"), [("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("0.5min", 30.0)])
def test_a_budget_is_in_seconds_or_minutes(text: str, wanted: float) -> None:
    assert measure_script.seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "m", "5h", "-1", "1e9"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        measure_script.seconds(text)


def test_the_device_is_named_as_tables_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_script, "FACTS", {"socs": {"910b3": "910b3", "91093": "910c"}})
    assert measure_script.soc_of("Ascend910B3") == "910b3"
    assert measure_script.soc_of("Ascend910_93") == "910c"
    assert measure_script.soc_of("NVIDIA H200") == "nvidiah200"


def test_a_clock_that_changes_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"left_out": ["not in this file: 2 x my::op: a reason"]}
    monkeypatch.setattr(measure_script, "FACTS", facts)
    report = measure_script.Report()
    call = {"text": "aten::x()", "predicted_us": {"warm": 10.0, "cold": 10.0}}
    report.rows = [(call, {"l2": "warm", "us": 25.0, "spread": 0.2, "host_bound": True})]
    report.failed = [("aten::bad()", "RuntimeError: no kernel")]
    report.references = [{"tflops": 280.0, "gb_per_s": 1200.0}, {"tflops": 240.0, "gb_per_s": 1210.0}]
    report.show(Path("measured.csv"), "910b3")
    text = capsys.readouterr().out
    assert "reference measurements differ by 17 %" in text
    assert "2.50x" in text
    assert "unsteady: 1 of 1" in text
    assert "host-bound: 1" in text
    assert "failed: aten::bad(): RuntimeError: no kernel" in text
    assert "2 x my::op" in text
    assert "opreplay calibrate measured.csv --soc 910b3" in text
    report.references = report.references[:1] * 3
    report.show(Path("measured.csv"), "910b3")
    assert "clock: steady" in capsys.readouterr().out
    report.references = report.references[:1]
    report.show(Path("measured.csv"), "910b3")
    assert "clock: not checked" in capsys.readouterr().out


def test_messages_become_rows_as_they_come(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    call = '{"text": "aten::x()", "predicted_us": {"warm": 10.0, "cold": 10.0}}'
    monkeypatch.setattr(measure_script, "CALLS", [call])
    monkeypatch.setattr(measure_script, "FACTS", {"soc": "910b3", "socs": {"910b3": "910b3"}})
    row = {"l2": "cold", "us": 11.0, "spread": 0.0, "samples": 9, "calls": 1, "host_bound": False}
    rows: list[list[str]] = []
    report, options = measure_script.Report(), argparse.Namespace(soc="", budget=60.0)
    found = [
        {"kind": "device", **FACTS, "name": "Ascend910B2"},
        {"kind": "reference", "tflops": 1.0, "gb_per_s": 1.0},
        {"kind": "measured", "index": 0, "rows": [row]},
        {"kind": "failed", "index": 0, "why": "RuntimeError: x"},
        {"kind": "no time"},
        {"kind": "end"},
    ]
    assert measure_script.take(found, report, options, "npu", rows.append) is None
    assert [row[1] for row in rows] == ["ascend910b2".removeprefix("ascend")]
    assert "not 910b3" in report.notes[0]
    assert "budget of 60 s" in report.notes[1]
    assert report.failed == [("aten::x()", "RuntimeError: x")]
    problem = measure_script.take([{"kind": "no device", "why": "y"}], report, options, "npu", rows.append)
    assert problem == "no device 'npu' here: y"
