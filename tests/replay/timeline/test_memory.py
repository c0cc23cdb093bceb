"""Memory over a step, from recorded allocations."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.timeline.memory import BEFORE
from opreplay.replay.timeline.timeline import timeline
from opreplay.traces import read_trace
from tests.replay.timeline.machine import Machine


def test_the_peak_and_what_is_live_at_it(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    used = 1000
    for name, size, address in (
        ("aten::mm", 500, 1),
        ("aten::add", 300, 2),
        ("aten::mm", -500, 1),
        ("aten::mul", 100, 3),
        ("aten::add", -300, 2),
    ):
        used += size
        args = {"Bytes": size, "Addr": address, "Total Allocated": used, "Device Type": 1, "Device Id": 0}
        machine.events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": 9,
                "tid": 1,
                "ts": machine.now + 5,
                "args": args,
            }
        )
        machine.op(name, 20.0)
    machine.end()
    found = timeline(read_trace(machine.write(tmp_path / "t.json"), activity=True)).timeline.memory
    assert found is not None
    assert found.on_device
    assert (found.begin_bytes, found.peak_bytes, found.end_bytes) == (1000, 1800, 1100)
    assert found.peak_at_us == pytest.approx(25.0)
    assert found.at_peak_by_op == {BEFORE: 1000, "aten::mm": 500, "aten::add": 300}


def test_a_public_trace(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "h100_qwen1.5_0.5b.json.gz", activity=True)
    found = timeline(trace, devices=[load_device("910b3")]).timeline.memory
    assert found is not None
    assert 1e8 < found.peak_bytes < 80e9
    assert found.fits == {"910b3": True}
    assert sum(found.at_peak_by_op.values()) == pytest.approx(found.peak_bytes, rel=0.05)


def test_none_where_nothing_is_recorded(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    machine.op("aten::mm", 20.0)
    machine.end()
    assert timeline(read_trace(machine.write(tmp_path / "t.json"), activity=True)).timeline.memory is None
