# pyright: strict
"""A comparison in every output format: the first line, the ops, classes of work, notes, and facts as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from opreplay.replay.ir.step import StepReport
from opreplay.replay.report import formats
from opreplay.replay.report.page.model import Answer, Bars, Opened, Page, Waterfall
from opreplay.replay.report.page.parts import bars_by_name, step_parts, waterfall, waterfall_of
from opreplay.replay.report.step.verdict import step_facts, step_rows, verdict
from opreplay.replay.report.table import (
    COUNT,
    OP,
    TEXT,
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
from opreplay.replay.report.text import DASH, doubt_lines, plural, ratio_text, safe, share_text, time_text
from opreplay.replay.report.view import View
from opreplay.replay.results.compare.judge import Comparison, OpComparison, StepTimes, Total, Verdict, is_within
from opreplay.replay.results.compare.replaced import Replaced
from opreplay.traces.sums import summed

SHOWN: tuple[Verdict, ...] = ("slower", "faster", "lost", "gained", "only before", "only after")
"""Verdicts that are listed; ops that stayed the same are counted, and most that are unclear."""
ALONE = 1 / 3
"""With a larger share of ops on one side only, it is said what that may come from."""
LARGE_RATIO, MOST_UNCLEAR = 2.0, 5
"""Of the ops that are unclear the heaviest are listed, if so many times as long or short."""
WAYS = 4
"""Notes on ops that were judged which are counted below."""
OUTLIER = 2.0
"""Times the median from which the longest step is named."""
LEAST_CHANGE = 0.001
"""Of all changes of the step: ops with less are counted, not listed."""
Steps = Mapping[str, StepReport]
""""before" and "after", where the side is a trace."""
ORDER: tuple[Verdict, ...] = (*SHOWN, "same", "unclear")


def view(
    comparison: Comparison, steps: Steps, *, everything: bool = False, verdicts: Mapping[str, object] | None = None
) -> View:
    """Return a comparison in every output format; `verdicts`: additional values for JSON."""
    return View(
        lines=[*step_lines(steps), first_line(comparison), *side_lines(comparison)],
        render=lambda width: render(comparison, width=width, everything=everything),
        facts=lambda: {**facts(comparison, steps), **(verdicts or {})},
        table=lambda: file_table(comparison),
        markdown=lambda: markdown(comparison, steps, everything=everything),
        page=lambda command: page(comparison, steps, command),
    )


def first_line(comparison: Comparison) -> str:
    """Return "compared 48 ops: 3 slower, 1 faster, 44 same; total 1.020× (1.01 to 1.03)"."""
    judged = comparison.of("slower", "faster", "same", "unclear")
    counts = [f"{len(ops):,} {verdict}" for verdict in ORDER if (ops := comparison.of(verdict))]
    compared = f"compared {plural(len(judged), 'op')}: {', '.join(counts) or 'none in both runs'}{_total(comparison)}"
    return f"{compared}; {_shared_text(comparison.shared)}" if _is_shared_shown(comparison) else compared


def _is_shared_shown(comparison: Comparison) -> bool:
    """Check whether the common change of all ops is large enough to mention."""
    return comparison.shared is not None and not is_within(comparison.shared, LEAST_SHARED)


def _shared_text(shared: float | None) -> str:
    return f"all ops {precise(shared)}: clocks or power, not one op"


def _total(comparison: Comparison) -> str:
    """Return the total recorded time if both sides are recorded, with the ops on both sides; else only these ops."""
    if any(not side.is_total_known for side in comparison.sides or ()):
        return "; no total, as device time is not known"
    if comparison.whole is None or comparison.sides is None:
        return _total_of_both(comparison)
    was, now = (time_text(side.total_us) for side in comparison.sides)
    none = ", no interval" if comparison.untold else ""
    whole = f"; total {precise(comparison.whole)} ({was} to {now}{none})"
    return whole if comparison.total is None else f"{whole}, typical calls {precise(comparison.total.ratio)}"


def _total_of_both(comparison: Comparison) -> str:
    if comparison.total is None:
        return ""
    sure = interval(comparison.total)
    said = f"{100 * comparison.total.level:.0f} %: {sure}" if sure and comparison.total.level != 0.95 else sure
    total = f"; total {precise(comparison.total.ratio)}" + (f" ({said})" if said else "")
    if comparison.of("only before", "only after"):
        total += " of the ops on both sides"
        total += f", {precise(comparison.with_alone)} with the others" if comparison.with_alone is not None else ""
    return total


def step_lines(steps: Steps) -> list[str]:
    """Return the step of median length on both sides, then what bounds it; none if neither side marks steps."""
    lines = [f"{which}: {verdict(step)}" for which, step in steps.items() if step.marked]
    if len(lines) == 2 and not any(step.doubts.untimed for step in steps.values()):
        was, now = (step.window.step_us for step in steps.values())
        lines.insert(0, f"step: {precise(now / was)} ({time_text(was)} to {time_text(now)}, of median length)")
    return lines


def side_lines(comparison: Comparison) -> list[str]:
    """Return what is compared with what, and how much of each side the other also has; none for two runs."""
    lines: list[str] = []
    for which, side in zip(("before", "after"), comparison.sides or (), strict=False):
        share = side.matched_us / side.total_us if side.total_us else 0.0
        matched = f"{side.matched_ops} of {plural(side.ops, 'op')} = {share_text(share)} of {time_text(side.total_us)}"
        known = f"device time is not known: {' and '.join(doubt_lines(side.doubts))}"
        known = known if side.doubts.mistimed else f"on both sides {matched}"
        lines.append(f"{which}: {side.what} on {safe(side.on)} ({safe(side.source)}); {known}")
    return [*lines, *_step_line(comparison)]


def _steps_text(steps: StepTimes, which: str) -> str:
    """Return the number of marked steps on one side, their median and spread."""
    spread = f" ({time_text(steps.shortest_us)} to {time_text(steps.longest_us)})" if steps.count > 1 else ""
    outlier = steps.longest_us > OUTLIER * steps.median_us
    spread += f", {safe(steps.longest)} the longest by far" if outlier else ""
    return f"{steps.count} {which}, median {time_text(steps.median_us)}{spread}"


def _step_line(comparison: Comparison) -> list[str]:
    """Return the marked steps of both traces side by side; none if neither marks any."""
    if comparison.sides is None or not any(side.steps for side in comparison.sides):
        return []
    parts: list[str] = []
    for which, side in zip(("before", "after"), comparison.sides, strict=True):
        parts.append(f"none marked {which}" if side.steps is None else _steps_text(side.steps, which))
    was, now = (side.steps for side in comparison.sides)
    parts += [f"{precise(now.median_us / was.median_us)} of the medians, on the host"] if was and now else []
    return [f"steps: {'; '.join(parts)}"]


def rows(comparison: Comparison, *, everything: bool = False) -> list[OpComparison]:
    """Return the ops to list: for traces by their part of the step's difference, else by verdict and time gained or
    lost.
    """
    shown = [op for verdict in (ORDER if everything else SHOWN) for op in comparison.of(verdict)]
    if not everything:
        shown += sorted(filter(_stands_out, comparison.of("unclear")), key=lambda op: -op.weight_us)[:MOST_UNCLEAR]
    if not _of_steps(comparison):
        return shown
    smallest_us = 0.0 if everything else LEAST_CHANGE * sum(op.weight_us for op in comparison.ops)
    return sorted((op for op in shown if op.weight_us >= smallest_us), key=lambda op: -op.weight_us)


def _stands_out(op: OpComparison) -> bool:
    """Check whether a change that may be random would be a large one."""
    return op.ratio is not None and not 1 / LARGE_RATIO < op.ratio < LARGE_RATIO


def _of_steps(comparison: Comparison) -> bool:
    return any(op.step_change_us is not None for op in comparison.ops)


def detail_of(comparison: Comparison, op: OpComparison) -> str:
    """Return details that distinguish an op from others of its name, and notes on its row.

    If the two sides have different kinds of times, every row has the same few notes, which are counted below the table.
    """
    if comparison.sides is not None and op.ratio is not None:
        return op.inputs or op.note
    return "; ".join(part for part in (op.inputs, against_times(comparison, op), op.note) if part)


def against_times(comparison: Comparison, op: OpComparison) -> str:
    """Return a note if a row's two times contradict its verdict because the reference workloads changed more; ""
    otherwise.
    """
    if comparison.method != "gauges" or op.verdict not in ("slower", "faster") or not op.before_us or not op.after_us:
        return ""
    alone = op.after_us / op.before_us
    if op.ratio is None or (op.ratio > 1.0) == (alone > 1.0):
        return ""
    return f"by the gauges, times alone {precise(alone)}"


def precise(ratio: float | None) -> str:
    """Format a ratio with three decimals below ten, and three digits below 0.1, so that a change of 1 % is visible."""
    if ratio is None or not 0.001 <= ratio < 10:
        return ratio_text(ratio, 1.0)
    return f"{ratio:.3f}×" if ratio >= 0.1 else f"{ratio:.3g}×"


def interval(op: OpComparison | Total) -> str:
    """Return "1.08 to 1.13"; empty if there is no interval."""
    return "" if op.low is None or op.high is None else f"{_bound(op.low)} to {_bound(op.high)}"


def _bound(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def level(comparison: Comparison) -> str:
    """Return the level of the ops' intervals: "80 %" if one side is a prediction."""
    return f"{100 * next((op.level for op in comparison.ops if op.low is not None), 0.95):.0f} %"


