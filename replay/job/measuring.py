# pyright: strict
"""Run the ops of a plan and yield events.

This module handles the order of events, time budgets and the summary. `execute` runs each op.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence, Set
from datetime import datetime, timezone
from time import monotonic

import msgspec

from opreplay.replay.arguments.supplied import check_values_file
from opreplay.replay.execute.engines import engine_for
from opreplay.replay.execute.messages import PassDone
from opreplay.replay.execute.options import RunOptions
from opreplay.replay.execute.processes.lanes import Engine, OneByOne
from opreplay.replay.execute.processes.sequence_engine import SequenceEngine
from opreplay.replay.execute.ranks.sequence_engine import SequenceOnRanks
from opreplay.replay.host import environment
from opreplay.replay.host.interrupts import raise_if_asked
from opreplay.replay.host.limits import MAPPED_BYTES
from opreplay.replay.ir.model import Reason, ReplayOp, ReplayPlan
from opreplay.replay.ir.reasons import WHILE_IT_RAN
from opreplay.replay.ir.sizes import need_of
from opreplay.replay.ir.step import StepReport
from opreplay.replay.job.consumers import Events
from opreplay.replay.job.events import Ended, Event, Failed, Planned, Progress, Started, Sum, outcome_event
from opreplay.replay.job.predicting import Predict, no_prediction
from opreplay.replay.plan.step.of_step import lacks_order, step_plan
from opreplay.replay.plan.step.recency import Recency, recency
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.results.of_plan import result_of, summarize
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import Header, OpResult, Resumed, SequenceResult, Summary
from opreplay.replay.results.resume import (
    ended_by_time,
    identity_of,
    kept_results,
    left_to_do,
    whole_summary,
)
from opreplay.traces.errors import UsageError

Sums = Callable[[Sequence[OpResult]], Sequence[Sum]]


def no_sums(results: Sequence[OpResult]) -> Sequence[Sum]:
    """Return no records."""
    return ()


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Facts for the result file that come neither from the ops nor from the options."""

    trace: dict[str, object] = msgspec.field(default_factory=dict[str, object])
    """Facts about the trace, for the header."""
    step: StepReport | None = None
    """Report of the recorded step that a sequence replays."""
    devices: tuple[str, ...] = ()
    """Names and versions of the simulated devices."""
    beside: bool = False
    """Whether another job measures on the same device at the same time."""
    sums: Sums = no_sums
    """Computes records with the sums of traces and jobs from all results."""


def run_events(
    plan: ReplayPlan,
    options: RunOptions,
    predict: Predict = no_prediction,
    *,
    about: About | None = None,
    engine: Engine | None = None,
    earlier: ResultFile | None = None,
) -> Events:
    """Measure and predict every op of a plan, and yield events.

    If `engine` is given, it replaces the engine from the options. `earlier` has results of an interrupted run, which is
    then resumed. With mode "sequence", the results are those of one recorded step, followed by a record of the whole
    sequence. With `stop_on_error`, the run ends after the first failed op. The last event is always `Ended`. If an
    error is raised next, `Ended` contains it.

    Before the first event, raises UsageError or FormatError for values that fit no op, and UsageError for a sequence
    without recorded order. Before `Started`, raises EnvironmentRefused if the device is missing, and UsageError if
    `earlier` is of another run.
    """
    begun_at = monotonic()
    about = about or About()
    if options.values is not None:
        check_values_file(plan, options.values)
    options = msgspec.structs.replace(
        options,
        max_op_bytes=options.max_op_bytes or _default_op_bytes(options, earlier),
        isolation=options.isolation or "process",
    )
    step_recency = _recency(plan, options)
    _refuse_rounds(options, one_by_one=engine is None or isinstance(engine, OneByOne))
    if options.mode == "sequence":
        _refuse_stop_on_error(options)
        plan = step_plan(plan)
    chosen = engine_for(plan, _resumed_options(options, earlier), engine, step_recency)
    yield from _Run(plan, options, predict, about, chosen, earlier, begun_at).events()


