# pyright: strict
"""Insert op times measured on this machine into a step that ran on the host, with notes on their limits."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from opreplay.replay.results.reading import ResultFile
from opreplay.replay.timeline.changes import Edited, Unmatched, outermost, with_op_times
from opreplay.replay.timeline.graph.model import StepGraph
from opreplay.replay.timeline.names import Names, op_parents
from opreplay.traces.arrays import distinct
from opreplay.traces.errors import TraceError, UsageError
from opreplay.traces.links.parents import rows_inside


class MeasuredOps(msgspec.Struct, frozen=True, kw_only=True):
    """Op times measured in a run."""

    us: dict[str, float]
    """Median time of one call, in µs, by op id."""
    collectives: dict[tuple[str, int, str], float] = {}
    """Median transfer time in µs for each (operation, input elements per rank, dtype).

    If it is unknown how much of a call was waiting, this is the time of the whole call.
    """
    caches: dict[str, int] = {}
    """Number of ops by cache state: "cold", "warm", "step", "sequence"."""
    profiler_event_us: float | None = None
    """Time that the profiler adds to an op for each op called inside it; None if it was not measured."""


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step with measured op times."""

    edited: Edited
    profiler_us: float
    """Part of the step time that the profiler took for inner ops in the recording. 0 if unknown."""
    notes: tuple[str, ...]


def measured_ops(file: ResultFile) -> MeasuredOps:
    """Return the measured times in a result file."""
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
    """Host time per call on this machine, in µs by op id."""

    launch_us: dict[str, float]
    """Time to launch a call on an accelerator."""
    call_us: dict[str, float]
    """Time of whole calls on the CPU. It is the host time of calls that start no kernel, such as views."""


def measured_host(file: ResultFile) -> MeasuredHost:
    """Return the host times in a result file. Raises UsageError if it has none."""
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
    """Return a step that ran on the host, with measured instead of recorded times.

    If nested ops were measured, the outermost counts, and its slices keep their proportions. The profiler's overhead
    for inner ops in the recording is added to each time.

    Raises TraceError for a step with device work, because its host only launches. Raises Unmatched if no op of the step
    was measured.
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
        raise Unmatched(
            "the results contain none of the ops of this step", hint="Use the results of a run of this trace."
        )
    known = ~np.isnan(by_row)
    calls = distinct(outermost(names, known)[graph.slices.op[graph.slices.op >= 0]])
    return MeasuredStep(
        edited=Edited.unchanged(graph, durations, matched=matched),
        profiler_us=float(inside_us[calls[known[calls]]].sum()),
        notes=tuple(_notes(results)),
    )


def _notes(results: MeasuredOps) -> list[str]:
    """Return notes on the limits of the measured times."""
    notes: list[str] = []
    total = sum(results.caches.values())
    for state in ("cold", "warm"):
        if count := results.caches.get(state, 0):
            notes.append(
                f"measured: {count} of {total} ops ran with {state} caches, but in a step only some arguments are "
                f"{state}; `run --cache step` puts each argument in the cache state that it has in the step"
            )
    if results.profiler_event_us is None:
        notes.append(
            "measured: the profiler's own time per nested op is not subtracted; `run --cache step` measures it"
        )
    else:
        notes.append(
            f"measured: {results.profiler_event_us:.2f} µs per nested op is the profiler's own time, which a step "
            "without profiler does not need"
        )
    notes.append("measured: recorded times include first touches of new memory, measured times do not")
    return notes