def _threshold_text(comparison: Comparison) -> str:
    text = f"threshold: ±{share_text(comparison.threshold)}"
    if comparison.applied > comparison.threshold:
        text += f", raised to ±{share_text(comparison.applied)}, the noise of these two runs"
    return text


def _machine_lines(machine: float, method: str) -> list[str]:
    """Return what the reference workload timed with each sample says about the two runs."""
    lines: list[str] = []
    if method == "gauges":
        lines.append(
            "ratio: of times relative to a fixed piece of work beside each sample; --method medians is without"
        )
    if abs(machine - 1.0) > 0.02:
        lines.append(f"machine: a fixed piece of work took {precise(machine)} as long in the second run")
    return lines


def notes(comparison: Comparison) -> list[str]:
    """Return notes needed to trust the verdicts."""
    lines = _method_lines(comparison)
    judged = comparison.of("slower", "faster", "same") if comparison.sides is None else []
    ways = Counter(op.note for op in judged if op.note)
    lines += [f"{plural(count, 'op')}: {safe(note)}" for note, count in ways.most_common(WAYS)]
    differences = sorted(comparison.differences, key=lambda difference: not difference.blocking)
    lines += [f"{'forced' if difference.blocking else 'differs'}: {difference}" for difference in differences]
    return [*lines, *_alone_lines(comparison), *_unclear_lines(comparison), *map(safe, comparison.notes)]


