"""The measuring loop of a collective on one rank: a plain timing loop, then separate calls with time stamps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from time import monotonic_ns, perf_counter_ns
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from opreplay.replay.execute.messages import RankReply
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.ranks.torch.buffers import Buffers
from opreplay.traces.garbage import collector_off

SAMPLE_US = 2000.0
"""Target duration of a sample in µs."""
MOST_CALLS = 1000
STAMPED = 16
"""Number of calls whose start and end each rank records."""
OVERRUN = 3.0
"""Maximum time that a slow collective may take for the minimum number of samples, as a multiple of `op_time_s`."""


def measured(buffers: Buffers, options: MeasureOptions, wait: Callable[[], None], reply: RankReply) -> RankReply:
    """Return the reply with times of a collective that has run once. `wait` must return when the device has finished.

    All ranks make the same number of calls and samples. It follows from the time that the slowest rank estimates.
    """
    call_us = _agreed(_warm(buffers, options, wait), buffers)
    calls = max(1, min(MOST_CALLS, math.ceil(SAMPLE_US / max(call_us, 1.0))))
    sample_s = calls * call_us * 1e-6
    wanted = max(options.min_samples, min(options.max_samples, int(options.op_time_s / sample_s)))
    max_samples = max(3, int(OVERRUN * options.op_time_s / sample_s))
    count = max(1, min(wanted, max_samples, int(0.5 * options.hard_limit_s() / sample_s)))
    samples_us: list[float] = []
    with collector_off():
        dist.barrier(group=buffers.group)
        call = buffers.call
        for _ in range(count):
            started = perf_counter_ns()
            for _ in range(calls):
                call()
            wait()
            samples_us.append((perf_counter_ns() - started) / calls / 1e3)
        stamped = min(STAMPED, max(3, int(options.op_time_s / (call_us * 1e-6))))
        issue_us, arrived_ns, done_ns = _stamps(buffers, stamped, wait)
    return msgspec.structs.replace(
        reply,
        samples_us=tuple(samples_us),
        calls=calls,
        issue_us=tuple(issue_us),
        arrived_ns=tuple(arrived_ns),
        done_ns=tuple(done_ns),
    )


def _warm(buffers: Buffers, options: MeasureOptions, wait: Callable[[], None]) -> float:
    """Return the median time of a warm call on this rank, in µs. Every rank makes the same number of calls."""
    took: list[float] = []
    for _ in range(max(2, options.warmup_calls)):
        started = perf_counter_ns()
        buffers.call()
        wait()
        took.append((perf_counter_ns() - started) / 1e3)
    return statistics.median(took)


def _agreed(call_us: float, buffers: Buffers) -> float:
    """Return the longest of the estimates of all members, in µs."""
    slowest = torch.tensor([call_us], dtype=torch.float32, device=buffers.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=buffers.group)
    return float(slowest.item())


def _stamps(buffers: Buffers, count: int, wait: Callable[[], None]) -> tuple[list[float], list[int], list[int]]:
    """Return three lists for `count` calls: µs until an asynchronous call returned, start in ns, end in ns."""
    issue_us: list[float] = []
    arrived_ns: list[int] = []
    done_ns: list[int] = []
    for _ in range(count):
        begun = monotonic_ns()
        work: Any = None
        if buffers.share.asynchronous:
            work = buffers.issue()
            issue_us.append((monotonic_ns() - begun) / 1e3)
            if work is not None:
                work.wait()
        else:
            buffers.call()
        wait()
        arrived_ns.append(begun)
        done_ns.append(monotonic_ns())
    return issue_us, arrived_ns, done_ns
