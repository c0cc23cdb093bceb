# pyright: strict
"""A comparison in every output format: the first line, the ops, classes of work, notes, and facts as plain values."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from opreplay.replay.ir.step import IDLE_CAUSES
from opreplay.replay.report import formats
from opreplay.replay.report.page.model import Answer, Bars, Flames, Opened, Page, Waterfall
from opreplay.replay.report.page.parts import bars_by_name, waterfall, waterfall_of
from opreplay.replay.report.step.verdict import step_facts, verdict
from opreplay.replay.report.table import (
    COUNT,
    MIN_OP_WIDTH,
    TEXT,
    TIME,
    Column,
    Table,
    Unit,
    cut,
    heaviest,
    more_line,
    notes_lines,
    of_fields,
    terminal,
)
from opreplay.replay.report.text import DASH, doubt_lines, middle, plural, ratio_text, safe, share_text, time_text
from opreplay.replay.report.view import View
from opreplay.replay.results.compare.by_name import OpGroup, by_name
from opreplay.replay.results.compare.judge import Comparison, OpComparison, Side, Total, Verdict, is_within
from opreplay.replay.results.compare.replaced import Replaced
from opreplay.replay.results.compare.sides import UNNAMED
from opreplay.replay.timeline.compared import StepChange, StepParts
from opreplay.replay.timeline.flames import compared_frames, frames_of
from opreplay.traces.sums import summed

SHOWN: tuple[Verdict, ...] = ("slower", "faster", "lost", "gained", "only before", "only after")
"""Verdicts that are listed; ops with no change and most unclear ops are only counted."""
ALONE = 1 / 3
"""If more than this share of the ops is in only one of two runs, possible causes are listed."""
LARGE_RATIO, MOST_UNCLEAR = 2.0, 5
"""Minimum ratio (or inverse ratio) for an unclear op to be listed, and maximum number of listed unclear ops."""
WAYS = 4
"""Maximum number of different notes on judged ops that are listed, each with its number of ops."""
LISTED_SHARE, MOST_ROWS = 0.95, 10
"""For two traces: share of all changes that the listed ops account for, and maximum number of listed ops."""
LEAST_PART = 0.01
"""Minimum share of the step for a part of it to get a row."""
NAME_WIDTH = 30
"""Maximum length of a trace's name in the first line, in characters."""
MORE_CALLS = 0.02
"""Minimum relative change in a typical op's number of calls for the headline to report it if steps are unknown."""
MOSTLY_ALIKE = 0.5
"""A note tells if the ops that both recordings have take less than this share of the time of one."""
WORD_FROM = 0.005
"""Minimum relative change for which the first line says "slower" or "faster"."""
ORDER: tuple[Verdict, ...] = (*SHOWN, "same", "unclear")
NO_STEPS = StepChange()
IDLE = "idle "
"""Prefix of the names of a step's idle parts."""


def view(
    comparison: Comparison,
    steps: StepChange = NO_STEPS,
    *,
    everything: bool = False,
    verdicts: Mapping[str, object] | None = None,
) -> View:
    """Return a comparison in every output format.

    `steps` holds the steps of those sides that are traces. `verdicts` holds additional values for JSON.
    """
    return View(
        lines=head_lines(comparison, steps),
        render=lambda width: render(comparison, steps, width=width, everything=everything),
        facts=lambda: {**facts(comparison, steps), **(verdicts or {})},
        table=lambda: file_table(comparison),
        markdown=lambda: markdown(comparison, steps, everything=everything),
        page=lambda command: page(comparison, steps, command),
        tables={
            "ops": lambda: file_table(comparison),
            "classes": lambda: of_fields(
                "Classes of work",
                comparison.classes,
                {"name": TEXT, "before_us": TIME, "after_us": TIME, "matched_ops": COUNT, "ratio": _RATIO},
            ),
            "replaced": lambda: _replaced_file_table(comparison),
        },
    )


def headline(comparison: Comparison, steps: StepChange) -> str:
    """Return the headline of a comparison of two traces: the ratio of their steps.

    If the steps are unknown, return the ratio of all recorded time. For other comparisons, return `first_line`.
    """
    sides = comparison.sides
    if sides is None or comparison.paired is None:
        return first_line(comparison)
    if steps.is_known:
        what, (was, now) = "step", steps.step_us
    elif comparison.whole is not None:
        what, (was, now) = f"{_clock(comparison)} time", (sides[0].total_us, sides[1].total_us)
    else:
        return first_line(comparison)
    ratio = now / was if was else None
    names = " → ".join(safe(middle(side.source, NAME_WIDTH)) for side in sides)
    spread = steps.is_known and not steps.is_clear and (ratio is None or not is_within(ratio, WORD_FROM))
    calls = 1.0 if steps.is_known else _calls_ratio(comparison)
    if not is_within(calls, MORE_CALLS):
        word = f" (with {precise(calls)} as many calls)"
    else:
        word = " (within the spread of the steps)" if spread else _word(ratio)
    return f"{what} {precise(ratio)}{word}: {time_text(was)} → {time_text(now)}, {names}"