def _method_lines(comparison: Comparison) -> list[str]:
    """Return the change from which an op counts as slower or faster, and the smallest change that was detectable."""
    unlisted = len({op.id for op in comparison.of(*SHOWN)} - {op.id for op in rows(comparison)})
    lines = [_threshold_text(comparison)]
    if unlisted:
        lines.append(f"not listed: {plural(unlisted, 'op')}, each under 0.1 % of what changed in the step (--all)")
    if comparison.shared is not None:
        lines.append(
            f"ratios are relative to the change that all ops share, {precise(comparison.shared)}; times are not"
        )
    if comparison.power is not None:
        lines.append(f"power: this pair could have seen changes above {share_text(comparison.power)}")
    return lines if comparison.machine is None else [*lines, *_machine_lines(comparison.machine, comparison.method)]


def _alone_lines(comparison: Comparison) -> list[str]:
    """Return a note if many ops of a run are on one side only, with possible causes."""
    runs = comparison.sides is None or any(side.what == "measured" for side in comparison.sides)
    if not runs or comparison.alone_share <= ALONE:
        return []
    return [
        f"{share_text(comparison.alone_share)} of the ops are on one side only: --quick, --top and a time budget "
        "pick ops by their time, others each time; name them with --include, or use one plan for both"
    ]


