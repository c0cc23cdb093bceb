# pyright: strict
"""The main job: each op of a plan measured here and predicted on simulated devices, line by line into a sink.

Owns the order of work, budgets of a whole run and the summary; not how one op is run (`isolation`, `attempt`) or what
a device would take (`simulate` is handed in).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from math import inf
from time import monotonic
from types import MappingProxyType

import msgspec

from opreplay.replay.arguments.supplied import check_values_file
from opreplay.replay.execute.executors.make import make_executor
from opreplay.replay.execute.messages import PassDone, RankConfig, backend_of
from opreplay.replay.execute.options import MeasureOptions, RunOptions, WorkerConfig
from opreplay.replay.execute.processes.lanes import Engine, Lanes, OneByOne, lane_devices, split_cpus
from opreplay.replay.execute.processes.runner import ChildProcess, InProcess, Runner
from opreplay.replay.execute.processes.sequence_engine import SequenceEngine
from opreplay.replay.execute.ranks.crew import local_ranks
from opreplay.replay.execute.ranks.engine import WithRanks
from opreplay.replay.execute.ranks.joined import JoinedRanks
from opreplay.replay.execute.ranks.launched import launched
from opreplay.replay.execute.ranks.sequence_engine import SequenceOnRanks, calls_alone
from opreplay.replay.host import environment
from opreplay.replay.host.interrupts import raise_if_asked
from opreplay.replay.host.limits import MAPPED_BYTES
from opreplay.replay.ir.model import Reason, ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import need_of
from opreplay.replay.ir.step import StepReport
from opreplay.replay.plan.step.of_step import step_plan
from opreplay.replay.plan.step.recency import Recency, recency
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.results.of_plan import result_of, summarize
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.replay.results.reading import ResultFile, ResultSink
from opreplay.replay.results.records import (
    Header,
    JobResult,
    OpResult,
    Resumed,
    SequenceResult,
    Simulated,
    Summary,
    TraceResult,
)
from opreplay.replay.results.resume import (
    WHILE_IT_RAN,
    ended_by_time,
    identity_of,
    kept_results,
    left_to_do,
    whole_summary,
)
from opreplay.traces.errors import EnvironmentRefused, UsageError

Simulate = Callable[[ReplayOp], dict[str, Simulated]]
"""Predictions for one op by SoC, in the order asked for."""
Close = Callable[[Sequence[OpResult]], Sequence[TraceResult | JobResult | SequenceResult]]
"""Records that follow from all results together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands: told before each op, and once more at the end with no current op."""

    done: int
    total: int
    current: str | None
    """Name of the op that is next."""
    elapsed_s: float
    remaining_s: float | None
    """Estimate, no more than is left of the run's time budget; None before the first op."""
    cut: bool = False
    """Whether that budget ends before all ops are done, as far as can be told."""


