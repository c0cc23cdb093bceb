"""A tiny machine that runs a program of ops, launches, streams and waits and writes the trace that a profiler would.

The same program with other kernel times gives the trace that a what-if has to foresee.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LATENCY_US = 6.0
GAP_US = 1.0
CALL_US = 4.0


@dataclass
class Machine:
    """One host thread, some streams of one device; times in µs."""

    scale: dict[str, float] = field(default_factory=dict)
    """Kernel → factor on its time."""
    events: list[dict[str, Any]] = field(default_factory=list)
    now: float = 1000.0
    tid: int = 1
    free: dict[int, float] = field(default_factory=dict)
    number: int = 0
    steps: int = 0
    began: float = 0.0

    def host(self, us: float) -> None:
        """Python between ops."""
        self.now += us

    def op(self, name: str, host_us: float, *kernels: tuple[str, float], stream: int = 7) -> None:
        """An op that works on the host for a while and launches kernels."""
        begin, ext = self.now, self._next()
        self.now += host_us / 2
        for kernel, us in kernels:
            self.launch(kernel, us, stream=stream, ext=ext)
        self.now += host_us / 2
        self._add("cpu_op", name, begin, self.now - begin, **{"External id": ext})

    def launch(self, kernel: str, us: float, *, stream: int = 7, ext: int = 0, after: float = 0.0) -> None:
        corr = self._next()
        self._add("cuda_runtime", "cudaLaunchKernel", self.now, CALL_US, correlation=corr)
        start = max(self.now + LATENCY_US, self.free.get(stream, 0.0) + GAP_US, after)
        self._device(kernel, start, us * self.scale.get(kernel, 1.0), stream, corr, ext)
        self.now += CALL_US

    def wait_for(self, waiting: int, stream: int) -> None:
        """One stream waits for all that was launched on another one."""
        self._add("cuda_runtime", "cudaEventRecord", self.now, 1.0, correlation=self._next())
        self._add("cuda_runtime", "cudaStreamWaitEvent", self.now + 1.0, 1.0, correlation=self._next())
        self.now += 2.0
        self.free[waiting] = max(self.free.get(waiting, 0.0), self.free.get(stream, 0.0))

    def synchronize(self, stream: int | None = None) -> None:
        begin = self.now
        ends = self.free.values() if stream is None else [self.free.get(stream, 0.0)]
        self.now = max([self.now + 2.0, *(end + 2.0 for end in ends)])
        name = "cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize"
        self._add("cuda_runtime", name, begin, self.now - begin, correlation=self._next())

    def begin(self) -> None:
        self.began = self.now

    def end(self) -> None:
        self._add("user_annotation", f"ProfilerStep#{self.steps}", self.began, self.now - self.began)
        self.steps += 1

    def write(self, path: Path) -> str:
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": self.events}))
        return str(path)

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _device(self, kernel: str, start: float, us: float, stream: int, corr: int, ext: int) -> None:
        args = {"device": 0, "stream": stream, "correlation": corr, "External id": ext}
        self.events.append(
            {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": stream, "ts": start, "dur": us, "args": args}
        )
        self.free[stream] = start + us

    def _add(self, cat: str, name: str, ts: float, dur: float, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": self.tid, "ts": ts, "dur": dur, "args": args}
        )


def training(**scale: float) -> Machine:
    """Two steps that synchronise: first bound by the host, then by the device; collectives overlap."""
    machine = Machine(scale)
    for _ in range(2):
        machine.begin()
        for _ in range(20):
            machine.host(15.0)
            machine.op("aten::add", 20.0, ("add_kernel", 3.0))
        for layer in range(12):
            machine.op("aten::mm", 12.0, ("gemm", 180.0), ("splitk", 20.0))
            if layer % 4 == 3:
                machine.wait_for(20, 7)
                machine.op("c10d::allreduce_", 10.0, ("ncclDevKernel_AllReduce", 300.0), stream=20)
        machine.wait_for(7, 20)
        machine.op("aten::_foreach_add_", 10.0, ("foreach", 50.0))
        machine.synchronize()
        machine.host(40.0)
        machine.end()
    return machine