def _unclear_lines(comparison: Comparison) -> list[str]:
    """Return why ops could not be judged."""
    unclear = comparison.of("unclear")
    if not unclear:
        return []
    reasons = Counter(part for op in unclear for part in op.note.split("; ") if part)
    return [f"unclear: {plural(len(unclear), 'op')}: {'; '.join(part for part, _ in reasons.most_common(6))}"]


def facts(comparison: Comparison, steps: Steps) -> dict[str, object]:
    """Return the whole comparison as plain values, for JSON."""
    body: dict[str, object] = msgspec.to_builtins(comparison)
    ops = body.pop("ops")
    sides = {which: step_facts(steps[which]) if which in steps else None for which in ("before", "after")}
    counts = {verdict: len(comparison.of(verdict)) for verdict in ORDER}
    return {"counts": counts, "whole": comparison.whole, **body, "step": sides, "ops": ops}


MOST_REPLACED = 8
LEAST_SHARED = 0.005
"""A change of all ops below this share is not told."""
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
_CHANGE = Unit(lambda us: "" if us is None else f"{'+' if us > 0 else '−' if us < 0 else ''}{time_text(abs(us))}")


def _step_change_title(comparison: Comparison) -> str:
    """Return what the changes of the ops add up to: a step's device time, which is not its length, or its ops' host
    time.
    """
    clocks = {side.clock for side in comparison.sides or ()}
    return f"Δ {clocks.pop()}/step" if clocks in ({"device"}, {"host"}) else "Δ step"


def _step_change(comparison: Comparison) -> _OfOp:
    title = _step_change_title(comparison)
    return _OfOp(title, lambda op: op.step_change_us, _CHANGE, key="step_change_us", style=_style)


_CALLS = _OfOp("count", lambda op: op.count, COUNT, style="dim", drop=8)


def ops_table(comparison: Comparison, *last: _OfOp, everything: bool = False) -> Table[OpComparison]:
    """Return the ops that changed, or all, with their intervals and the given last columns."""
    columns = [
        _VERDICT,
        _OfOp("ratio", lambda op: op.ratio, _RATIO, style=_style),
        _OfOp(level(comparison), lambda op: interval(op) or DASH, right=True, style="dim", drop=4),
        *([_step_change(comparison)] if _of_steps(comparison) else []),
        *_TIMES,
        _CALLS,
        *last,
    ]
    return Table("Ops", columns, rows(comparison, everything=everything), noun="op")


def file_table(comparison: Comparison) -> Table[OpComparison]:
    """Return one row per op, with all data frame columns; times in microseconds per call."""
    texts = ("id", "name", "inputs", "verdict", "before_kernel", "after_kernel", "note")
    numbers = {"count": COUNT, "before_us": TIME, "after_us": TIME, "ratio": _RATIO, "low": _RATIO, "high": _RATIO}
    units = {**dict.fromkeys(texts[:4], TEXT), **numbers, "step_change_us": TIME, **dict.fromkeys(texts[4:], TEXT)}
    columns = [
        _OfOp(field, lambda op, field=field: getattr(op, field), unit, key=_RATIO_KEYS.get(field, field))
        for field, unit in units.items()
    ]
    return Table("Ops", columns, comparison.ops, noun="op")


