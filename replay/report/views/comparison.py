# pyright: strict
"""A comparison in every form: the first line, the ops, classes of work, notes, and the facts as plain values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from opreplay.replay.report import formats
from opreplay.replay.report.table import (
    COUNT,
    OP,
    TIME,
    Column,
    OpCell,
    Table,
    Unit,
    cut,
    heaviest,
    more_line,
    notes_lines,
    terminal,
)
from opreplay.replay.report.text import DASH, plural, ratio_text, safe, share_text, time_text
from opreplay.replay.results.compare.judge import Comparison, OpComparison, Total, Verdict

SHOWN: tuple[Verdict, ...] = ("slower", "faster", "lost", "gained", "only before", "only after")
"""Verdicts that are listed; ops that stayed the same or are unclear are counted."""
ALONE = 1 / 3
"""With a larger share of ops on one side only, it is said what that may come from."""
WAYS = 4
"""Notes on ops that were judged which are counted below."""
ORDER: tuple[Verdict, ...] = (*SHOWN, "same", "unclear")


def first_line(found: Comparison) -> str:
    """ "compared 48 ops: 3 slower, 1 faster, 44 same; total 1.020× (1.01 to 1.03)"."""
    judged = found.of("slower", "faster", "same", "unclear")
    counts = [f"{len(ops):,} {verdict}" for verdict in ORDER if (ops := found.of(verdict))]
    return f"compared {plural(len(judged), 'op')}: {', '.join(counts) or 'none in both runs'}{_total(found)}"


def _total(found: Comparison) -> str:
    """All recorded time where both sides are recorded, and the ops on both sides beside it; else these alone."""
    if found.whole is not None and found.sides is not None:
        was, now = (time_text(side.total_us) for side in found.sides)
        none = ", no interval" if found.untold else ""
        whole = f"; total {precise(found.whole)} ({was} to {now}{none})"
        return whole if found.total is None else f"{whole}, ops on both sides {precise(found.total.ratio)}"
    if found.total is None:
        return ""
    sure = interval(found.total)
    said = f"{100 * found.total.level:.0f} %: {sure}" if sure and found.total.level != 0.95 else sure
    total = f"; total {precise(found.total.ratio)}" + (f" ({said})" if said else "")
    if found.of("only before", "only after"):
        total += " of the ops on both sides"
        total += f", {precise(found.with_alone)} with the others" if found.with_alone is not None else ""
    return total


def side_lines(found: Comparison) -> list[str]:
    """What is held against what, and how much of it the other side has too; none for two runs."""
    made: list[str] = []
    for which, side in zip(("before", "after"), found.sides or (), strict=False):
        share = side.matched_us / side.total_us if side.total_us else 0.0
        matched = f"{side.matched_ops} of {plural(side.ops, 'op')} = {share_text(share)} of {time_text(side.total_us)}"
        made.append(f"{which}: {side.what} on {safe(side.on)} ({safe(side.source)}); on both sides {matched}")
    return [*made, *_step_line(found)]


def _step_line(found: Comparison) -> list[str]:
    """The marked steps of both traces side by side; none where neither marks any."""
    if found.sides is None or not any(side.steps for side in found.sides):
        return []
    told: list[str] = []
    for which, side in zip(("before", "after"), found.sides, strict=True):
        if side.steps is None:
            told.append(f"none marked {which}")
            continue
        low, high = time_text(side.steps.shortest_us), time_text(side.steps.longest_us)
        spread = f" ({low} to {high})" if side.steps.count > 1 else ""
        told.append(f"{side.steps.count} {which}, median {time_text(side.steps.median_us)}{spread}")
    was, now = (side.steps for side in found.sides)
    told += [f"{precise(now.median_us / was.median_us)} of the medians, on the host"] if was and now else []
    return [f"steps: {'; '.join(told)}"]


def rows(found: Comparison, *, everything: bool = False) -> list[OpComparison]:
    """The ops to list, by verdict and then by how much time they won or lost."""
    return [op for verdict in (ORDER if everything else SHOWN) for op in found.of(verdict)]


def detail_of(found: Comparison, op: OpComparison) -> str:
    """What tells an op from others of its name, and what is to be known of its row. Of two kinds of times every row
    has the same few notes, which are counted below."""
    if found.sides is not None and op.ratio is not None:
        return op.inputs or op.note
    return "; ".join(part for part in (op.inputs, against_times(found, op), op.note) if part)


def against_times(found: Comparison, op: OpComparison) -> str:
    """That a row's two times say the opposite of its verdict, since the gauges beside them changed more; "" else."""
    if found.method != "gauges" or op.verdict not in ("slower", "faster") or not op.before_us or not op.after_us:
        return ""
    alone = op.after_us / op.before_us
    if op.ratio is None or (op.ratio > 1.0) == (alone > 1.0):
        return ""
    return f"by the gauges, times alone {precise(alone)}"


