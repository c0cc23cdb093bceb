# pyright: strict
"""A comparison as Markdown, short enough for a comment on a pull request."""

from __future__ import annotations

from opreplay.replay.report.run.markdown import code, escaped
from opreplay.replay.report.text import DASH, plural, time_text
from opreplay.replay.report.views.comparison import (
    detail_of,
    first_line,
    interval,
    level,
    notes,
    precise,
    rows,
    side_lines,
)
from opreplay.replay.results.compare.judge import Comparison

MAX_ROWS = 50
"""GitHub takes 65,536 characters for a comment."""
MARKS = {"slower": "🔴", "lost": "🔴", "faster": "🟢", "gained": "🟢"}


def render(found: Comparison, *, everything: bool = False) -> str:
    """The first line as a heading, the ops that changed, or all, and notes."""
    shown = rows(found, everything=everything)
    lines = [f"### opreplay: {escaped(first_line(found))}"]
    lines += ["", *(f"- {escaped(line)}" for line in side_lines(found))] if found.sides else []
    if shown:
        lines += ["", f"| verdict | ratio | {level(found)} | before | after | count | op | inputs |"]
        lines += ["|---|---:|---:|---:|---:|---:|---|---|"]
    for op in shown[:MAX_ROWS]:
        cells = [
            f"{MARKS.get(op.verdict, '')} {op.verdict}".strip(),
            precise(op.ratio),
            interval(op) or DASH,
            time_text(op.before_us),
            time_text(op.after_us),
            f"{op.count:,}",
            code(op.name),
            code(detail_of(found, op)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if len(shown) > MAX_ROWS:
        lines += ["", f"… and {plural(len(shown) - MAX_ROWS, 'more op')}"]
    if len(found.classes) > 1:
        lines += ["", "| class of work | before | after | ops on both | ratio of these |", "|---|---:|---:|---:|---:|"]
    for one in found.classes if len(found.classes) > 1 else ():
        times = f"{time_text(one.before_us or None)} | {time_text(one.after_us or None)}"
        lines.append(f"| {one.name} | {times} | {one.matched_ops:,} | {precise(one.ratio)} |")
    lines += ["", *(f"- {escaped(note)}" for note in notes(found))]
    return "\n".join(lines) + "\n"
