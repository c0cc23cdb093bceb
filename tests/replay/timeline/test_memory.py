"""Memory over a step, from recorded allocations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.simulate.devices import load_socs
from opreplay.replay.plan.inputs import open_trace, plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.replay.timeline.memory import BEFORE, _verdict, inferred_memory, memory_of, memory_over_step
from opreplay.replay.timeline.timeline import timeline
from opreplay.traces import read_trace
from opreplay.traces.links.steps import chosen_step
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
    study = timeline(read_trace(machine.write(tmp_path / "t.json"), activity=True))
    found = study.timeline.memory
    assert found is not None
    assert found.on_device
    assert (found.begin_bytes, found.peak_bytes, found.end_bytes) == (1000, 1800, 1100)
    assert found.peak_at_us == pytest.approx(25.0)
    assert found.at_peak_by_op == {BEFORE: 1000, "aten::mm": 500, "aten::add": 300}
    at_us, in_use = memory_over_step(study.names.trace, study.graph.step)
    assert in_use.tolist()[0] - found.begin_bytes > 0
    assert (int(in_use.max()), float(at_us[in_use.argmax()]), int(in_use[-1])) == (
        found.peak_bytes,
        found.peak_at_us,
        found.end_bytes,
    )


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


def test_memory_of_known_lifetimes(tmp_path: Path) -> None:
    """Forward and no backward: results go after their last use; a view keeps what it looks at; weights stay."""

    def op(name: str, ts: int, *dims: list[int]) -> dict[str, object]:
        args = {"Input Dims": list(dims), "Input type": ["float"] * len(dims), "Concrete Inputs": [""] * len(dims)}
        return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 5, "args": args}

    events = [
        op("aten::mm", 0, [64, 128], [128, 256]),
        op("aten::relu", 10, [64, 256]),
        op("aten::mm", 20, [64, 256], [256, 32]),
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = open_trace(str(path), activity=True)
    plan = plan_of(trace, Selection(select="all"), device="cpu", in_order=True)
    devices = list(load_socs(("910b3",)).values())
    found = inferred_memory(plan, devices, on_device=False)
    assert found is not None
    assert (found.source, found.peak_at_us, found.fits) == ("inferred", None, {"910b3": True})
    outside = 4 * (64 * 128 + 128 * 256 + 256 * 32)
    # relu needs the first product and makes as much; the second product is smaller.
    assert found.peak_bytes == outside + 2 * 4 * 64 * 256
    assert found.begin_bytes == outside
    assert found.at_peak_by_op == {
        "(parameters and inputs)": outside,
        "aten::mm": 4 * 64 * 256,
        "aten::relu": 4 * 64 * 256,
    }
    # The input of the first product is no parameter by its name: it is gone after its use, before the peak.
    assert found.low_bytes == found.peak_bytes - 4 * 64 * 128


def test_inferred_memory_is_near_the_recorded_one(shared_traces: Path) -> None:
    for name in ("h100_bert_small", "h100_falconsai_vit"):
        trace = open_trace(str(shared_traces / f"{name}.json.gz"), activity=True)
        plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
        told, made = memory_of(trace, chosen_step(trace), []), inferred_memory(plan, [], on_device=True)
        assert told is not None
        assert made is not None
        assert 0.8 * told.peak_bytes < made.peak_bytes < 1.2 * told.peak_bytes


def test_a_verdict_says_what_it_hangs_on() -> None:
    gb = 1 << 30
    assert _verdict(64 * gb, 1 * gb, 2 * gb, 3 * gb, 0) == "fits"
    assert _verdict(64 * gb, 1 * gb, 2 * gb, 80 * gb, 0) == "fits if results are freed after their last use"
    assert _verdict(64 * gb, 1 * gb, 70 * gb, 80 * gb, 0) == "may fit"
    assert _verdict(64 * gb, 65 * gb, 70 * gb, 80 * gb, 0) == "does NOT fit"
    assert _verdict(64 * gb, 65 * gb, 70 * gb, 80 * gb, 40 * gb).startswith("does NOT fit with KV caches of 4")


@pytest.mark.slow
def test_recorded_peaks_lie_below_what_is_told_if_nothing_is_freed(shared_traces: Path) -> None:
    for name, at_most in (("h100_qwen1.5_0.5b", 1.6), ("h100_timesformer", 1.0), ("mi300_vllm_piecewise_capture", 1.0)):
        trace = open_trace(str(shared_traces / f"{name}.json.gz"), activity=True)
        plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
        told, made = memory_of(trace, chosen_step(trace), []), inferred_memory(plan, [], on_device=True)
        assert told is not None
        assert made is not None
        assert made.high_bytes is not None
        assert told.peak_bytes < at_most * made.peak_bytes
        assert told.peak_bytes < made.high_bytes
        assert 0.4 * made.peak_bytes < told.peak_bytes, "strided parts of results are no tensors of their own"


def test_a_pool_that_an_engine_sized_to_its_device_is_told_apart(shared_traces: Path) -> None:
    trace = open_trace(str(shared_traces / "mi300_vllm_piecewise_capture.json.gz"), activity=True)
    plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
    devices = list(load_socs(("910b3",)).values())
    for found in (memory_of(trace, chosen_step(trace), devices, plan), inferred_memory(plan, devices, on_device=True)):
        assert found is not None
        assert found.pool_bytes > 100e9
        assert not found.fits["910b3"]
        assert "which an engine sizes to fill its device" in found.verdicts["910b3"]


def test_a_cache_that_two_ops_take_in_different_shapes_is_there_once(shared_traces: Path) -> None:
    """Keys and values of 36 layers, 835,874 rows of 1,024 halves; the second op has a dimension of heads."""
    trace = open_trace(str(shared_traces / "mi300_sglang_prefilldecode.json.gz"), activity=True)
    plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
    memory = inferred_memory(plan, [], on_device=True)
    assert memory is not None
    assert memory.pool_bytes == pytest.approx(835_874 * 1024 * 2 * 2 * 36, rel=0.01)
