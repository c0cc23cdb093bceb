"""Communication in whole traces: inspect and timeline agree on which work it is, whatever tells it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opreplay.replay.timeline.timeline import timeline
from opreplay.traces import read_trace
from opreplay.traces.times.breakdown import breakdown
from opreplay.traces.times.busy import device_busy
from opreplay.traces.times.communication import communication_rows

HERE = Path(__file__).parent


def kernel(name: str, ts: float, dur: float, stream: int, correlation: int, external: int = 0) -> list[dict[str, Any]]:
    """A kernel and its launch 8 µs before."""
    args: dict[str, Any] = {"device": 0, "context": 1, "stream": stream, "correlation": correlation}
    call: dict[str, Any] = {"cbid": 211, "correlation": correlation}
    if external:
        args["External id"] = call["External id"] = external
    at = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": ts - 8, "dur": 3}
    return [at, launch | {"args": call}]


def host(name: str, ts: float, dur: float, external: int, cat: str = "cpu_op") -> dict[str, Any]:
    """An op or a range of thread 1."""
    dims = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]} if cat == "cpu_op" else {}
    args = {"External id": external, **dims}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def written(tmp_path: Path, *events: dict[str, Any] | list[dict[str, Any]]) -> Path:
    """A trace of a step with a product of 400 µs on stream 7 and these events."""
    step = host("ProfilerStep#1", 1000, 1000, 9999, "user_annotation")
    product = [host("aten::mm", 1010, 20, 1), *kernel("sgemm_nn", 1030, 400, 7, 1, 1)]
    flat = [one for event in events for one in (event if isinstance(event, list) else [event])]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [step, *product, *flat]}))
    return path


def told(path: Path) -> tuple[float, float]:
    """(communication, exposed part) in µs, the same from every view."""
    trace = read_trace(path, activity=True)
    (device,) = device_busy(trace)
    parts = timeline(trace).timeline.categories_us
    exposed = device.communication_us - device.hidden_communication_us
    assert parts.communication_not_overlapped == pytest.approx(exposed)
    rows = {row.name: row.time_us for row in breakdown(trace, "category").rows}
    assert rows.get("communication", 0.0) == pytest.approx(device.communication_us)
    return device.communication_us, exposed


@pytest.mark.parametrize("name", ["comm_inspect_timeline_disagree", "comm_deepep_no_op"])
def test_deepep(name: str) -> None:
    assert told(HERE / f"{name}.json") == (300.0, 200.0)


@pytest.mark.parametrize(
    "name",
    [
        "void mori::moe::EpCombineIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)",
        "kuserbuffers_pullsendrecv(int, int*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x)",
        "nvshmemi_proxy_quiet_entrypoint",
    ],
)
def test_names_without_an_op(tmp_path: Path, name: str) -> None:
    assert told(written(tmp_path, kernel(name, 1330, 300, 20, 2))) == (300.0, 200.0)


def test_an_op_tells_for_an_unnamed_kernel_and_not_for_its_copies(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        host("_C_custom_ar::all_reduce", 1480, 60, 2),
        kernel("my_kernel_7", 1500, 100, 7, 2, 2),
        kernel("void at::native::vectorized_elementwise_kernel<4, x>", 1610, 50, 7, 3, 2),
    )
    assert told(path) == (100.0, 100.0)


def test_a_marked_range_tells_for_an_unnamed_kernel(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        host("dispatch(F)", 1320, 5, 2, "user_annotation"),
        kernel("send_tokens_kernel", 1330, 300, 20, 2),
        host("expert(F)", 1635, 30, 3, "user_annotation"),
        kernel("permute_tokens_kernel", 1650, 10, 20, 3),
    )
    assert told(path) == (300.0, 200.0)


def test_a_marked_range_does_not_make_a_product_communication(tmp_path: Path) -> None:
    path = written(
        tmp_path, host("dispatch(F)", 1320, 50, 2, "user_annotation"), kernel("cutlass_gemm", 1330, 300, 20, 2)
    )
    assert told(path) == (0.0, 0.0)


def test_a_stream_of_communication_tells_for_an_unnamed_kernel(tmp_path: Path) -> None:
    events = [kernel("ncclDevKernel_AllReduce", 1500, 50, 20, 2), kernel("my_kernel_7", 1600, 100, 20, 3)]
    assert told(written(tmp_path, *events)) == (150.0, 150.0)
    assert told(written(tmp_path, *events, kernel("sgemm_tn", 1800, 10, 20, 4))) == (50.0, 50.0)


COMMUNICATION = {
    "mi300_resnet_ddp_act_checkpoint": {"ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"},
    "nvidia_nccl_parser": {
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    },
    "npu_alexnet_trace_view": {"SDMA", "Write Value", "Notify Wait"},
    "nvidia_sampled_rank0": {"ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"},
    "mi300_vllm_piecewise_exec": set(),
    "mtia_inference_rank0": set(),
    "nvidia_alexnet_critical_path": set(),
    "h100_owlv2_large": set(),
}
"""Names of the device work that communicates, by reading all names of each trace."""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMUNICATION)
def test_public_traces(shared_traces: Path, name: str) -> None:
    trace = read_trace(shared_traces / f"{name}.json.gz")
    numbers = set(trace.kernels.name[communication_rows(trace)].tolist())
    assert {trace.kernel_names[number] for number in numbers} == COMMUNICATION[name]
