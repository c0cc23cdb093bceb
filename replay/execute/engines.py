# pyright: strict
"""Choose the engine that runs a plan: one runner, several workers, ranks, or a sequence."""

from __future__ import annotations

from math import inf
from time import monotonic

import msgspec

from opreplay.replay.execute.executors.make import make_executor
from opreplay.replay.execute.messages import RankConfig, backend_of
from opreplay.replay.execute.options import MeasureOptions, RunOptions, WorkerConfig
from opreplay.replay.execute.processes.lanes import Engine, Lanes, OneByOne, lane_devices, split_cpus
from opreplay.replay.execute.processes.runner import ChildProcess, InProcess, Runner
from opreplay.replay.execute.processes.sequence_engine import SequenceEngine
from opreplay.replay.execute.ranks.crew import local_ranks
from opreplay.replay.execute.ranks.engine import WithRanks
from opreplay.replay.execute.ranks.joined import JoinedRanks
from opreplay.replay.execute.ranks.launched import launcher_settings
from opreplay.replay.execute.ranks.sequence_engine import SequenceOnRanks, calls_alone
from opreplay.replay.host import environment
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.step.recency import Recency


def engine_for(plan: ReplayPlan, options: RunOptions, given: Engine | None, recency: dict[str, Recency]) -> Engine:
    """Return the engine for these options. If `given` is set, that engine runs all ops except collectives."""
    if options.mode == "sequence":
        return (sequence_engine if options.ranks is None else sequence_on_ranks)(plan, options)
    alone = given or make_engine(options, recency)
    return alone if options.ranks is None else with_ranks(alone, options)


def sequence_engine(plan: ReplayPlan, options: RunOptions) -> SequenceEngine:
    """Return the engine that replays a plan's sequence in a child process, or in this process without isolation."""
    config = msgspec.structs.replace(worker_config(options), keep_freed=False)
    return SequenceEngine(
        plan,
        config,
        budget_bytes=options.max_live_bytes,
        op_time_s=options.op_time_s,
        limit_s=options.hard_limit_s(),
        total_time_s=options.total_time_s,
        executor=make_executor(config) if options.isolation == "none" else None,
    )


def make_engine(options: RunOptions, recency: dict[str, Recency] | None = None) -> Engine:
    """Return an engine that runs ops one by one, or on `options.lanes` workers at the same time."""
    if options.lanes == 1:
        return OneByOne(make_runner(options, recency), visits=options.visits, op_time_s=options.op_time_s)
    base, limit_s = worker_config(options, recency), options.hard_limit_s()
    cpus = split_cpus(options.lanes) if options.threads is None else [()] * options.lanes
    devices = lane_devices(options.device, options.lanes, shared=options.shared_device)
    until = _end_of(options)
    configs = (
        msgspec.structs.replace(base.having(device=device), cpus=lane_cpus)
        for device, lane_cpus in zip(devices, cpus, strict=True)
    )
    return Lanes([ChildProcess(config, limit_s=limit_s, until=until) for config in configs])


def with_ranks(others: Engine, options: RunOptions) -> WithRanks:
    """Return an engine that runs collectives on ranks, and other ops with the engine `others`.

    The ranks are started here, unless a launcher (e.g. torchrun) started this process as rank 0.
    """
    place = launcher_settings()
    config = _ranks_of(options, place.local_world if place is not None else options.ranks or 1)
    limit_s = config.measure.hard_limit_s()
    ranks = local_ranks(config, limit_s=limit_s) if place is None else JoinedRanks(place, config, limit_s=limit_s)
    return WithRanks(others, ranks, config)


def _ranks_of(options: RunOptions, here: int) -> RankConfig:
    """Return the configuration of each rank; `here` is the number of ranks on this machine."""
    return RankConfig(
        rank=0,
        world=options.ranks or 1,
        backend=options.backend or backend_of(options.device),
        device=options.device,
        store="",
        threads=1,
        memory_bytes=(options.max_op_bytes or environment.default_op_bytes()) // here,
        measure=msgspec.convert(options, MeasureOptions, from_attributes=True),
        check=options.check_results,
    )


def sequence_on_ranks(plan: ReplayPlan, options: RunOptions) -> SequenceOnRanks:
    """Return the engine that replays a sequence with its collectives, on ranks that it starts.

    First, passes without ranks find out what can be replayed. They get half of the time.
    """
    plan, count = calls_alone(plan), options.ranks or 1
    total_s = None if options.total_time_s is None else options.total_time_s / 2
    half = msgspec.structs.replace(options, op_time_s=options.op_time_s / 2, total_time_s=total_s)
    rank_config = _ranks_of(options, count)
    of_each = msgspec.structs.replace(half, threads=options.threads or 1)
    live = options.max_live_bytes or environment.default_op_bytes()
    return SequenceOnRanks(
        sequence_engine(plan, half),
        rank_config,
        plan,
        msgspec.structs.replace(worker_config(of_each), memory_bytes=rank_config.memory_bytes, keep_freed=False),
        budget_bytes=live // count,
        limit_s=options.hard_limit_s(),
        total_time_s=options.total_time_s,
    )


def worker_config(options: RunOptions, recency: dict[str, Recency] | None = None) -> WorkerConfig:
    """Return the configuration of a worker. `recency` has the reuse distances that are needed to restore the step's
    caches.
    """
    memory_bytes = options.max_op_bytes or environment.default_op_bytes()
    return WorkerConfig(options=options, memory_bytes=memory_bytes, recency=recency or {})


def _end_of(options: RunOptions) -> float:
    """Return the monotonic time at which the run stops the current op. It leaves time for an op of normal length to
    finish.
    """
    return inf if options.total_time_s is None else monotonic() + options.total_time_s + max(1.0, 5 * options.op_time_s)


def make_runner(options: RunOptions, recency: dict[str, Recency] | None = None) -> Runner:
    """Return a runner that runs ops in a child process, or in this process without isolation."""
    config = worker_config(options, recency)
    if options.isolation != "none":
        return ChildProcess(config, limit_s=options.hard_limit_s(), until=_end_of(options))
    return InProcess(make_executor(config), config)
