"""What reading with its activity keeps, and that it changes nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from opreplay.traces import read_trace
from tests.traces.events import kernel, launch, op, small_events


def written(path: Path, events: list[dict[str, object]]) -> str:
    path.write_text(json.dumps({"traceEvents": events}))
    return str(path)


def test_the_rest_of_the_trace_is_the_same(shared_traces: Path) -> None:
    for name in ("mi300_normalization", "npu_alexnet_trace_view", "nvidia_sampled_rank0", "param_dlrm_worker0_kineto"):
        path = shared_traces / f"{name}.json.gz"
        plain, timed = read_trace(path, gradients=True), read_trace(path, activity=True)
        assert plain.activity is None
        assert timed.activity is not None
        assert timed.info == plain.info
        assert timed.signatures == plain.signatures
        assert [timed.tracks[i] for i in timed.ops.track] == [plain.tracks[i] for i in plain.ops.track]
        names = [[one.kernel_names[i] for i in one.kernels.name] for one in (plain, timed)]
        assert names[0] == names[1]
        for table in ("ops", "kernels"):
            a, b = getattr(plain, table), getattr(timed, table)
            for column in set(a.__struct_fields__) - {"track", "name"}:
                if getattr(a, column) is not None:  # the timing comes with torch's numbers of calls
                    assert np.array_equal(getattr(a, column), getattr(b, column)), (name, table, column)


def test_calls_waits_arrows_and_memory(tmp_path: Path) -> None:
    events = [
        *small_events(),
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaDeviceSynchronize",
            "pid": 7,
            "tid": 1,
            "ts": 180,
            "dur": 9,
            "args": {"correlation": 50},
        },
        {
            "ph": "X",
            "cat": "cuda_sync",
            "name": "Stream Wait Event",
            "pid": 0,
            "tid": 20,
            "ts": 181,
            "dur": 1,
            "args": {"correlation": 51, "stream": 20, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 49},
        },
        {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 4, "pid": 7, "tid": 1, "ts": 101.25},
        {"ph": "f", "cat": "fwdbwd", "name": "fwdbwd", "id": 4, "pid": 7, "tid": 2, "ts": 140, "bp": "e"},
        {"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", "pid": 7, "tid": 1, "ts": 100, "dur": 30},
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 7,
            "tid": 1,
            "ts": 102,
            "args": {"Bytes": -512, "Addr": 4096, "Total Allocated": 2048, "Device Type": 1, "Device Id": 0},
        },
        {"ph": "i", "cat": "cpu_instant_event", "name": "other", "pid": 7, "tid": 1, "ts": 102, "args": {}},
        kernel(
            "nccl",
            200,
            5,
            correlation=52,
            **{
                "Collective name": "allreduce",
                "In msg nelems": 1024,
                "dtype": "BFloat16",
                "Group size": 8,
                "Process Group Name": "0",
            },
        ),
    ]
    trace = read_trace(written(tmp_path / "t.json", events), activity=True)
    found = trace.activity
    assert found is not None
    names = [found.names[i] for i in found.calls.name]
    assert sorted(zip(names, found.calls.dur_ns.tolist(), strict=True)) == [
        ("cudaDeviceSynchronize", 9000),
        ("cudaLaunchKernel", 1000),
        ("cudaLaunchKernel", 1000),
        ("nn.Module: Linear_0", 30000),
    ]
    assert found.correlation.tolist() == [11, 12, 98, 52]
    assert found.waits.record_correlation.tolist() == [49]
    assert found.waits.waits_for_stream.tolist() == [7]
    assert found.arrows.is_end.tolist() == [False, True]
    assert found.memory.bytes.tolist() == [-512]
    assert found.memory.on_device.tolist() == [True]
    assert found.collective.tolist() == [-1, -1, -1, 0]
    one = found.collectives[0]
    assert (one.name, one.elements, one.group_size, one.group) == ("allreduce", 1024, 8, "0")


def test_odd_values_are_no_error(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 1, 5, 1),
        launch(2, 3),
        {"ph": "X", "cat": "cuda_sync", "name": "x", "ts": 1, "dur": 1, "args": {"correlation": "no", "stream": [1]}},
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 7,
            "tid": 1,
            "ts": 2,
            "args": {"Bytes": "many", "Addr": {}, "Device Type": None},
        },
        {"ph": "s", "cat": "fwdbwd", "name": "f", "id": "x", "pid": [1], "tid": {}, "ts": 3},
        kernel("k", 4, 1, correlation=3, **{"Collective name": ["x"], "In msg nelems": "12", "Seq": 2.5}),
        {"ph": "M", "name": "process_name", "pid": 7, "args": 3},
    ]
    trace = read_trace(written(tmp_path / "t.json", events), activity=True)
    assert trace.activity is not None
    assert len(trace.ops) == 1


def test_tasks_and_collectives_of_an_npu(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "npu_alexnet_trace_view.json.gz", activity=True)
    found = trace.activity
    assert found is not None
    assert len(found.spans) == 4
    assert all(one.name.startswith("hcom_allreduce") for one in found.collectives)
    assert found.collectives[0].elements == 4097000
    assert (found.correlation >= 0).all()
    assert "Ascend Hardware" in found.processes.values()