def _word(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return " (same)" if is_within(ratio, WORD_FROM) else " (slower)" if ratio > 1.0 else " (faster)"


def _clock(comparison: Comparison) -> str:
    """Return the clock of the op times of two traces: "device" or "host", or "recorded" if the sides differ."""
    clocks = {side.clock for side in comparison.sides or ()}
    return str(clocks.pop()) if clocks in ({"device"}, {"host"}) else "recorded"


def head_lines(comparison: Comparison, steps: StepChange) -> list[str]:
    """Return the main result, how it was obtained, and what bounds the step on each side."""
    if comparison.paired is None or comparison.sides is None:
        bounds = [f"{which}: {verdict(step)}" for which, step in steps.reports.items() if step.marked]
        return [first_line(comparison), *bounds, *side_lines(comparison)]
    lines = [headline(comparison, steps), paired_line(comparison, steps)]
    lines += [_shared_text(comparison.shared)] if _is_shared_shown(comparison) else []
    if not any(side.is_total_known for side in comparison.sides):
        return [*lines, *side_lines(comparison)]
    for which, side in zip(("before", "after"), comparison.sides, strict=True):
        report = steps.reports.get(which)
        bound = f": {verdict(report)}" if report is not None and comparison.paired != "whole" else ""
        named = f", {safe(side.on)}" if side.on != UNNAMED else ""
        lines += [f"{which}{named}{bound}"] if named or bound else []
    return lines


def paired_line(comparison: Comparison, steps: StepChange) -> str:
    """Return which steps were compared, and how much they vary."""
    if not steps.is_known:
        host = any(side.clock == "host" for side in comparison.sides or ())
        why = (
            "one of the traces does not mark its steps" if comparison.paired == "whole" else "step lengths are unknown"
        )
        kind = "host time of all ops, including other load on the host" if host else "all recorded ops"
        return f"{why}: {kind}{_little_in_common(comparison)}"
    if steps.paired == "number":
        names = list(dict.fromkeys((steps.before[0].name, steps.before[-1].name)))
        if len(names) == 1 or not steps.pair_ratios:
            return f"{safe(names[0])} of both"
        low, high = steps.pair_ratios[0], steps.pair_ratios[-1]
        first, last = safe(names[0]), safe(names[1].rpartition("#")[2])
        return (
            f"mean of {len(steps.before)} steps paired by number, {first} to #{last}; "
            f"single pairs {precise(low)} to {precise(high)}"
        )
    texts = [_spread_text(side) for side in (steps.before, steps.after)]
    return f"no common step numbers, so medians are compared: {texts[0]} before, {texts[1]} after"


def _calls_ratio(comparison: Comparison) -> float:
    """Return the median of the ops' ratios of calls after to calls before; 1 if no op is on both sides."""
    calls = [op.after_calls / op.before_calls for op in comparison.ops if op.before_calls and op.after_calls]
    return statistics.median(calls) if calls else 1.0


def _little_in_common(comparison: Comparison) -> str:
    """Return a note if ops on both sides take less than half of the time of either recording; otherwise ""."""
    if comparison.paired != "whole" or comparison.sides is None:
        return ""
    shares = [side.matched_us / side.total_us if side.total_us else 0.0 for side in comparison.sides]
    if min(shares) >= MOSTLY_ALIKE:
        return ""
    return f"; common ops are {share_text(shares[0])} of the time before and {share_text(shares[1])} after"


def _spread_text(steps: Sequence[StepParts]) -> str:
    times = [step.step_us for step in steps]
    spread = f" ({time_text(min(times))} to {time_text(max(times))})" if len(times) > 1 else ""
    return f"{plural(len(times), 'step')}{spread}"


def first_line(comparison: Comparison) -> str:
    """Return a line such as "compared 48 ops: 3 slower, 1 faster, 44 same; total 1.020× (1.01 to 1.03)"."""
    compared = counts_line(comparison) + _total(comparison)
    return f"{compared}; {_shared_text(comparison.shared)}" if _is_shared_shown(comparison) else compared


def counts_line(comparison: Comparison) -> str:
    """Return a line such as "compared 48 ops: 3 slower, 1 faster, 44 same"."""
    judged = comparison.of("slower", "faster", "same", "unclear")
    counts = [f"{len(ops):,} {verdict}" for verdict in ORDER if (ops := comparison.of(verdict))]
    return f"compared {plural(len(judged), 'op')}: {', '.join(counts) or 'none in both runs'}"


def _is_shared_shown(comparison: Comparison) -> bool:
    """Check whether the change common to all ops is large enough to mention."""
    return comparison.shared is not None and not is_within(comparison.shared, LEAST_SHARED)


def _shared_text(shared: float | None) -> str:
    return f"all ops {precise(shared)}, probably because of clocks or power"


def _total(comparison: Comparison) -> str:
    """Return the ratio of the total recorded times. If not both sides are recordings, return that of the common ops."""
    if any(not side.is_total_known for side in comparison.sides or ()):
        return "; no total, because device time is unknown"
    if comparison.whole is None or comparison.sides is None:
        return _total_of_both(comparison)
    was, now = (time_text(side.total_us) for side in comparison.sides)
    none = ", no interval" if comparison.why_total_unknown else ""
    return f"; total {precise(comparison.whole)} ({was} to {now}{none})"


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


def side_lines(comparison: Comparison) -> list[str]:
    """Return a line per side: its kind of time, and how much of it is in ops on both sides. [] for two runs."""
    lines: list[str] = []
    for which, side in zip(("before", "after"), comparison.sides or (), strict=False):
        share = side.matched_us / side.total_us if side.total_us else 0.0
        matched = f"{side.matched_ops} of {plural(side.ops, 'op')} = {share_text(share)} of {time_text(side.total_us)}"
        known = f"device time is unknown: {' and '.join(doubt_lines(side.doubts))}"
        known = known if side.doubts.mistimed else f"on both sides {matched}"
        lines.append(f"{which}: {side.what} on {safe(side.on)} ({safe(side.source)}); {known}")
    return lines


def rows(comparison: Comparison, *, everything: bool = False) -> list[OpGroup]:
    """Return the rows to list.

    Rows of two traces are ordered by their contribution to the step's change, other rows by verdict and time gained or
    lost.
    """
    if comparison.paired is not None:
        return _rows_of_steps(comparison, everything=everything)
    shown = [op for verdict in (ORDER if everything else SHOWN) for op in comparison.of(verdict)]
    if not everything:
        shown += sorted(filter(_stands_out, comparison.of("unclear")), key=lambda op: -op.weight_us)[:MOST_UNCLEAR]
    return [OpGroup(op=op) for op in shown]


def _rows_of_steps(comparison: Comparison, *, everything: bool) -> list[OpGroup]:
    groups = by_name(comparison)
    if everything:
        return [row for group in groups for row in (group, *(OpGroup(op=shape) for shape in group.shapes))]
    changed = [group for group in groups if group.op.verdict != "same"]
    left_us = sum(group.op.weight_us for group in changed)
    least_us = (1.0 - LISTED_SHARE) * left_us
    shown: list[OpGroup] = []
    for group in changed[:MOST_ROWS]:
        if left_us <= least_us:
            break
        shown.append(group)
        left_us -= group.op.weight_us
    return shown


def _stands_out(op: OpComparison) -> bool:
    """Check whether an unclear change would be a large one if it were real."""
    return op.ratio is not None and not 1 / LARGE_RATIO < op.ratio < LARGE_RATIO


def detail_of(comparison: Comparison, op: OpComparison) -> str:
    """Return the details that distinguish an op from others of the same name, and the notes on its row.

    If the two sides have different kinds of times, the notes are left out. Every row would have the same few notes, so
    they are counted below the table instead.
    """
    if comparison.sides is not None and op.ratio is not None:
        return op.inputs or op.note
    return "; ".join(part for part in (op.inputs, against_times(comparison, op), op.note) if part)


def against_times(comparison: Comparison, op: OpComparison) -> str:
    """Return a note if a row's two times contradict its verdict; otherwise "".

    Verdicts are relative to a fixed workload.
    """
    if comparison.method != "gauges" or op.verdict not in ("slower", "faster") or not op.before_us or not op.after_us:
        return ""
    alone = op.after_us / op.before_us
    if op.ratio is None or (op.ratio > 1.0) == (alone > 1.0):
        return ""
    return f"relative to a fixed workload; the plain ratio is {precise(alone)}"


def precise(ratio: float | None) -> str:
    """Format a ratio with enough digits to show changes of 1 %: three decimals below 10, three digits below 0.1."""
    if ratio is None or not 0.001 <= ratio < 10:
        return ratio_text(ratio, 1.0)
    return f"{ratio:.3f}×" if ratio >= 0.1 else f"{ratio:.3g}×"


def interval(op: OpComparison | Total) -> str:
    """Return the interval as text, "1.08 to 1.13"; "" if there is no interval."""
    return "" if op.low is None or op.high is None else f"{_bound(op.low)} to {_bound(op.high)}"


def _bound(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def level(comparison: Comparison) -> str:
    """Return the confidence level of the ops' intervals, e.g. "80 %" if one side is a prediction."""
    return f"{100 * next((op.level for op in comparison.ops if op.low is not None), 0.95):.0f} %"


def _threshold_text(comparison: Comparison) -> str:
    text = f"threshold: ±{share_text(comparison.threshold)}"
    if comparison.applied > comparison.threshold:
        text += f", raised to ±{share_text(comparison.applied)}, the noise of these two runs"
    return text


def _machine_lines(machine: float, method: str) -> list[str]:
    """Return notes on the machine's speed in the two runs, judged by a reference workload timed next to each sample."""
    lines: list[str] = []
    if method == "gauges":
        lines.append(
            "ratio: compares times relative to a fixed workload that ran with each sample; for plain times, use "
            "--method medians"
        )
    if abs(machine - 1.0) > 0.02:
        lines.append(f"machine: a fixed workload took {precise(machine)} as long in the second run as in the first")
    return lines


def notes(comparison: Comparison) -> list[str]:
    """Return notes on what to know before trusting the verdicts."""
    lines = _method_lines(comparison)
    judged = comparison.of("slower", "faster", "same") if comparison.sides is None else []
    ways = Counter(op.note for op in judged if op.note)
    lines += [f"{plural(count, 'op')}: {safe(note)}" for note, count in ways.most_common(WAYS)]
    differences = sorted(comparison.differences, key=lambda difference: not difference.blocking)
    lines += [f"{'forced' if difference.blocking else 'differs'}: {difference}" for difference in differences]
    return [*lines, *_alone_lines(comparison), *_unclear_lines(comparison), *map(safe, comparison.notes)]


def _method_lines(comparison: Comparison) -> list[str]:
    """Return the change from which an op counts as slower or faster, and the smallest detectable change."""
    lines = [_threshold_text(comparison)]
    if comparison.shared is not None:
        lines.append(
            f"ratios are relative to the common change of all ops, {precise(comparison.shared)}; times are not"
        )
    if comparison.power is not None:
        lines.append(f"power: these runs can detect changes above {share_text(comparison.power)}")
    return lines if comparison.machine is None else [*lines, *_machine_lines(comparison.machine, comparison.method)]


def _alone_lines(comparison: Comparison) -> list[str]:
    """Return a note with possible causes if many ops of a run are on one side only."""
    runs = comparison.sides is None or any(side.what == "measured" for side in comparison.sides)
    if not runs or comparison.alone_share <= ALONE:
        return []
    return [
        f"{share_text(comparison.alone_share)} of the ops are on one side only: --quick, --top and time budgets may "
        "select different ops in each run. Select them with --include, or use one plan for both runs"
    ]


def _unclear_lines(comparison: Comparison) -> list[str]:
    """Return why ops could not be judged."""
    unclear = comparison.of("unclear")
    if not unclear:
        return []
    reasons = Counter(part for op in unclear for part in op.note.split("; ") if part)
    return [f"unclear: {plural(len(unclear), 'op')}: {'; '.join(part for part, _ in reasons.most_common(6))}"]


def facts(comparison: Comparison, steps: StepChange) -> dict[str, object]:
    """Return the whole comparison as plain values, for JSON."""
    body: dict[str, object] = msgspec.to_builtins(comparison)
    ops = body.pop("ops")
    reports = {
        which: step_facts(steps.reports[which]) if which in steps.reports else None for which in ("before", "after")
    }
    counts = {verdict: len(comparison.of(verdict)) for verdict in ORDER}
    return {
        "headline": headline(comparison, steps),
        "counts": counts,
        "whole": comparison.whole,
        **body,
        "steps": _step_facts(steps),
        "step": reports,
        "ops": ops,
    }


def _step_facts(steps: StepChange) -> dict[str, object] | None:
    """Return the lengths and parts of the compared steps for JSON; None if there are no known steps."""
    if not steps.is_known:
        return None
    was, now = steps.step_us
    parts = {
        which: msgspec.to_builtins(of_side) for which, of_side in (("before", steps.before), ("after", steps.after))
    }
    return {"paired": steps.paired, "before_us": was, "after_us": now, "ratio": now / was if was else None, **parts}


MOST_REPLACED = 8
LEAST_SHARED = 0.005
"""A change common to all ops is reported if it is at least this large, as a share."""
MAX_ROWS = 50
"""Maximum number of rows in Markdown, because GitHub limits a comment to 65,536 characters."""
STYLES = {"slower": "red", "lost": "red", "faster": "green", "gained": "green", "unclear": "yellow"}
MARKS = {"slower": "🔴", "lost": "🔴", "faster": "🟢", "gained": "🟢"}
_OfOp = Column[OpComparison]
_OfRow = Column[OpGroup]
_RATIO = Unit(precise)
LEAST_CHANGE_US = 1e-3
"""Minimum change in µs; smaller changes are rounding errors of trace clocks."""


def _change_text(us: float | None) -> str:
    """Return a change with its sign: "+1.20 ms"."""
    if us is None:
        return ""
    if abs(us) < LEAST_CHANGE_US:
        return time_text(0.0)
    return f"{'+' if us > 0 else '−'}{time_text(abs(us))}"


_CHANGE = Unit(_change_text)


def _style(row: OpGroup) -> str:
    return STYLES.get(row.op.verdict, "")


_VERDICT = _OfRow("verdict", lambda row: row.op.verdict, style=_style)
_NAME = _OfRow("op", lambda row: row.op.name, form="code")
_CALLS = _OfRow("count", lambda row: row.op.count, COUNT, style="dim", drop=8)


def _per_step(comparison: Comparison) -> str:
    """Return the kind of op times when comparing two traces: "device/step", "host/step", "device", ..."""
    return _clock(comparison) + ("" if comparison.paired == "whole" else "/step")


def _times(comparison: Comparison) -> list[_OfRow]:
    """Return the time columns of ops.

    For two traces, these are the times of all calls of a step and their change. Otherwise they are the times of one
    call.
    """
    if comparison.paired is None:
        return [
            _OfRow("before", lambda row: row.op.before_us, TIME, key="before_us", drop=2),
            _OfRow("after", lambda row: row.op.after_us, TIME, key="after_us"),
        ]
    title = f"Δ {_per_step(comparison)}"
    return [
        _OfRow(title, lambda row: row.op.step_change_us, _CHANGE, key="step_change_us", style=_style),
        _OfRow("before", lambda row: row.op.before_step_us or None, TIME, key="before_step_us", drop=2),
        _OfRow("after", lambda row: row.op.after_step_us or None, TIME, key="after_step_us", drop=1),
    ]


def ops_table(comparison: Comparison, *last: _OfRow, everything: bool = False) -> Table[OpGroup]:
    """Return a table of the ops that changed, or of all ops, with their intervals and the given last columns."""
    columns = [
        _VERDICT,
        _OfRow("ratio", lambda row: row.op.ratio, _RATIO, style=_style),
        *_interval_column(comparison),
        *_times(comparison),
        _CALLS if comparison.paired is None else _STEP_CALLS,
        *last,
    ]
    return Table("Ops", columns, rows(comparison, everything=everything), noun="op")


def _interval_column(comparison: Comparison) -> list[_OfRow]:
    """Return the column of intervals; no column if no op has an interval."""
    if not any(op.low is not None for op in comparison.ops):
        return []
    return [_OfRow(level(comparison), lambda row: interval(row.op) or DASH, right=True, style="dim", drop=4)]


def _calls_text(row: OpGroup) -> str:
    was, now = (f"{calls or 0.0:,.1f}".removesuffix(".0") for calls in (row.op.before_calls, row.op.after_calls))
    return was if was == now else f"{was} → {now}"


_STEP_CALLS = _OfRow("calls", _calls_text, key="calls", right=True, style="dim", drop=5)


def parts_table(steps: StepChange) -> Table[tuple[str, float, float]]:
    """Return the step, its host and device times and the device's activities, each before and after."""
    column = Column[tuple[str, float, float]]
    columns = [
        column("one step", lambda part: part[0]),
        column("before", lambda part: part[1], TIME, key="before_us"),
        column("after", lambda part: part[2], TIME, key="after_us"),
        column("change", lambda part: part[2] - part[1], _CHANGE, key="change_us"),
        column("ratio", lambda part: part[2] / part[1] if part[1] else None, _RATIO),
    ]
    return Table("One step", columns, _parts(steps) if steps.is_known else ())


def _parts(steps: StepChange) -> list[tuple[str, float, float]]:
    on_device = {any(step.device_sum_us for step in side) for side in (steps.before, steps.after)}
    lengths: dict[str, Callable[[StepParts], float]] = {
        "step": lambda step: step.step_us,
        "host, the marked range": lambda step: step.host_us,
    }
    inside: dict[str, Callable[[StepParts], float]] = {
        "device, tasks added up": lambda step: step.device_sum_us,
        "computing and copies" if True in on_device else "in ops": lambda step: step.busy_us - step.communication_us,
        "communication alone": lambda step: step.communication_us,
        **{
            f"idle: {text}": lambda step, cause=cause: step.idle_us.get(cause, 0.0)
            for cause, text in IDLE_CAUSES.items()
        },
    }
    # Ops of a host are no part of a step that compares with kernels of a device.
    values = lengths if len(on_device) > 1 else {**lengths, **inside}
    parts = [(name, *steps.sides(value)) for name, value in values.items()]
    least_us = LEAST_PART * max(steps.step_us)
    return [part for part in parts if max(part[1:]) >= least_us]


def file_table(comparison: Comparison) -> Table[OpComparison]:
    """Return one row per op, with all data frame columns; times are in microseconds per call."""
    texts = ("id", "name", "inputs", "verdict", "before_kernel", "after_kernel", "note")
    numbers = {"count": COUNT, "before_us": TIME, "after_us": TIME, "ratio": _RATIO, "low": _RATIO, "high": _RATIO}
    numbers |= {"step_change_us": TIME, "before_step_us": TIME, "after_step_us": TIME}
    units = {**dict.fromkeys(texts[:4], TEXT), **numbers, **dict.fromkeys(texts[4:], TEXT)}
    columns = [
        _OfOp(field, lambda op, field=field: getattr(op, field), unit, key=_RATIO_KEYS.get(field, field))
        for field, unit in units.items()
    ]
    return Table("Ops", columns, comparison.ops, noun="op")


_RATIO_KEYS = {"low": "ratio_low", "high": "ratio_high"}


def page_table(comparison: Comparison) -> Table[OpGroup]:
    """Return all ops with their times on both sides, for a sortable table of a page."""
    columns = [
        *(_times(comparison)[:1] if comparison.paired is not None else ()),
        _NAME,
        _OfRow("inputs", lambda row: row.op.inputs, form="code"),
        _CALLS if comparison.paired is None else _STEP_CALLS,
        _VERDICT,
        *_times(comparison)[-2:],
        _OfRow("ratio", lambda row: row.op.ratio, _RATIO),
        *_interval_column(comparison),
    ]
    if comparison.paired is not None:
        return heaviest("Ops", columns, by_name(comparison), lambda row: row.op.weight_us)
    return heaviest(
        "Ops",
        columns,
        by_name(comparison),
        lambda row: max(row.op.before_us or 0.0, row.op.after_us or 0.0) * row.op.count,
    )


def replaced_table(comparison: Comparison, limit: int | None = None) -> Table[Replaced]:
    """Return a table of calls of the first step that were replaced by other calls in the second step."""
    column = Column[Replaced]
    columns = [
        column("in place of others", lambda one: f"{_called(one.before)} → {_called(one.after)}", form="fold"),
        column("places", lambda one: one.places, COUNT, drop=2),
        column("before", lambda one: one.before_us, TIME, key="before_us", drop=1),
        column("after", lambda one: one.after_us, TIME, key="after_us", drop=1),
        column("change", lambda one: one.change_us, _CHANGE, key="step_change_us"),
    ]
    return cut(Table("Replaced", columns, comparison.replaced[:MOST_REPLACED], noun="replacement"), limit)


def _replaced_file_table(comparison: Comparison) -> Table[Replaced]:
    """Return a table of all replaced calls, with plain values."""
    column = Column[Replaced]
    columns = [
        column("before", lambda one: _called(one.before)),
        column("after", lambda one: _called(one.after)),
        column("places", lambda one: one.places, COUNT),
        *(
            column(field, lambda one, field=field: getattr(one, field), TIME)
            for field in ("before_us", "after_us", "change_us")
        ),
    ]
    return Table("Replaced", columns, comparison.replaced)


def _called(names: Sequence[str]) -> str:
    """Join op names as "bmm + _softmax + bmm"."""
    return " + ".join(safe(name.removeprefix("aten::")) for name in names)


def classes_table(comparison: Comparison) -> Table[Any]:
    """Return the totals by class of work; no rows if there is only one class."""
    columns = [
        Column[Any]("class of work", lambda total: total.name),
        Column[Any]("before", lambda total: total.before_us or None, TIME, key="before_us"),
        Column[Any]("after", lambda total: total.after_us or None, TIME, key="after_us"),
        Column[Any]("change", lambda total: total.after_us - total.before_us, _CHANGE, key="change_us"),
        Column[Any]("ops on both", lambda total: total.matched_ops, COUNT, key="matched_ops"),
    ]
    return Table("Classes of work", columns, comparison.classes if len(comparison.classes) > 1 else ())


def render(comparison: Comparison, steps: StepChange, *, width: int, everything: bool = False) -> RenderableType:
    """Render the ops that changed, or all ops, and notes in `width` characters. The first lines are not included."""
    if comparison.paired is None:
        op = _OfRow("op", lambda row: row.op.name, detail=lambda row: detail_of(comparison, row.op))
        ops = terminal(ops_table(comparison, op, everything=everything), width)
        return Group(*ops, *terminal(classes_table(comparison)), *notes_lines(notes(comparison)))
    inside = {id(shape) for group in by_name(comparison) for shape in group.shapes}
    # A shape is indented below its combined row.
    op = _OfRow(
        "op",
        lambda row: f"  {row.op.name}" if id(row.op) in inside else row.op.name,
        detail=lambda row: detail_of(comparison, row.op),
    )
    table = ops_table(comparison, op, everything=everything)
    replaced = replaced_table(comparison, None if everything else FEW_REPLACED)
    said = notes(comparison) if everything else _decisive_notes(comparison, table.rows)
    return Group(
        *terminal(parts_table(steps)),
        *terminal(replaced, width, rest="--all lists them"),
        *terminal(table, width, one_line=True, room=MIN_OP_WIDTH),
        *(terminal(classes_table(comparison)) if everything else ()),
        *notes_lines(said),
    )


FEW_REPLACED = 3


def _decisive_notes(comparison: Comparison, listed: Sequence[OpGroup]) -> list[str]:
    """Return the notes without which readers would misread the rows, and how many other notes there are."""
    every = notes(comparison)
    unclear = ["unclear: "] if any(row.op.verdict == "unclear" for row in listed) else []
    rest = len(by_name(comparison)) - len(listed)
    raised = ["threshold: "] if comparison.applied > comparison.threshold else []
    whole = ["times of an op: its median"] if listed else []
    begins = ("ratios are relative", "no op has a time", "ops are matched", *unclear, *raised, *whole)
    lines = [line for line in every if line.startswith(begins)]
    more = [f"{plural(rest, 'more row')}"] if rest else []
    more += [plural(len(every) - len(lines), "more note")]
    return [counts_line(comparison), *lines, f"{' and '.join(more)} with --all"]


def markdown(comparison: Comparison, steps: StepChange, *, everything: bool = False) -> str:
    """Return a comparison as Markdown short enough for a pull request: first lines, changed ops (or all ops), notes."""
    detail = _OfRow("inputs", lambda row: detail_of(comparison, row.op), form="code")
    ops = cut(ops_table(comparison, _NAME, detail, everything=everything), MAX_ROWS)
    marked = _VERDICT.with_text(lambda row: f"{MARKS.get(row.op.verdict, '')} {row.op.verdict}".strip())
    ops = msgspec.structs.replace(ops, columns=[marked, *ops.columns[1:]])
    first, *head = head_lines(comparison, steps)
    if comparison.paired is not None:
        head.append(counts_line(comparison))
    lines = [f"### opreplay: {formats.escaped(first)}", *formats.bullets(head)]
    lines += [*formats.markdown(parts_table(steps)), *formats.markdown(replaced_table(comparison))]
    lines += [*formats.markdown(ops), *(["", more_line(ops, "")] if ops.left_out else [])]
    lines += [*formats.markdown(classes_table(comparison)), *formats.bullets(notes(comparison))]
    return "\n".join(lines) + "\n"


def page(comparison: Comparison, steps: StepChange, command: str) -> Page:
    """Return the page of a comparison."""
    ops = comparison.ops
    series = {
        "before": summed((op.name, op.before_us * op.count) for op in ops if op.before_us is not None),
        "after": summed((op.name, op.after_us * op.count) for op in ops if op.after_us is not None),
    }
    first, *head = head_lines(comparison, steps)
    return Page(
        title="opreplay: two sides compared" if comparison.sides else "opreplay: two runs compared",
        headline=first,
        command=command,
        answers=_answers(comparison, steps),
        facts=(
            *(_fact(line) for line in head),
            ("ops", counts_line(comparison)),
            ("minimum change of an op", share_text(comparison.applied)),
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
            *(() if steps.is_known else (bars_by_name("Time by op, all calls", series),)),
        ),
        waterfalls=(_waterfall(comparison, steps, series),),
        flames=_flames(steps),
        tables=(
            parts_table(steps),
            replaced_table(comparison),
            Opened(
                table=page_table(comparison),
                key=lambda row: row.op.id or row.op.name,
                name=lambda row: row.op.name,
                details=_details,
            ),
            classes_table(comparison),
        ),
        notes=tuple(notes(comparison)),
    )


def _fact(line: str) -> tuple[str, str]:
    name, colon, text = line.partition(": ")
    return (name, text) if colon and len(name) <= NAME_WIDTH else ("compared", line)


def _answers(comparison: Comparison, steps: StepChange) -> tuple[Answer, ...]:
    """Return the ratio of the steps, of all recorded time, or of the ops on both sides. Only the last has an
    interval.
    """
    if comparison.paired is not None:
        if steps.is_known:
            name, (was, now) = "step, after ÷ before", steps.step_us
            band = {"number": "mean of steps paired by number", "median": "medians"}.get(steps.paired or "", "")
        elif comparison.whole is not None and comparison.sides is not None:
            name, (was, now) = f"{_clock(comparison)} time, after ÷ before", _totals_us(comparison.sides)
            band = "everything recorded"
        else:
            return ()
        ratio = now / was if was else None
        detail = f"{time_text(was)} before, {time_text(now)} after"
        return (Answer(name=name, ratio=precise(ratio), band=band, detail=detail),)
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


def _totals_us(sides: tuple[Side, Side]) -> tuple[float, float]:
    return sides[0].total_us, sides[1].total_us


def _bars_of_steps(steps: StepChange) -> tuple[Bars, ...]:
    """Return bars that show what the device did in the steps before and after; () if the steps are unknown."""
    if not steps.is_known:
        return ()
    lengths = ("step", "host, the marked range", "device, tasks added up")
    parts = [part for part in _parts(steps) if part[0] not in lengths]
    series = {"before": {name: was for name, was, _ in parts}, "after": {name: now for name, _, now in parts}}
    return (bars_by_name("Where the step goes", series, "part"),)


def _flames(steps: StepChange) -> Flames | None:
    """Return the call stacks of both sides in one figure; None unless both sides recorded frames or modules."""
    if len(steps.studies) < 2:
        return None
    before, after = (frames_of(study.names.trace, study.graph) for study in steps.studies.values())
    frames = compared_frames(before, after) if before and after else ()
    names = [report.name for report in steps.reports.values()]
    note = (
        f"host time of {names[0]} before and {names[1]} after by call stack; frames are as wide as the longer of the "
        "two times; click a frame to zoom in"
    )
    return Flames(title="Call stacks, before and after", frames=frames, note=note) if frames else None


def _waterfall(comparison: Comparison, steps: StepChange, series: Mapping[str, Mapping[str, float]]) -> Waterfall:
    """Return how much each op and idle time contribute to the difference between the steps of two traces.

    If the steps are unknown, return how much each op contributes to the difference between the sums of all calls.
    """
    if not steps.is_known or comparison.paired is None:
        title = "From before to after"
        return waterfall(title, *((side, times) for side, times in series.items()), note="all calls added up")
    changes = summed((op.name, op.step_change_us or 0.0) for op in comparison.ops)
    changes |= {name: after - before for name, before, after in _parts(steps) if name.startswith(IDLE)}
    was, now = steps.step_us
    return waterfall_of("From the step before to the step after", ("before", was), changes, ("after", now))


def _details(row: OpGroup) -> list[tuple[str, str]]:
    """Return the facts of a row that have no column."""
    op = row.op
    shapes = [
        ("shape", f"{shape.inputs}: {time_text(shape.before_step_us)} → {time_text(shape.after_step_us)}")
        for shape in row.shapes[:MOST_SHAPES]
    ]
    rest = len(row.shapes) - len(shapes)
    facts = [
        ("id", op.id),
        ("inputs", op.inputs),
        *shapes,
        ("others", plural(rest, "more shape") if rest else ""),
        ("kernel before", op.before_kernel),
        ("kernel after", op.after_kernel),
    ]
    return [(name, text) for name, text in (*facts, ("note", op.note)) if text]


MOST_SHAPES = 20
