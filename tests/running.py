"""Runs of plans in tests: all events delivered to a sink, and the summary returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.execute.processes.lanes import Engine, OneByOne, Step
from opreplay.replay.execute.processes.runner import Runner
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.job.consumers import deliver, write_to
from opreplay.replay.job.events import Ended, Event, Predicted, Progress
from opreplay.replay.job.measuring import About, run_events
from opreplay.replay.results.outcome import Outcome
from opreplay.replay.results.reading import ResultFile, ResultSink
from opreplay.replay.results.records import Simulated, Summary


def run_plan(
    plan: ReplayPlan,
    options: RunOptions,
    *,
    sink: ResultSink,
    simulate: Callable[[ReplayOp], dict[str, Simulated]] = lambda op: {},
    on_progress: Callable[[Progress], None] = lambda progress: None,
    runner: Runner | None = None,
    engine: Engine | None = None,
    earlier: ResultFile | None = None,
    **about: Any,
) -> Summary:
    """Write a run to a sink; `runner` replaces the engine, `about` is what `About` has."""
    ended: list[Ended] = []

    def take(event: Event) -> None:
        if isinstance(event, Progress):
            on_progress(event)
        elif isinstance(event, Ended):
            ended.append(event)

    events = run_events(
        plan,
        options,
        lambda op: Predicted(op=op, simulated=simulate(op)),
        about=About(**about),
        engine=engine or (None if runner is None else OneByOne(runner)),
        earlier=earlier,
    )
    deliver(events, write_to(sink), take)
    return ended[0].summary


def outcomes_of(engine: Engine, ops: Any, decide: Any = lambda op: None) -> list[tuple[ReplayOp, Outcome]]:
    """Return what an engine tells of ops that are done."""
    steps: list[Step] = list(engine.outcomes(ops, decide))
    return [step for step in steps if isinstance(step, tuple)]
