# pyright: strict
"""A history of runs in every output format: the first line, the ops that changed, and facts as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType

from opreplay.replay.report import formats
from opreplay.replay.report.table import (
    COUNT,
    TIME,
    Column,
    Table,
    Unit,
    cut,
    more_line,
    notes_lines,
    terminal,
)
from opreplay.replay.report.text import plural, safe
from opreplay.replay.report.view import View
from opreplay.replay.report.views.comparison import MAX_ROWS, precise
from opreplay.replay.results.compare.changes import LEAST_RUNS, LEVEL, Change, OpHistory
from opreplay.replay.results.compare.regressions import Condition
from opreplay.traces.errors import UsageError


class _Row(msgspec.Struct, frozen=True):
    op: OpHistory
    change: Change


_Col = Column[_Row]
_RATIO = Unit(precise)


def slower_than(conditions: Sequence[Condition], ops: Sequence[OpHistory]) -> list[str]:
    """Return one line for each op whose latest change violates a condition. Raises UsageError for conditions other than
    "slower".
    """
    if other := [str(condition) for condition in conditions if condition.what != "slower"]:
        raise UsageError(f"--fail-if {other[0]} needs two runs", hint="For a history, only 'slower>5%' can be tested.")
    return [
        f"{condition}: {op.name} {safe(op.inputs)} {precise(op.changes[-1].ratio)} since {_run(op.changes[-1])}"
        for condition in conditions
        for op in ops
        if op.changes and op.changes[-1].ratio > 1.0 + condition.limit
    ]


def view(ops: Sequence[OpHistory], verdicts: Mapping[str, object]) -> View:
    """Return a history in every output format; `verdicts` holds additional values for JSON."""
    return View(
        lines=[first_line(ops)],
        render=lambda width: render(ops, width=width),
        facts=lambda: {**facts(ops), **verdicts},
        markdown=lambda: markdown(ops),
    )


def first_line(ops: Sequence[OpHistory]) -> str:
    """Return "history of 48 ops in up to 30 runs: 1 changed, 45 without a change, 2 with fewer than 6 runs"."""
    changed, few = sum(bool(op.changes) for op in ops), sum(not op.tested for op in ops)
    counts = [f"{changed:,} changed", f"{len(ops) - changed - few:,} without a change"]
    counts += [f"{few:,} with fewer than {2 * LEAST_RUNS} runs"] if few else []
    runs = max((op.runs for op in ops), default=0)
    return f"history of {plural(len(ops), 'op')} in up to {plural(runs, 'run')}: {', '.join(counts)}"


def notes(ops: Sequence[OpHistory]) -> list[str]:
    """Return notes on the false alarm rate of changes, and on the machines."""
    machines = list(dict.fromkeys(op.machine_name for op in ops))
    sure = f"false alarm rate: about {100 * LEVEL:.0f} % of unchanged histories report an op (t-test over all ops)"
    return [sure, *(f"machine: {safe(name)}" for name in machines)]


def facts(ops: Sequence[OpHistory]) -> dict[str, object]:
    """Return the whole history as plain values, for JSON."""
    return {"level": LEVEL, "ops": msgspec.to_builtins(list(ops))}


def render(ops: Sequence[OpHistory], *, width: int) -> RenderableType:
    """Render the changes and notes in `width` characters; the first line is not included."""
    name = _Col("op", lambda row: row.op.name, detail=lambda row: row.op.inputs)
    return Group(*terminal(_table(ops, name), width, rest="--format json has all"), *notes_lines(notes(ops)))


def markdown(ops: Sequence[OpHistory]) -> str:
    """Return the history as Markdown: the first line as a heading, the changes and the notes."""
    name = _Col("op", lambda row: row.op.name, form="code")
    inputs = _Col("inputs", lambda row: row.op.inputs, form="code")
    table = cut(_table(ops, name, inputs), MAX_ROWS)
    lines = [f"### opreplay: {formats.escaped(first_line(ops))}", *formats.markdown(table)]
    lines += ["", more_line(table, "")] if table.left_out else []
    return "\n".join([*lines, *formats.bullets(notes(ops))]) + "\n"


def _table(ops: Sequence[OpHistory], *last: _Col) -> Table[_Row]:
    columns = [
        _Col("ratio", lambda row: row.change.ratio, _RATIO),
        _Col("before", lambda row: row.change.before_us, TIME, key="before_us"),
        _Col("after", lambda row: row.change.after_us, TIME, key="after_us"),
        _Col("since", lambda row: _run(row.change)),
        _Col("runs", lambda row: row.change.runs_after, COUNT, drop=2),
        *last,
    ]
    rows = [_Row(op, change) for op in ops for change in reversed(op.changes)]
    return Table("Changes", columns, rows, noun="change")


def _run(change: Change) -> str:
    """Return the commit and the time of a run: "3f0c91a2b7de, 2026-11-24 02:17"."""
    when = change.started_at[:16].replace("T", " ")
    return f"{change.label[:12]}, {when}" if change.label else when
