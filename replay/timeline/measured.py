# pyright: strict
"""Puts op times measured in a run on this machine into a step that the host ran, with notes on their limits."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from opreplay.replay.results.reading import ResultFile
from opreplay.replay.timeline.changes import Edited, Unmatched, outermost, with_op_times
from opreplay.replay.timeline.graph.model import StepGraph
from opreplay.replay.timeline.names import Names, op_parents
from opreplay.traces.errors import TraceError, UsageError
from opreplay.traces.links.parents import rows_inside


class MeasuredOps(msgspec.Struct, frozen=True, kw_only=True):
    """Op times measured in a run."""

    us: dict[str, float]
    """Median of one call by id of the op."""
    collectives: dict[tuple[str, int, str], float] = {}
    """Median transfer in µs by operation, elements that a rank hands in, and dtype; the time of a call where it is not
    known what of that was waiting."""
    caches: dict[str, int] = {}
    """Ops by the state of the caches: "cold", "warm", "step", "sequence"."""
    profiler_event_us: float | None = None
    """What the profiler of a recording adds to an op for each op that it calls; None where that was not measured."""


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step with measured op times."""

    edited: Edited
    profiler_us: float
    """Of these times, the profiler's for ops inside others, as the recording holds it; 0 where it is not known."""
    notes: tuple[str, ...]


def measured_ops(file: ResultFile) -> MeasuredOps:
    """Return the times of a result file."""
    done = [result for result in file.results if result.measured_us and result.collective is None]
    caches = Counter(result.measurement.cache for result in done if result.measurement is not None)
    event_us = file.header.environment.get("profiler_event_us")
    return MeasuredOps(
        us={result.id: result.measured_us for result in done if result.measured_us},
        collectives=_transfers(file),
        caches=dict(caches),
        profiler_event_us=float(event_us) if isinstance(event_us, int | float) else None,
    )


def _transfers(file: ResultFile) -> dict[tuple[str, int, str], float]:
    out: dict[tuple[str, int, str], float] = {}
    for result in file.results:
        facts = result.collective
        if facts is None or facts.replayed is None or not result.measured_us:
            continue
        collective = facts.collective
        us = result.measured_us if facts.replayed.transfer_us is None else facts.replayed.transfer_us
        out.setdefault((collective.kind, collective.in_elements, collective.dtype), us)
    return out


class MeasuredHost(msgspec.Struct, frozen=True, kw_only=True):
    """This machine's host time per call, µs by op id."""

    launch_us: dict[str, float]
    """To launch a call on an accelerator."""
    call_us: dict[str, float]
    """Of a whole call on the CPU: the host's time where the call starts no kernel, as a view does."""


def measured_host(file: ResultFile) -> MeasuredHost:
    """Return the host times of a result file. Raises UsageError if it holds none."""
    done = [
        (timing.id, timing.measurement)
        for timing in file.results
        if timing.measurement is not None and timing.measured_us
    ]
    host = MeasuredHost(
        launch_us={id_: timing.host_us for id_, timing in done if timing.host_us},
        call_us={id_: timing.median_us for id_, timing in done if file.header.environment.get("device") == "cpu"},
    )
    if not host.launch_us and not host.call_us:
        raise UsageError(
            "the results contain no host time", hint="Measure the plan here: `opreplay run PLAN -o H.jsonl`."
        )
    return host


def with_measured(names: Names, graph: StepGraph, results: MeasuredOps) -> MeasuredStep:
    """Return a step of the host with measured times in place of the recorded ones.

    Of nested ops the outermost measured one counts; its slices keep their shares. The profiler's overhead in the
    recording for the ops inside is added to each time. Raises TraceError for a step with device work, whose host only
    launches, and Unmatched if no op of the step was measured.
    """
    from opreplay.replay.plan.recorded.groups import signature_id

    if graph.on_device:
        raise TraceError(
            "measured times apply only to steps that ran on the host", hint="This step has device work: try --soc."
        )
    ops = names.trace.ops
    us = np.array([results.us.get(signature_id(call), np.nan) for call in names.trace.signatures] or [np.nan])
    by_row = us[ops.signature] if len(ops) else np.empty(0)
    inside_us = np.asarray((results.profiler_event_us or 0.0) * rows_inside(op_parents(names.trace)), np.float64)
    durations, matched = with_op_times(names, graph, by_row + inside_us)
    if not matched:
        raise Unmatched("the results hold none of the ops of this step", hint="Use the results of a run of this trace.")
    known = ~np.isnan(by_row)
    calls = np.unique(outermost(names, known)[graph.slices.op[graph.slices.op >= 0]])
    return MeasuredStep(
        edited=Edited.unchanged(graph, durations, matched=matched),
        profiler_us=float(inside_us[calls[known[calls]]].sum()),
        notes=tuple(_notes(results)),
    )


def _notes(results: MeasuredOps) -> list[str]:
    """Return notes on what these times lack."""
    notes: list[str] = []
    total = sum(results.caches.values())
    for state in ("cold", "warm"):
        if count := results.caches.get(state, 0):
            notes.append(
                f"measured: {count} of {total} ops with {state} caches, which a step has for some arguments only: "
                "`run --cache step` has each as far away as the step leaves it"
            )
    if results.profiler_event_us is None:
        notes.append("measured: without the profiler's own time for ops inside others, which `run --cache step` finds")
    else:
        notes.append(
            f"measured: {results.profiler_event_us:.2f} µs for each op inside another are the profiler's, which a step "
            "that is not recorded does not spend"
        )
    notes.append("measured: first touches of fresh memory are in recorded times and not in measured ones")
    return notes
