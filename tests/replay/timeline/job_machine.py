"""Several tiny machines in one job: a collective of theirs begins when the last of them has reached it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.replay.timeline.machine import CALL_US, GAP_US, LATENCY_US, Machine


class Job:
    """Ranks with a host thread and streams each; every clock is off by `clocks_us[rank]`."""

    def __init__(self, ranks: int, *, clocks_us: dict[int, float] | None = None, numbered: bool = True) -> None:
        self.ranks = [Machine() for _ in range(ranks)]
        self.clocks_us = clocks_us or {}
        self.numbered = numbered
        self.sequence = 0

    def all_reduce(self, us: float, elements: int = 1000, *, stream: int = 20, **odd: int) -> None:
        """All ranks reduce `elements`, but those in `odd` (r1=2000) as many as it says."""
        begins = []
        for machine in self.ranks:
            machine.wait_for(stream, 7)
            begins.append(max(machine.now + 1.0 + LATENCY_US, machine.free.get(stream, 0.0) + GAP_US))
        end = max(begins) + us
        for rank, (machine, begin) in enumerate(zip(self.ranks, begins, strict=True)):
            ext, corr = machine._next(), machine._next()
            told: dict[str, Any] = {
                "Collective name": "allreduce",
                "In msg nelems": odd.get(f"r{rank}", elements),
                "Out msg nelems": odd.get(f"r{rank}", elements),
                "Group size": len(self.ranks),
                "dtype": "Float",
                "Process Group Name": "0",
                "Process Group Ranks": str(list(range(len(self.ranks)))),
            }
            if self.numbered:
                told["Seq"] = self.sequence
            machine._add("cpu_op", "c10d::allreduce_", machine.now, CALL_US + 2.0, **{"External id": ext})
            machine._add("cuda_runtime", "cudaLaunchKernel", machine.now + 1.0, CALL_US, correlation=corr)
            machine._device("ncclDevKernel_AllReduce", begin, end - begin, stream, corr, ext)
            machine.events[-1]["args"] |= told
            machine.now += CALL_US + 2.0
        self.sequence += 1

    def write(self, folder: Path) -> list[str]:
        out = []
        for rank, machine in enumerate(self.ranks):
            path = folder / f"rank{rank}.json"
            off = self.clocks_us.get(rank, 0.0)
            events = [{**event, "ts": event["ts"] + off} for event in machine.events]
            info = {"backend": "nccl", "rank": rank, "world_size": len(self.ranks)}
            path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}))
            out.append(str(path))
        return out


def data_parallel(slow: dict[int, float] | None = None, *, transfer_us: float = 300.0, **how: Any) -> Job:
    """Two steps; the kernels of ranks in `slow` take that many times as long."""
    job = Job(3, **how)
    for _ in range(2):
        for machine in job.ranks:
            machine.begin()
        for _ in range(4):
            for rank, machine in enumerate(job.ranks):
                factor = (slow or {}).get(rank, 1.0)
                for _ in range(3):
                    machine.host(4.0)
                    machine.op("aten::mm", 12.0, ("gemm", 150.0 * factor))
            job.all_reduce(transfer_us)
        for machine in job.ranks:
            machine.wait_for(7, 20)
            machine.op("aten::_foreach_add_", 10.0, ("foreach", 50.0))
            machine.synchronize()
            machine.host(40.0)
            machine.end()
    return job