class _Run:
    """A run in progress: its results and its start time."""

    def __init__(
        self,
        plan: ReplayPlan,
        options: RunOptions,
        predict: Predict,
        about: About,
        engine: Engine,
        earlier: ResultFile | None,
        begun_at: float,
    ) -> None:
        self._plan, self._options, self._predict, self._about = plan, options, predict, about
        self._engine, self._earlier, self._begun_at = engine, earlier, begun_at
        self._results: list[OpResult] = []
        self._kept = 0
        self._costly: Set[str] = frozenset()

    def events(self) -> Events:
        """Yield the events of the run; close the engine at the end."""
        begun, stopped = False, False
        records: Sequence[Sum] = ()
        try:
            yield Planned(plan=self._plan)
            header = self._header(self._engine.start() | ({"beside_another_job": True} if self._about.beside else {}))
            earlier = self._earlier
            if earlier is not None and (whole := whole_summary(earlier, header, self._plan.ops)) is not None:
                yield Ended(summary=whole, already=True)
                return
            started = self._started(header)
            yield started
            begun = True
            self._costly = ended_by_time(earlier)
            stopped = yield from self._ops()
            raise_if_asked()
            records = () if stopped else self._records()
        except GeneratorExit:
            raise
        except BaseException as error:
            if begun:
                yield Ended(summary=self._summary(interrupted=True), error=error)
            raise
        finally:
            self._engine.close()
        summary = self._summary(interrupted=stopped)
        for record in records:
            if isinstance(record, SequenceResult) and record.sum_us is not None:
                summary = msgspec.structs.replace(summary, measured_us=record.sum_us)
        yield self._progress(None, summary.wall_s or 0.0)
        yield Ended(summary=summary, records=tuple(records))

    def _ops(self) -> Generator[Event, None, bool]:
        """Yield the events of each op; return True if `stop_on_error` ended the run."""
        left = left_to_do(self._plan.ops, self._results, self._costly)
        for step in self._engine.outcomes(left, self._decide):
            if isinstance(step, ReplayOp):
                raise_if_asked()
                yield self._progress(step.name, self._elapsed_s(), self._kept, self._options.total_time_s)
            elif isinstance(step, PassDone):
                yield self._pass_progress(step)
            else:
                op, outcome = step
                predicted = self._predict(op)
                yield predicted
                result = result_of(
                    self._plan,
                    op,
                    outcome,
                    predicted.simulated,
                    device=self._options.device,
                    unpredicted=predicted.why,
                )
                event = outcome_event(op, result)
                self._results.append(result)
                yield event
                is_last = len(self._results) >= len(self._plan.ops)
                if self._options.stop_on_error and isinstance(event, Failed) and not is_last:
                    return True
        return False

    def _decide(self, op: ReplayOp) -> Outcome | None:
        """Return the outcome of an op that the plan or the time budget excludes from running; None if the op is to run.

        Raises KeyboardInterrupt if an interrupt was requested.
        """
        raise_if_asked()
        if op.reason is not None:
            return unable(op.reason)
        limit_s = self._options.total_time_s
        if limit_s is not None and self._elapsed_s() >= limit_s:
            before = f"{WHILE_IT_RAN} before, and " if op.id in self._costly else ""
            return unable(Reason("out of time", f"{before}the run's {limit_s:g} s were used up (--set total_time)"))
        return None

    def _started(self, header: Header) -> Started:
        """Take over the results of the earlier run, and return the event with the first record of this process."""
        if self._earlier is None:
            return Started(record=header, environment=header.environment)
        if self._options.mode != "sequence":
            self._results += kept_results(self._earlier, header)
        self._kept = len(self._results)
        record = Resumed(started_at=header.started_at, kept=self._kept, environment=header.environment)
        return Started(record=record, environment=header.environment, kept=tuple(self._results))

    def _records(self) -> Sequence[Sum]:
        if isinstance(self._engine, SequenceEngine | SequenceOnRanks):
            return self._engine.records(self._results)
        return self._about.sums(self._results)

    def _summary(self, *, interrupted: bool) -> Summary:
        return summarize(self._plan, self._results, wall_s=self._elapsed_s(), interrupted=interrupted)

    def _elapsed_s(self) -> float:
        return monotonic() - self._begun_at

    def _header(self, facts: dict[str, object]) -> Header:
        plan, options = self._plan, msgspec.to_builtins(self._options)
        about_plan: dict[str, object] = {
            "source": plan.source,
            "selection": plan.selection,
            **({"unmatched": plan.unmatched} if plan.unmatched else {}),
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
            trace={**about_plan, **self._about.trace},
            environment={**environment.host_facts(), **facts},
            options=options,
            step=self._about.step,
            identity=identity_of(plan, options, facts, devices=self._about.devices),
        )

    def _progress(
        self, current: str | None, elapsed_s: float, done_before: int = 0, limit_s: float | None = None
    ) -> Progress:
        """Return the progress. `done_before` is the number of ops of the earlier run, and `limit_s` is the
        time budget.
        """
        done, total = len(self._results), len(self._plan.ops)
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

    def _pass_progress(self, done: PassDone) -> Progress:
        """Return the progress of a sequence; no time is estimated before the first pass."""
        left_s = max(0.0, done.time_s - done.spent_s) if done.passes else None
        current = f"pass {done.passes}" if done.passes else "first pass"
        total = len(self._plan.ops)
        return Progress(done=0, total=total, current=current, elapsed_s=done.spent_s, remaining_s=left_s)