def precise(ratio: float | None) -> str:
    """A ratio with three decimals below ten, below 0.1 with three digits: a change of 1 % is worth seeing here."""
    if ratio is None or not 0.001 <= ratio < 10:
        return ratio_text(ratio, 1.0)
    return f"{ratio:.3f}×" if ratio >= 0.1 else f"{ratio:.3g}×"


def interval(op: OpComparison | Total) -> str:
    """ "1.08 to 1.13"; empty where there is none."""
    return "" if op.low is None or op.high is None else f"{_bound(op.low)} to {_bound(op.high)}"


def _bound(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def level(found: Comparison) -> str:
    """Of the intervals of the ops: "80 %" where one side is a prediction."""
    return f"{100 * next((op.level for op in found.ops if op.low is not None), 0.95):.0f} %"


def notes(found: Comparison) -> list[str]:
    """What must be known to trust the verdicts."""
    made = [f"threshold: ±{share_text(found.threshold)}"]
    if found.applied > found.threshold:
        made[0] += f", raised to ±{share_text(found.applied)}: so far do ratios scatter in these two runs"
    if found.power is not None:
        made.append(f"power: this pair could have seen changes above {share_text(found.power)}")
    if found.method == "gauges" and found.machine is not None:
        made.append("ratio: of times relative to a fixed piece of work beside each sample; --method medians is without")
    if found.machine is not None and abs(found.machine - 1.0) > 0.02:
        made.append(f"machine: a fixed piece of work took {precise(found.machine)} as long in the second run")
    judged = found.of("slower", "faster", "same") if found.sides is None else []
    ways = Counter(op.note for op in judged if op.note)
    made += [f"{plural(count, 'op')}: {safe(note)}" for note, count in ways.most_common(WAYS)]
    made += [f"forced: {difference}" for difference in found.differences if difference.blocking]
    made += [f"differs: {difference}" for difference in found.differences if not difference.blocking]
    runs = found.sides is None or any(side.what == "measured" for side in found.sides)
    if runs and found.alone_share > ALONE:
        made.append(
            f"{share_text(found.alone_share)} of the ops are on one side only: --quick, --top and a time budget pick "
            "ops by their time, others each time; name them with --op, or use one plan for both"
        )
    unclear = found.of("unclear")
    if unclear:
        reasons = Counter(part for op in unclear for part in op.note.split("; ") if part)
        made.append(f"unclear: {plural(len(unclear), 'op')}: {'; '.join(part for part, _ in reasons.most_common(6))}")
    return [*made, *map(safe, found.notes)]


def facts(found: Comparison) -> dict[str, object]:
    """The whole comparison as plain values, for JSON."""
    body: dict[str, object] = msgspec.to_builtins(found)
    ops = body.pop("ops")
    counts = {verdict: len(found.of(verdict)) for verdict in ORDER}
    return {"counts": counts, "whole": found.whole, **body, "ops": ops}


MAX_ROWS = 50
"""In Markdown: GitHub takes 65,536 characters for a comment."""
STYLES = {"slower": "red", "lost": "red", "faster": "green", "gained": "green", "unclear": "yellow"}
MARKS = {"slower": "🔴", "lost": "🔴", "faster": "🟢", "gained": "🟢"}
_OfOp = Column[OpComparison]
_RATIO = Unit(precise)


def _style(op: OpComparison) -> str:
    return STYLES.get(op.verdict, "")


_VERDICT = _OfOp("verdict", lambda op: op.verdict, style=_style)
_NAME = _OfOp("op", lambda op: op.name, form="code")
_TIMES = [
    _OfOp("before", lambda op: op.before_us, TIME, key="before_us", drop=2),
    _OfOp("after", lambda op: op.after_us, TIME, key="after_us"),
]
_CALLS = _OfOp("count", lambda op: op.count, COUNT, style="dim", drop=8)


def ops_table(found: Comparison, *last: _OfOp, everything: bool = False) -> Table[OpComparison]:
    """The ops that changed, or all, with their intervals and the given last columns."""
    columns = [
        _VERDICT,
        _OfOp("ratio", lambda op: op.ratio, _RATIO, style=_style),
        _OfOp(level(found), lambda op: interval(op) or DASH, right=True, style="dim", drop=4),
        *_TIMES,
        _CALLS,
        *last,
    ]
    return Table("Ops", columns, rows(found, everything=everything), noun="op")


def page_table(found: Comparison) -> Table[OpComparison]:
    """All ops with both their times, as a page sorts them."""
    columns = [
        _NAME,
        _OfOp("inputs", lambda op: op.inputs, form="code"),
        _CALLS,
        _VERDICT,
        *_TIMES,
        _OfOp("ratio", lambda op: op.ratio, _RATIO),
        _OfOp(level(found), interval),
        _OfOp("note", lambda op: op.note),
    ]
    return heaviest("Ops", columns, found.ops, lambda op: max(op.before_us or 0.0, op.after_us or 0.0) * op.count)


def classes_table(found: Comparison) -> Table[Any]:
    """Totals by class of work; without rows where all is of one class."""
    columns = [
        Column[Any]("class of work", lambda one: one.name),
        Column[Any]("before", lambda one: one.before_us or None, TIME, key="before_us"),
        Column[Any]("after", lambda one: one.after_us or None, TIME, key="after_us"),
        Column[Any]("ops on both", lambda one: one.matched_ops, COUNT, key="matched_ops"),
        Column[Any]("ratio of these", lambda one: one.ratio, _RATIO, key="ratio"),
    ]
    return Table("Classes of work", columns, found.classes if len(found.classes) > 1 else ())


def render(found: Comparison, *, width: int, everything: bool = False) -> RenderableType:
    """The ops that changed, or all, fitted to `width` characters, and notes; the first line comes before it."""
    op = _OfOp("op", lambda op: OpCell(name=op.name, detail=detail_of(found, op)), OP)
    ops = terminal(ops_table(found, op, everything=everything), width)
    return Group(*ops, *terminal(classes_table(found)), *notes_lines(notes(found)))


def markdown(found: Comparison, *, everything: bool = False) -> str:
    """The first line as a heading, the ops that changed, or all, and notes: short enough for a pull request."""
    detail = _OfOp("inputs", lambda op: detail_of(found, op), form="code")
    ops = cut(ops_table(found, _NAME, detail, everything=everything), MAX_ROWS)
    marked = _VERDICT.with_text(lambda op: f"{MARKS.get(op.verdict, '')} {op.verdict}".strip())
    ops = msgspec.structs.replace(ops, columns=[marked, *ops.columns[1:]])
    lines = [f"### opreplay: {formats.escaped(first_line(found))}", *formats.bullets(side_lines(found))]
    lines += [*formats.markdown(ops), *(["", more_line(ops, "")] if ops.left_out else [])]
    lines += [*formats.markdown(classes_table(found)), *formats.bullets(notes(found))]
    return "\n".join(lines) + "\n"
