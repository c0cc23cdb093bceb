# pyright: strict
"""What to change first in a step: as the first line of a report, a table, and a section of a page."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ir.advice import Advice, AdviceList
from opreplay.replay.report.page.model import Answer, Opened
from opreplay.replay.report.table import SHARE, TIME, Column, Table, Unit, notes_lines, terminal
from opreplay.replay.report.text import doubt_lines, plural, quotient, safe, share_text, time_text
from opreplay.replay.report.view import View

SHOWN = 8
ROOM = 40
"""Minimum width of the column that names the changes, in characters.

If it would be narrower, the column of gains is dropped. Gains can still be read from their shares of the step.
"""
_LINES = Unit(str, "lines")


def head_line(advice: AdviceList, name: str = "") -> str:
    """Return a sentence with the trace's name and the first advice, or why there is no advice."""
    length = f"the {time_text(advice.step_us)} {'step' if advice.marked else 'recording, which marks no steps'}"
    if doubts := doubt_lines(advice.doubts):
        text = f"no advice on {length}: {' and '.join(doubts)}"
    elif advice.on_host and not advice.items:
        text = (
            f"moving any Python function or range without ops out of the step would save less than 1 % of {length}; "
            f"other changes are not tried if all work ran on the host"
        )
    elif not advice.tried:
        text = f"none of the usual changes applies to {length}"
    elif not advice.items:
        text = f"no change would save 1 % or more of {length}: {plural(advice.tried, 'change')} tried"
    else:
        first = advice.items[0]
        text = f"{first.what} would save {share_text(first.share)} ({_range(first)}) of {length}: {first.why}"
    return safe(f"{name}: {text}" if name else text)


def facts(advice: AdviceList) -> dict[str, Any]:
    """Return the `advice` object of the JSON output."""
    return {"line": head_line(advice), **msgspec.to_builtins(advice)}


def view(advice: AdviceList) -> View:
    """Return the suggested changes to a step in every output format."""
    return View(
        lines=[head_line(advice)],
        render=partial(render, advice),
        facts=partial(facts, advice),
        table=partial(table, advice),
    )


def render(advice: AdviceList, width: int) -> RenderableType:
    """Render the table of changes, the commands that run single ops, and the conditions under which the gains hold."""
    if not advice.items:
        return Text()
    shown = advice.items[:SHOWN]
    parts = terminal(table(advice), width, limit=SHOWN, rest="for all, use --format json", room=ROOM)
    commands = [Text(safe(item.command), overflow="fold") for item in shown if item.command]
    parts += [Text(), Text("to run an op alone:", style="dim"), *commands] if commands else []
    bases = {item.basis: [other.what for other in shown if other.basis == item.basis] for item in shown}
    notes = [f"{what[0] if len(what) == 1 else 'ops'}: if {basis}" for basis, what in bases.items()]
    notes.append(
        f"gains are for each change alone, overlap and do not add up; {plural(advice.tried, 'change')} tried, those "
        "that save less than 1 % of the step are left out"
    )
    return Group(*parts, *notes_lines([safe(note) for note in notes]))


def table(advice: AdviceList) -> Table[Advice]:
    """Return one row per change, largest gain first."""
    column = Column[Advice]
    columns = [
        column("gain", lambda item: item.gain_us, TIME, drop=1, named=False),
        column("of the step", _share, right=True),
        column("certain", lambda item: item.certainty),
        column("what to do first", _text, _LINES, form="fold"),
    ]
    return Table("What to do first", columns, advice.items, noun="change")


def place(item: Advice) -> str:
    """Return where in the code a change applies: module and function, if the trace names them."""
    return ", ".join(filter(None, (item.module, item.function)))


def section(advice: AdviceList) -> Opened:
    """Return a page section of changes whose rows expand to their conditions and to the command that runs the op."""
    column = Column[Advice]
    columns = [
        column("change", lambda item: item.what, form="name"),
        column("gain", lambda item: item.gain_us, TIME),
        column("of the step", lambda item: item.share, SHARE),
        column("at least", lambda item: item.low_us, TIME),
        column("at most", lambda item: item.high_us, TIME),
        column("certain", lambda item: item.certainty),
        column("why", lambda item: item.why),
        column("where", place),
    ]

    def details(item: Advice) -> list[tuple[str, str]]:
        typed = f"opreplay timeline TRACE --what-if '{item.change}'" if item.change else ""
        rows = (("if", item.basis), ("the op alone", item.command), ("the change alone", typed))
        return [(name, text) for name, text in rows if text]

    return Opened(
        table=Table("What to do first", columns, advice.items, noun="change"), key=lambda _: "", details=details
    )


def answers(advice: AdviceList) -> tuple[Answer, ...]:
    """Return the first change as an answer in large type; nothing if there are no changes."""
    return tuple(
        Answer(
            name=f"of the step saved by {item.what}", ratio=share_text(item.share), band=_range(item), detail=item.why
        )
        for item in advice.items[:1]
    )


def _share(item: Advice) -> str:
    return f"{share_text(item.share)} ({_range(item)})"


def _range(item: Advice) -> str:
    """Return the range of a gain as shares of the step: "28.0 to 35.1 %"."""
    step_us = item.gain_us / item.share
    low, high = (share_text(quotient(us, step_us)) for us in (item.low_us, item.high_us))
    return f"{low.removesuffix(' %')} to {high}"


def _text(item: Advice) -> list[str]:
    """Return a change, its reason and its place in the code, one line each."""
    where = place(item)
    return [item.what, item.why, *([f"in {where}"] if where and where not in item.what else [])]
