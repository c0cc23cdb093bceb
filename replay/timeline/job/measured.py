# pyright: strict
"""A job's step with times of ops and collectives that were measured on this machine.

Collectives that were not measured keep their times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opreplay.replay.timeline.changes import Unmatched
from opreplay.replay.timeline.job.graph import JobGraph
from opreplay.replay.timeline.job.values import JobMeasured
from opreplay.replay.timeline.measured import MeasuredOps, with_measured
from opreplay.replay.timeline.names import Names
from opreplay.traces.arrays import Floats
from opreplay.traces.dtypes import torch_dtype_name
from opreplay.traces.errors import TraceError
from opreplay.traces.links.collectives import RankCall


def measured_job(
    job: JobGraph, names: Sequence[Names], calls: Sequence[Sequence[RankCall]], results: MeasuredOps
) -> JobMeasured:
    """Return the job's step with measured instead of recorded times. Waits between ranks are recomputed.

    A measured collective takes its measured transfer time, which includes no waiting. Other collectives take their
    recorded transfer time. Raises TraceError for ranks with device work, and Unmatched if no op of any rank was
    measured.
    """
    durations: list[Floats] = []
    waitless: list[Floats] = []
    lags: list[Floats] = []
    notes: list[str] = []
    matched = measured = unmeasured = 0
    for rank, named, of_rank in zip(job.ranks, names, calls, strict=True):
        graph = rank.graph
        if graph.on_device:
            raise TraceError(
                "measured times apply only to ranks that ran on their hosts",
                hint="These ranks have device work: try --soc.",
            )
        taken, lag = graph.nodes.dur_us.copy(), graph.edges.lag_us.copy()
        try:
            step = with_measured(named, graph, results)
        except Unmatched:
            notes.append(f"rank {rank.rank}: none of its ops was measured, so its calls take their recorded times")
        else:
            taken, lag, matched = (
                step.edited.durations_us.copy(),
                step.edited.lags_us,
                matched + step.edited.matched,
            )
            notes += step.notes
        alone = np.zeros(len(taken))
        for at, node in rank.node_of_call.items():
            us = results.collectives.get(_work(of_rank[at]))
            if us is None:
                unmeasured += 1
                continue
            taken[node], alone[node] = us, 1.0
            measured += 1
        durations.append(taken)
        waitless.append(alone)
        lags.append(lag)
    if not matched:
        raise Unmatched(
            "the results contain none of the ops of these steps",
            hint="Give results of `run` on one of these traces, or of `batch` on all of them.",
        )
    schedule = job.scheduled(job.durations(durations, waitless), lags_us=job.lags(lags))
    if unmeasured:
        notes.append(
            f"measured: {unmeasured} of {unmeasured + measured} collectives have no measured time and take the "
            "recorded transfer time; `run --ranks N --output` measures them"
        )
    steps = job.steps_us(schedule)
    return JobMeasured(
        step_us=max(steps),
        by_rank_us={str(rank.rank): us for rank, us in zip(job.ranks, steps, strict=True)},
        waiting_us=job.waiting_us(schedule),
        ops=matched,
        collectives=measured,
        collectives_recorded=unmeasured,
        notes=tuple(dict.fromkeys(notes)),
    )


def _work(call: RankCall) -> tuple[str, int, str]:
    return call.kind, call.elements or 0, torch_dtype_name(call.dtype or "") or ""
