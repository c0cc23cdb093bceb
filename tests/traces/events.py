"""Small hand-made traces for the tests of the reader: two threads, nested ops, launches, kernels, flows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DIMS = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
FULL = {**DIMS, "Input Strides": [[3, 1], [4, 1]], "Concrete Inputs": ["", ""]}


def op(name: str, ts: Any, dur: Any, ext: Any, *, tid: Any = 1, **args: Any) -> dict[str, Any]:
    """A host-side op of process 7."""
    args = {"External id": ext, "Record function id": 0, **args, "Ev Idx": ext}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launch(ts: Any, corr: Any, *, tid: Any = 1, cat: str = "cuda_runtime") -> dict[str, Any]:
    """A runtime call."""
    args = {"cbid": 211, "correlation": corr}
    return {"ph": "X", "cat": cat, "name": "cudaLaunchKernel", "pid": 7, "tid": tid, "ts": ts, "dur": 1, "args": args}


def kernel(name: str, ts: Any, dur: Any, *, cat: str = "kernel", **args: Any) -> dict[str, Any]:
    """Device work on stream 20 of device 0."""
    args = {"device": 0, "stream": 20, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 20, "ts": ts, "dur": dur, "args": args}


def flow(phase: str, ident: Any, ts: Any, *, pid: Any = 7, tid: Any = 1) -> dict[str, Any]:
    """One end of an arrow from a launch to a kernel."""
    return {"ph": phase, "id": ident, "pid": pid, "tid": tid, "ts": ts, "cat": "ac2g", "name": "ac2g"}


def note(name: str, ts: Any, dur: Any) -> dict[str, Any]:
    """A user annotation."""
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 7, "tid": 1, "ts": ts, "dur": dur, "args": {}}


def small_events() -> list[dict[str, Any]]:
    """Two matmuls (one nested), a copy on another thread, three rows of device work, some events without category."""
    return [
        note("ProfilerStep#3", 100.0, 100.5),
        op("aten::linear", 101.25, 20.5, 1, **FULL),
        op("aten::mm", 103.125, 10.0, 2, **FULL),
        {"ph": "X", "cat": "python_function", "name": "f.py(1): a}, {b", "pid": 7, "tid": 1, "ts": 99, "dur": 1},
        launch(104.5, 11),
        flow("s", 11, 104.5),
        kernel("gemm", 120.001, 7.5, **{"External id": 2, "correlation": 11}),
        flow("f", 11, 120.001, pid=0, tid=20),
        op("aten::copy_", 140, 3, 3, tid=2, **{**DIMS, "Input Dims": [[2, 3], [2, 3]]}),
        launch(141, 12, tid=2, cat="cuda_driver"),
        kernel("Memcpy DtoD", 150, 2, cat="gpu_memcpy", **{"External id": 3, "correlation": 12}),
        kernel("gemm", 160, 5, **{"External id": 99, "correlation": 98}),
        {"name": "process_name", "ph": "M", "ts": 99, "pid": 7, "tid": 0, "args": {"name": "python3"}},
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch",
            "ts": 99,
            "dur": 9,
        },
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 300.5},
    ]


KEYS: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "warpSize": 32}, {"id": 1, "name": "NVIDIA H100"}],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "baseTimeNanoseconds": 1,
}


def document(events: list[Any] | None = None) -> dict[str, Any]:
    """A whole trace as a JSON object."""
    return {**KEYS, "traceEvents": small_events() if events is None else events, "traceName": "x.json"}


def write(folder: Path, content: Any, name: str = "trace.json") -> Path:
    """A file with bytes as they are, or anything else as JSON."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path
