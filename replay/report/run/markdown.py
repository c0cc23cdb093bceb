# pyright: strict
"""A run as a Markdown page: coverage, a table of all ops, totals and notes, for issues and pull requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opreplay.replay.ir.notation import telling_arguments
from opreplay.replay.report import collectives
from opreplay.replay.report.doubts import mark
from opreplay.replay.report.run.facts import (
    coverage_line,
    detail_text,
    has_device_time,
    not_replayed,
    notes,
    recorded_us,
    socs_of,
    totals,
)
from opreplay.replay.report.run.work import counted, work_cell, work_notes
from opreplay.replay.report.text import DASH, safe, share_text, time_text
from opreplay.replay.results.records import Header, OpResult, Summary

_SPECIAL = re.compile(r"([\\`*_\[\]|~])")


def escaped(text: str | None) -> str:
    """Text that Markdown shows as it is: control characters, HTML and Markdown's own characters escaped."""
    plain = safe(text or "").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain)


def code(text: str | None) -> str:
    """Text from a trace as a code span, where nothing is markup; its fence is longer than any backticks within."""
    # A backslash right before a bar cannot be kept apart from an escaped bar inside a table.
    plain = safe(text or "").replace("\\|", "\\¦").replace("|", "\\|").strip()
    if not plain:
        return ""
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    pad = " " if longest else ""
    return f"{'`' * (longest + 1)}{pad}{plain}{pad}{'`' * (longest + 1)}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _reasons(results: Sequence[OpResult]) -> list[str]:
    """Why ops are not replayed, one row a reason; nothing where all are."""
    rows = [
        _row([escaped(t.kind), f"{t.ops:,}", f"{t.calls:,}", share_text(t.share), escaped(detail_text(t))])
        for t in not_replayed(results)
    ]
    head = [_row(["not replayed", "ops", "calls", "share", "why"]), _row(["---", "---:", "---:", "---:", "---"])]
    return ["", *head, *rows] if rows else []


def _work(results: Sequence[OpResult]) -> list[str]:
    """The work of each op for which it was counted; nothing where it was for none."""
    rows = [_row([code(r.name), share_text(r.recorded_share), escaped(work_cell(r))]) for r in counted(results)]
    return ["", _row(["op", "share", "work"]), _row(["---", "---:", "---"]), *rows] if rows else []


def _collectives(results: Sequence[OpResult], socs: Sequence[str]) -> list[str]:
    head = [escaped(name) for name in collectives.headers(socs)]
    rows = [
        _row([escaped(cell) for cell in collectives.cells(facts, socs)])
        for _, facts in collectives.of_collectives(results)
    ]
    return ["", _row(head), _row(["---", *["---:"] * (len(head) - 1)]), *rows] if rows else []


def render(header: Header, results: Sequence[OpResult], summary: Summary) -> str:
    """The whole report; times are microseconds or milliseconds a call, with the unit in the cell."""
    socs, device = socs_of(results), has_device_time(header, results)
    columns = ["op", "inputs", "count", "share", "recorded", "measured", *map(escaped, socs), "bound", "note"]
    right = {"count", "share", "recorded", "measured", *map(escaped, socs)}
    lines = [escaped(coverage_line(header, results, summary)), ""]
    lines += [_row(columns), _row(["---:" if c in right else "---" for c in columns])]
    numbers = telling_arguments([(r.id, r.name, r.inputs, r.call) for r in results])
    for r in results:
        note = str(r.why_not()) if r.status != "replayed" else (f"via {r.via}" if r.via else "")
        lines.append(
            _row(
                [
                    code(r.name),
                    code(" · ".join(filter(None, (r.inputs, numbers[r.id])))),
                    f"{r.count:,}",
                    share_text(r.recorded_share),
                    time_text(recorded_us(r, device=device)),
                    time_text(r.measured_us) + escaped(mark([r])),
                    *(time_text(r.simulated_us.get(soc)) for soc in socs),
                    escaped(r.bound) or DASH,
                    escaped(note),
                ]
            )
        )
    lines += ["", _row(["all calls", "recorded", "measured", *map(escaped, socs)])]
    lines.append(_row(["---", *["---:"] * (2 + len(socs))]))
    for total in totals(results, device=device, header=header):
        lines.append(
            _row(
                [
                    escaped(total.label),
                    time_text(total.recorded_us),
                    time_text(total.measured_us) + (escaped(mark(results)) if total.measured_us is not None else ""),
                    *(time_text(total.simulated_us.get(soc)) for soc in socs),
                ]
            )
        )
    lines += _reasons(results) + _work(results) + _collectives(results, socs)
    found = [*work_notes(results), *notes(header, results, summary)]
    lines += ["", *(f"- {escaped(note)}" for note in found)] if found else []
    return "\n".join(lines) + "\n"