_RATIO_KEYS = {"low": "ratio_low", "high": "ratio_high"}


def page_table(comparison: Comparison) -> Table[OpComparison]:
    """Return all ops with both their times, sortable on a page."""
    columns = [
        *([_step_change(comparison)] if _of_steps(comparison) else []),
        _NAME,
        _OfOp("inputs", lambda op: op.inputs, form="code"),
        _CALLS,
        _VERDICT,
        *_TIMES,
        _OfOp("ratio", lambda op: op.ratio, _RATIO),
        _OfOp(level(comparison), interval),
    ]
    if _of_steps(comparison):
        return heaviest("Ops", columns, comparison.ops, lambda op: op.weight_us)
    return heaviest("Ops", columns, comparison.ops, lambda op: max(op.before_us or 0.0, op.after_us or 0.0) * op.count)


def replaced_table(comparison: Comparison) -> Table[Replaced]:
    """Return which calls of the earlier step other calls replace."""
    column = Column[Replaced]
    columns = [
        column("in place of others", lambda one: f"{_called(one.before)} → {_called(one.after)}", form="fold"),
        column("places", lambda one: one.places, COUNT, drop=2),
        column("before", lambda one: one.before_us, TIME, key="before_us", drop=1),
        column("after", lambda one: one.after_us, TIME, key="after_us", drop=1),
        column("change", lambda one: one.change_us, _CHANGE, key="step_change_us"),
    ]
    return Table("Replaced", columns, comparison.replaced[:MOST_REPLACED])


def _called(names: Sequence[str]) -> str:
    """Return names as "bmm + _softmax + bmm"."""
    return " + ".join(safe(name.removeprefix("aten::")) for name in names)


def classes_table(comparison: Comparison) -> Table[Any]:
    """Return totals by class of work; without rows if all is of one class."""
    columns = [
        Column[Any]("class of work", lambda total: total.name),
        Column[Any]("before", lambda total: total.before_us or None, TIME, key="before_us"),
        Column[Any]("after", lambda total: total.after_us or None, TIME, key="after_us"),
        Column[Any]("ops on both", lambda total: total.matched_ops, COUNT, key="matched_ops"),
        Column[Any]("typical call", lambda total: total.ratio, _RATIO, key="ratio"),
    ]
    return Table("Classes of work", columns, comparison.classes if len(comparison.classes) > 1 else ())


def render(comparison: Comparison, *, width: int, everything: bool = False) -> RenderableType:
    """Render the ops that changed, or all, in `width` characters, and notes; the first line is printed before."""
    op = _OfOp("op", lambda op: OpCell(name=op.name, detail=detail_of(comparison, op)), OP)
    ops = terminal(ops_table(comparison, op, everything=everything), width)
    return Group(
        *terminal(replaced_table(comparison), width),
        *ops,
        *terminal(classes_table(comparison)),
        *notes_lines(notes(comparison)),
    )


def markdown(comparison: Comparison, steps: Steps, *, everything: bool = False) -> str:
    """Return the first line as a heading, the ops that changed, or all, and notes: short enough for a pull request."""
    detail = _OfOp("inputs", lambda op: detail_of(comparison, op), form="code")
    ops = cut(ops_table(comparison, _NAME, detail, everything=everything), MAX_ROWS)
    marked = _VERDICT.with_text(lambda op: f"{MARKS.get(op.verdict, '')} {op.verdict}".strip())
    ops = msgspec.structs.replace(ops, columns=[marked, *ops.columns[1:]])
    head = [*step_lines(steps), *side_lines(comparison)]
    lines = [f"### opreplay: {formats.escaped(first_line(comparison))}", *formats.bullets(head)]
    lines += formats.markdown(replaced_table(comparison))
    lines += [*formats.markdown(ops), *(["", more_line(ops, "")] if ops.left_out else [])]
    lines += [*formats.markdown(classes_table(comparison)), *formats.bullets(notes(comparison))]
    return "\n".join(lines) + "\n"