def _default_op_bytes(options: RunOptions, earlier: ResultFile | None) -> int:
    """Return the memory limit of an op.

    It is the limit of the resumed run, otherwise a worker's share of half the free memory.
    """
    before = None if earlier is None else earlier.header.options.get("max_op_bytes")
    return before if isinstance(before, int) else environment.default_op_bytes() // options.lanes


def _resumed_options(options: RunOptions, earlier: ResultFile | None) -> RunOptions:
    """Return the options with the thread count and rounds of the resumed run, because times depend on them."""
    if earlier is None or options.lanes > 1:
        return options
    facts = earlier.header.environment
    threads, visits = facts.get("threads"), facts.get("visits")
    if options.threads is None and isinstance(threads, int):
        options = msgspec.structs.replace(options, threads=threads)
    if options.visits is None and isinstance(visits, int):
        options = msgspec.structs.replace(options, visits=visits)
    return options


def _refuse_rounds(options: RunOptions, *, one_by_one: bool) -> None:
    """Raise UsageError if several rounds are requested in a mode that measures each op only once."""
    if (options.visits or 1) == 1:
        return
    if options.device != "cpu":
        where = f"on {options.device}, which is not shared with other programs"
    elif options.mode == "sequence":
        where = "in a sequence, which runs all calls in order"
    elif one_by_one and options.lanes == 1:
        return
    else:
        where = "if several ops run in parallel"
    raise UsageError(f"--set repeats={options.visits} has no effect {where}", hint="Remove --set repeats.")


def _refuse_stop_on_error(options: RunOptions) -> None:
    """Raise UsageError for `stop_on_error` with a sequence."""
    if options.stop_on_error:
        raise UsageError(
            "--stop-on-error has no effect on a sequence, because all ops get their results at the end",
            hint="Remove --stop-on-error.",
        )


def _recency(plan: ReplayPlan, options: RunOptions) -> dict[str, Recency]:
    """Return the reuse distances in the step by op id, if `cache` is "step". Raises UsageError if they are unknown."""
    if options.cache != "step":
        return {}
    if options.mode == "sequence":
        raise UsageError(
            "--cache step applies to single ops", hint="In a sequence, caches contain what earlier calls left."
        )
    if options.device != "cpu":
        raise UsageError(
            f"--cache step supports only the CPU, not {options.device}",
            hint="Use --cache cold, or replay with --mode sequence.",
        )
    by_op = recency(with_outputs(plan))
    if not by_op:
        raise lacks_order(plan, "--cache step")
    return by_op