def run_plan(
    plan: ReplayPlan,
    options: RunOptions,
    *,
    sink: ResultSink,
    simulate: Simulate = lambda op: {},
    on_progress: Callable[[Progress], None] | None = None,
    runner: Runner | None = None,
    engine: Engine | None = None,
    trace: dict[str, object] | None = None,
    step: StepReport | None = None,
    earlier: ResultFile | None = None,
    devices: tuple[str, ...] = (),
    close: Close = lambda results: (),
    beside: bool = False,
    on_start: Callable[[dict[str, object]], None] | None = None,
    failed: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Summary:
    """Measure and predict every op of the plan; each result goes to the sink as soon as it is there.

    The sink gets a header first and a summary last, also when the run is interrupted: then the summary says so and the
    exception passes on. It says so too, and the run ends, behind the first op that fails under `stop_on_error`.
    `runner` or `engine` replace what the options would choose; `trace` is added to the header's facts, as is the `step`
    that a sequence replays; `devices` names the simulated devices with their versions. With `earlier` the run goes on
    where that one ended, without a new header. What `close` makes of all results is written before the summary.
    `beside` says that another job measures on the same device. `on_start` is told the facts of host and device before
    the first op. `failed` holds why an op has no prediction, by id, once `simulate` was called.
    In the mode "sequence" the results are those of one recorded step, and one record more sums it up.
    Raises EnvironmentRefused when the device is missing, UsageError or FormatError for values that fit no op, for an
    `earlier` of another run and for a plan without the order of its calls, before anything is written.
    """
    started = monotonic()
    if options.values is not None:
        check_values_file(plan, options.values)
    options = msgspec.structs.replace(
        options,
        max_op_bytes=options.max_op_bytes or _default_op_bytes(options, earlier),
        isolation=options.isolation or "process",
    )
    given = engine or (None if runner is None else OneByOne(runner))
    recency = _recency(plan, options)
    _refuse_vain_visits(options, one_by_one=engine is None)
    if options.mode == "sequence":
        _refuse_vain_stop(options)
        plan = step_plan(plan)
    chosen = _engine_of(plan, _as_begun(options, earlier), given, recency, on_progress)
    if isinstance(chosen, SequenceEngine | SequenceOnRanks):
        close = chosen.records
    results: list[OpResult] = []
    begun, stopped = False, False
    measured_us: float | None = None
    try:
        facts = chosen.start() | ({"beside_another_job": True} if beside else {})
        header = _header(plan, options, facts, trace or {}, step, devices)
        if earlier is not None and (whole := whole_summary(earlier, header, plan.ops)) is not None:
            return whole
        results += _begin(sink, header, earlier, again=options.mode == "sequence")
        begun = True
        if on_start is not None:
            on_start(header.environment)
        costly = ended_by_time(earlier)
        state = _RunState(plan, options, started, len(results), on_progress, costly)
        outcomes = chosen.outcomes(left_to_do(plan.ops, results, costly), state.decide)
        stopped = _write_results(plan, options, outcomes, results, state, sink, simulate, failed)
        raise_if_asked()
        for record in () if stopped else close(results):
            sink.write(record)
            if isinstance(record, SequenceResult):
                measured_us = record.sum_us
    except BaseException:
        # A full disk may be what ended the run: the error that matters is the one on its way.
        with suppress(OSError, EnvironmentRefused):
            if begun:
                sink.write(summarize(plan, results, wall_s=monotonic() - started, interrupted=True))
        raise
    finally:
        chosen.close()
    summary = summarize(plan, results, wall_s=monotonic() - started, interrupted=stopped)
    if measured_us is not None:
        summary = msgspec.structs.replace(summary, measured_us=measured_us)
    sink.write(summary)
    if on_progress is not None:
        on_progress(_progress(len(results), len(plan.ops), None, summary.wall_s or 0.0))
    return summary


def _write_results(
    plan: ReplayPlan,
    options: RunOptions,
    outcomes: Iterator[tuple[ReplayOp, Outcome]],
    results: list[OpResult],
    state: _RunState,
    sink: ResultSink,
    simulate: Simulate,
    failed: Mapping[str, Sequence[str]],
) -> bool:
    """Add what became of each op to the results, and to the sink; whether it ended at one that failed."""
    for op, outcome in outcomes:
        simulated = simulate(op)  # which may add to `failed`
        why = failed.get(op.id, ())
        result = result_of(plan, op, outcome, simulated, device=options.device, unpredicted=why)
        sink.write(result)
        results.append(result)
        state.done = len(results)
        if options.stop_on_error and result.status == "failed" and state.done < len(plan.ops):
            return True
    return False


def _engine_of(
    plan: ReplayPlan,
    options: RunOptions,
    given: Engine | None,
    recency: dict[str, Recency],
    on_progress: Callable[[Progress], None] | None,
) -> Engine:
    """What runs the ops as the options say; with `given` those that are no collectives by that."""
    if options.mode == "sequence":
        return (sequence_engine if options.ranks is None else sequence_on_ranks)(plan, options, on_progress)
    alone = given or make_engine(options, recency)
    return alone if options.ranks is None else with_ranks(alone, options)


class _RunState:
    """Says where the run stands before each op, and which op is not to run."""

    def __init__(
        self,
        plan: ReplayPlan,
        options: RunOptions,
        started: float,
        done_before: int,
        on_progress: Callable[[Progress], None] | None,
        costly: Set[str] = frozenset(),
    ) -> None:
        self._total, self._options, self._started = len(plan.ops), options, started
        self._done_before, self._on_progress, self._costly = done_before, on_progress, costly
        self.done = done_before

    def decide(self, op: ReplayOp) -> Outcome | None:
        """The op's outcome where the plan, or the run's time budget, says that it is not to be run. Raises
        KeyboardInterrupt where somebody asked for the end."""
        raise_if_asked()
        elapsed_s = monotonic() - self._started
        limit_s = self._options.total_time_s
        if self._on_progress is not None:
            before = self._done_before
            self._on_progress(_progress(self.done, self._total, op.name, elapsed_s, before, limit_s))
        if op.reason is not None:
            return unable(op.reason)
        if limit_s is not None and elapsed_s >= limit_s:
            before = f"{WHILE_IT_RAN} before, and " if op.id in self._costly else ""
            return unable(Reason("out of time", f"{before}the run's {limit_s:g} s are spent (--set total_time)"))
        return None


def _begin(sink: ResultSink, header: Header, earlier: ResultFile | None, *, again: bool) -> list[OpResult]:
    """Write the first line of this process; the results that are there already, none where all are made `again`."""
    if earlier is None:
        sink.write(header)
        return []
    earlier_results = [] if again else kept_results(earlier, header)
    sink.write(Resumed(started_at=header.started_at, kept=len(earlier_results), environment=header.environment))
    return earlier_results


def _default_op_bytes(options: RunOptions, earlier: ResultFile | None) -> int:
    """What the run that is continued had, for as much may not be free any more; else a lane's part of half of what is
    free."""
    before = None if earlier is None else earlier.header.options.get("max_op_bytes")
    return before if isinstance(before, int) else environment.default_op_bytes() // options.lanes


def _as_begun(options: RunOptions, earlier: ResultFile | None) -> RunOptions:
    """The options with as many threads and visits as the run that is continued chose: its times are of that many."""
    if earlier is None or options.lanes > 1:
        return options
    facts = earlier.header.environment
    threads, visits = facts.get("threads"), facts.get("visits")
    if options.threads is None and isinstance(threads, int):
        options = msgspec.structs.replace(options, threads=threads)
    if options.visits is None and isinstance(visits, int):
        options = msgspec.structs.replace(options, visits=visits)
    return options


def sequence_engine(
    plan: ReplayPlan, options: RunOptions, on_progress: Callable[[Progress], None] | None
) -> SequenceEngine:
    """What replays the sequence of a plan: in a child process, or in this one where the options say so."""
    config = msgspec.structs.replace(worker_config(options), keep_freed=False)
    total = len(plan.ops)

    def tell(done: PassDone) -> None:
        if on_progress is not None:
            # How long a first pass takes, nobody knows.
            left_s = max(0.0, done.time_s - done.spent_s) if done.passes else None
            current = f"pass {done.passes}" if done.passes else "first pass"
            on_progress(Progress(done=0, total=total, current=current, elapsed_s=done.spent_s, remaining_s=left_s))

    return SequenceEngine(
        plan,
        config,
        budget_bytes=options.max_live_bytes,
        op_time_s=options.op_time_s,
        limit_s=options.hard_limit_s(),
        total_time_s=options.total_time_s,
        tell=tell,
        executor=make_executor(config) if options.isolation == "none" else None,
    )


def make_engine(options: RunOptions, recency: dict[str, Recency] | None = None) -> Engine:
    """One runner, or as many lanes as the options ask for."""
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
    """An engine that runs collectives on as many ranks as the options say, and leaves other ops to `others`.

    They are started here, or are those of the launcher that started this process as rank 0.
    """
    place = launched()
    config = _ranks_of(options, place.local_world if place is not None else options.ranks or 1)
    limit_s = config.measure.hard_limit_s()
    ranks = local_ranks(config, limit_s=limit_s) if place is None else JoinedRanks(place, config, limit_s=limit_s)
    return WithRanks(others, ranks, config)


def _ranks_of(options: RunOptions, here: int) -> RankConfig:
    """What each rank needs to know where `here` of them are on this machine."""
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


def sequence_on_ranks(
    plan: ReplayPlan, options: RunOptions, on_progress: Callable[[Progress], None] | None
) -> SequenceOnRanks:
    """What replays the sequence of a plan with its collectives, on ranks that are started here.

    Half of an op's time, and of the run's, goes to the passes without ranks, which settle what can be replayed.
    """
    plan, count = calls_alone(plan), options.ranks or 1
    total_s = None if options.total_time_s is None else options.total_time_s / 2
    half = msgspec.structs.replace(options, op_time_s=options.op_time_s / 2, total_time_s=total_s)
    rank_config = _ranks_of(options, count)
    of_each = msgspec.structs.replace(half, threads=options.threads or 1)
    live = options.max_live_bytes or environment.default_op_bytes()
    return SequenceOnRanks(
        sequence_engine(plan, half, on_progress),
        rank_config,
        plan,
        msgspec.structs.replace(worker_config(of_each), memory_bytes=rank_config.memory_bytes, keep_freed=False),
        budget_bytes=live // count,
        limit_s=options.hard_limit_s(),
        total_time_s=options.total_time_s,
    )


def worker_config(options: RunOptions, recency: dict[str, Recency] | None = None) -> WorkerConfig:
    """What a process that runs ops must know of the options, and of the step where caches are to be as in it."""
    memory_bytes = options.max_op_bytes or environment.default_op_bytes()
    return WorkerConfig(options=options, memory_bytes=memory_bytes, recency=recency or {})


def _end_of(options: RunOptions) -> float:
    """When a run that begins now ends the op in flight, on the monotonic clock: an ordinary one may be finished."""
    return inf if options.total_time_s is None else monotonic() + options.total_time_s + max(1.0, 5 * options.op_time_s)


def make_runner(options: RunOptions, recency: dict[str, Recency] | None = None) -> Runner:
    """A child process for the ops, or this process where the options say so."""
    config = worker_config(options, recency)
    if options.isolation != "none":
        return ChildProcess(config, limit_s=options.hard_limit_s(), until=_end_of(options))
    return InProcess(make_executor(config), config)


def _refuse_vain_visits(options: RunOptions, *, one_by_one: bool) -> None:
    """Raises UsageError for several visits where ops are measured once only."""
    if (options.visits or 1) == 1:
        return
    if options.device != "cpu":
        where = f"on {options.device}, which no other program shares"
    elif options.mode == "sequence":
        where = "in a sequence, which has all calls in their order"
    elif one_by_one and options.lanes == 1:
        return
    else:
        where = "where several ops run side by side"
    raise UsageError(f"--set visits={options.visits} has no effect {where}", hint="Leave --set visits out.")


def _refuse_vain_stop(options: RunOptions) -> None:
    """Raises UsageError for a sequence that is to stop at the first failure."""
    if options.stop_on_error:
        raise UsageError(
            "--stop-on-error has no effect on a sequence, whose ops have their results together",
            hint="Leave --stop-on-error out.",
        )


def _recency(plan: ReplayPlan, options: RunOptions) -> dict[str, Recency]:
    """How far away the step leaves arguments, where that is asked for. Raises UsageError where it cannot be had."""
    if options.cache != "step":
        return {}
    if options.mode == "sequence":
        raise UsageError(
            "the cache of a step is for single ops", hint="A sequence has the caches that its calls leave."
        )
    if options.device != "cpu":
        raise UsageError(
            f"--cache step is for the CPU, not for {options.device}",
            hint="Measure cold, or replay with --mode sequence.",
        )
    recency_by_op = recency(with_outputs(plan))
    if not recency_by_op:
        raise UsageError(
            f"{plan.source} does not say in which order its ops ran",
            hint="--cache step needs a trace, or a plan that this version's `opreplay plan TRACE --output` wrote.",
        )
    return recency_by_op


def _header(
    plan: ReplayPlan,
    options: RunOptions,
    facts: dict[str, object],
    trace: dict[str, object],
    step: StepReport | None,
    devices: tuple[str, ...],
) -> Header:
    about: dict[str, object] = {
        "source": plan.source,
        "selection": plan.selection,
        "device": plan.device,
        "ops": len(plan.ops),
        "device_us_total": plan.device_us_total,
        "unowned_device_us": plan.unowned_device_us,
        "host_us_total": plan.host_us_total,
        "large_results": sum(need_of(op).outputs >= MAPPED_BYTES for op in plan.ops),
    }
    return Header(
        opreplay_version=environment.opreplay_version(),
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        trace={**about, **trace},
        environment={**environment.host_facts(), **facts},
        options=msgspec.to_builtins(options),
        step=step,
        identity=identity_of(plan, msgspec.to_builtins(options), facts, devices=devices),
    )


def _progress(
    done: int, total: int, current: str | None, elapsed_s: float, done_before: int = 0, limit_s: float | None = None
) -> Progress:
    """Where a run stands that continues one which did `done_before` of the ops, and may take `limit_s`."""
    remaining = elapsed_s / (done - done_before) * (total - done) if done > done_before else None
    limit_left_s = None if limit_s is None else max(0.0, limit_s - elapsed_s)
    cut = remaining is not None and limit_left_s is not None and remaining > limit_left_s
    return Progress(
        done=done,
        total=total,
        current=current,
        elapsed_s=elapsed_s,
        remaining_s=limit_left_s if cut else remaining,
        cut=cut,
    )
