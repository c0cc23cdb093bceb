# pyright: strict
"""A plan as a table and as JSON: what would run and how, memory, and the time on a simulated device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from opreplay.replay.ascend.simulate.coverage import clock_of
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import need_of, readable
from opreplay.replay.plan.recorded.where import Where
from opreplay.replay.report import first_screen, suspects
from opreplay.replay.report.run.facts import (
    assumption_notes,
    confidence_notes,
    coverage_line,
    socs_of,
    stand_in_notes,
    telling_notes,
    unmatched_notes,
    unowned_notes,
)
from opreplay.replay.report.run.ops import OpColumn, predictions, recordings
from opreplay.replay.report.run.report import file_table, no_ops
from opreplay.replay.report.run.tables import reasons_file_table, reasons_table
from opreplay.replay.report.table import Table, decisive, notes_lines, rows_that_matter, terminal
from opreplay.replay.report.text import DASH, end, plural, safe
from opreplay.replay.report.view import View
from opreplay.replay.report.views import meta
from opreplay.replay.resolve.defining_files import registered_by
from opreplay.replay.results.of_plan import summarize
from opreplay.replay.results.records import L2State, OpResult, Summary
from opreplay.traces.names import trace_name

SCHEMA_VERSION = 1
"""Version of the JSON format. History: 1 is the first version."""


def planned_summary(plan: ReplayPlan, results: Sequence[OpResult]) -> Summary:
    """Return counts and shares of the ops that would run."""
    return summarize(plan, results, wall_s=0.0, interrupted=False)


def view(
    plan: ReplayPlan,
    results: Sequence[OpResult],
    *,
    ranked: bool = False,
    where: Where | None = None,
    l2: L2State | None = None,
    everything: bool = True,
    all_rows: bool = True,
) -> View:
    """Return a plan in every output format; `l2` is the cache state assumed in predictions."""
    summary = planned_summary(plan, results)
    processes = 1 if where is None else where.processes
    covered = coverage_line(None, results, summary, verb="would replay", processes=processes, selection=plan.selection)
    recorded_us = sum(r.recorded_share for r in results) * (plan.device_us_total or plan.host_us_total)
    lines = [f"{safe(trace_name(plan.source))}: {covered}"]
    socs = socs_of(results)[: first_screen.SOCS_SHOWN]
    lines += [first_screen.predicted_line(soc, results, recorded_us) for soc in socs]
    lines += filter(None, [first_screen.heavy_text(where, results)])
    if any(result.meta is not None for result in results):
        lines.append(meta.line(results))
    return View(
        lines=lines,
        render=lambda width: render(
            plan, results, width=width, ranked=ranked, where=where, everything=everything, all_rows=all_rows
        ),
        facts=lambda: facts(plan, results, summary, where, l2),
        table=lambda: file_table(results),
        tables={"ops": lambda: file_table(results), "reasons": lambda: reasons_file_table(summary)},
    )


def render(
    plan: ReplayPlan,
    results: Sequence[OpResult],
    *,
    width: int,
    ranked: bool = False,
    where: Where | None = None,
    everything: bool = True,
    all_rows: bool = True,
) -> RenderableType:
    """Render the head of a plan, and one row per op that says how it would run, in `width` characters.

    `ranked` numbers the rows from 1. Without `everything`, show only notes that may change a decision, and how many
    other notes there are. Without `all_rows`, show only the rows that account for most of the time.
    """
    shown = results if all_rows else results[: rows_that_matter([r.recorded_share for r in results])]
    by_id = {op.id: op for op in plan.ops}
    ranks = {result.id: str(place) for place, result in enumerate(shown, 1)}
    columns = [
        *([OpColumn("#", lambda r: ranks[r.id], right=True, style="dim")] if ranked else []),
        *recordings(shown, device=plan.device_us_total > 0),
        *predictions(socs_of(shown)),
        OpColumn("memory", lambda r: memory_text(by_id[r.id]), right=True, drop=5),
        OpColumn("runs by", lambda r: "no" if r.status != "replayed" else r.resolved_by or DASH, drop=4),
        *([meta.COLUMN] if any(r.meta is not None for r in results) else []),
        meta.op_column(shown),
    ]
    table = Table("Ops", columns, results, noun="op", weight=lambda r: r.recorded_share)
    parts = terminal(table, width, all_rows=all_rows, one_line=True) or [no_ops()]
    known = first_screen.lines(where, plan.device, results) if everything else first_screen.warning_lines(where)
    head = first_screen.rendered([*first_screen.capture_lines(plan), *known])
    head += suspects.rendered(suspects.lines(results))
    tables = [*terminal(reasons_table(results)), *terminal(meta.problems(results))]
    notes = _notes(plan, results, where, everything=everything)
    return Group(*head, *parts, *tables, *notes_lines(notes))


def unread_notes(unread: Mapping[str, int]) -> list[str]:
    """Return a note on iteration annotations that could not be parsed; nothing if all could be parsed."""
    if not unread:
        return []
    first, count = next(iter(unread)), sum(unread.values())
    counted = plural(count, "annotation")
    return [f"{counted} of iterations could not be parsed, so their batches are not used: {end(safe(first), 80)}"]


def _notes(plan: ReplayPlan, results: Sequence[OpResult], where: Where | None, *, everything: bool) -> list[str]:
    kinds, socs = None if where is None else where.unowned, socs_of(results)
    chosen = unowned_notes(plan.unowned_device_us, plan.device_us_total, kinds)
    chosen += unmatched_notes(plan.unmatched)
    chosen += unread_notes({} if where is None else where.unread_annotations)
    chosen += [note for soc in socs for note in telling_notes(soc, results)]
    lines = [*chosen, *stand_in_notes(results), *assumption_notes(results)]
    lines += [note for soc in socs for note in confidence_notes(soc, results) if note not in chosen]
    return lines if everything else decisive(lines, chosen)


def memory_text(op: ReplayOp) -> str:
    """Return the bytes of inputs and outputs, with a tilde if the outputs are estimated."""
    need = need_of(op)
    return f"{'' if need.outputs_known else '~'}{readable(need.total)}"


_PLAN_FACTS = (
    "source",
    "selection",
    "device",
    "device_us_total",
    "host_us_total",
    "unowned_device_us",
    "losses",
    "unmatched",
)
_TIMES = ("recorded_device_us", "recorded_host_us", "recorded_share")
_PREDICTIONS = ("kernel_classes", "suspicions", "simulated_us", "bound")


def facts(
    plan: ReplayPlan,
    results: Sequence[OpResult],
    summary: Summary,
    where: Where | None = None,
    l2: L2State | None = None,
) -> dict[str, Any]:
    """Return the plan as JSON-safe values; times are in microseconds per call.

    `l2` is the cache state assumed in predictions.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: getattr(plan, name) for name in _PLAN_FACTS},
        "l2": l2,
        "ops": summary.ops,
        "replayable": summary.replayed,
        "covered_share": summary.covered_share,
        "covered_of": None if clock_of(plan) == "ops" else clock_of(plan),
        "unpredicted_share": summary.unpredicted_share,
        "reasons": summary.reasons,
        "not_replayed": summary.not_replayed,
        "where": where,
        "meta": meta.facts(results),
        "unique_ops": [op_facts(op, result) for op, result in zip(plan.ops, results, strict=True)],
    }


def op_facts(op: ReplayOp, result: OpResult) -> dict[str, Any]:
    """Return one op of a plan as JSON-safe values."""
    need = need_of(op)
    return {
        "id": op.id,
        "name": op.name,
        "count": op.count,
        "replayable": result.status == "replayed",
        "reason": result.reason and str(result.reason),
        "resolved_by": op.resolved_by,
        "registered_by": registered_by(op),
        "via": op.via,
        "overload": op.overload,
        "call": result.call,
        "inputs": result.inputs,
        "bytes": need.total,
        "bytes_estimated": not need.outputs_known,
        **{name: getattr(result, name) for name in (*_TIMES, *_PREDICTIONS)},
        "by": {soc: prediction.by for soc, prediction in result.simulated.items()},
        "l2": {soc: prediction.l2 for soc, prediction in result.simulated.items()},
        "assumptions": op.assumptions,
        "meta": result.meta,
    }