def page(comparison: Comparison, steps: Steps, command: str) -> Page:
    """Return the page of a comparison."""
    ops = comparison.ops
    series = {
        "before": summed((op.name, op.before_us * op.count) for op in ops if op.before_us is not None),
        "after": summed((op.name, op.after_us * op.count) for op in ops if op.after_us is not None),
    }
    return Page(
        title="opreplay: two sides compared" if comparison.sides else "opreplay: two runs compared",
        headline=next(iter(step_lines(steps)), first_line(comparison)),
        command=command,
        answers=_answers(comparison, steps),
        facts=(
            ("compared", first_line(comparison)),
            *(
                (f"{which}: {name}", text)
                for which, step in steps.items()
                for name, text in (("bound", verdict(step)), *((row[0], row[1]) for row in step_rows(step)))
            ),
            *((line.partition(": ")[0], line.partition(": ")[2]) for line in side_lines(comparison)),
            ("ops on both sides", f"{time_text(comparison.before_us)} before, {time_text(comparison.after_us)} after"),
            ("an op counts as changed from", share_text(comparison.applied)),
        ),
        bars=(
            *_bars_of_steps(steps),
            bars_by_name(
                "Time by class of work",
                {
                    "before": {total.name: total.before_us for total in comparison.classes},
                    "after": {total.name: total.after_us for total in comparison.classes},
                },
                "class",
            ),
            bars_by_name("Time by op, all calls", series),
        ),
        waterfalls=(_waterfall(comparison, steps, series),),
        tables=(
            replaced_table(comparison),
            Opened(table=page_table(comparison), key=lambda op: op.id, name=lambda op: op.name, details=_details),
            classes_table(comparison),
        ),
        notes=tuple(notes(comparison)),
    )


def _answers(comparison: Comparison, steps: Steps) -> tuple[Answer, ...]:
    """Return the ratio of the steps, else of the ops on both sides with its interval."""
    if len(steps) == 2 and all(step.marked for step in steps.values()):
        was, now = (step.window.step_us for step in steps.values())
        detail = f"{time_text(was)} before, {time_text(now)} after"
        return (
            Answer(name="step, after ÷ before", ratio=precise(now / was), band="steps of median length", detail=detail),
        )
    if comparison.total is None:
        return ()
    sure = interval(comparison.total)
    band = f"{sure}, {100 * comparison.total.level:.0f} % interval" if sure else "no interval"
    detail = f"{time_text(comparison.before_us)} before, {time_text(comparison.after_us)} after"
    return (
        Answer(
            name="ops on both sides, after ÷ before", ratio=precise(comparison.total.ratio), band=band, detail=detail
        ),
    )


def _bars_of_steps(steps: Steps) -> tuple[Bars, ...]:
    parts = {which: step_parts(step) for which, step in steps.items() if step.marked}
    return (bars_by_name("Where the step goes", parts, "part"),) if parts else ()


def _waterfall(comparison: Comparison, steps: Steps, series: Mapping[str, Mapping[str, float]]) -> Waterfall:
    """Return each op's contribution to the difference of two traces' steps, else to that of the sums of all calls."""
    if len(steps) < 2 or not _of_steps(comparison):
        title = "From before to after"
        return waterfall(title, *((side, times) for side, times in series.items()), note="all calls added up")
    changes = summed((op.name, op.step_change_us or 0.0) for op in comparison.ops)
    was, now = (step.window.step_us for step in steps.values())
    return waterfall_of("From the step before to the step after", ("before", was), changes, ("after", now))


def _details(op: OpComparison) -> list[tuple[str, str]]:
    """Return the facts of a row that have no column."""
    rows = [
        ("id", op.id),
        ("inputs", op.inputs),
        ("kernel before", op.before_kernel),
        ("kernel after", op.after_kernel),
    ]
    return [(name, text) for name, text in (*rows, ("note", op.note)) if text]
