# pyright: strict
"""The page of calls that were written down: a curve over the size that was varied, and a row a call."""

from __future__ import annotations

from collections.abc import Iterator

from opreplay.replay.report.page.model import Cell, Column, Curve, Line, Page, Table
from opreplay.replay.report.page.parts import MOST_ROWS, count_cell, numbers, time_cell
from opreplay.replay.report.sweep import foot_lines, head_line, notes_of
from opreplay.replay.results.cases import Case, Cases

MOST_LINES = 10


def page(found: Cases, command: str) -> Page:
    """Everything that a page shows of them."""
    names = list(dict.fromkeys(name for one in found.cases for name in one.sizes))
    texts = list(dict.fromkeys(one.written for one in found.cases))
    shown = found.cases[:MOST_ROWS]
    return Page(
        title=texts[0] if len(texts) == 1 else f"{len(texts)} calls",
        headline=head_line(found),
        command=command,
        facts=tuple((soc, version) for soc, version in found.socs.items()),
        curves=tuple(_curves(found)),
        tables=(
            Table(
                title="One call",
                columns=(
                    *numbers(*names),
                    *(numbers("measured") if found.device is not None else ()),
                    *(one for soc in found.socs for one in (*numbers(soc), Column(title="bound"))),
                    *(Column(title=title, pasted=title == "call") for title in ("op", "inputs", "call", "notes")),
                ),
                rows=tuple(_row(one, names, found) for one in shown),
                left_out=len(found.cases) - len(shown),
            ),
        ),
        notes=tuple(foot_lines(found)),
    )


def _row(case: Case, names: list[str], found: Cases) -> tuple[Cell, ...]:
    result = case.result
    cells = [count_cell(case.sizes[name]) if name in case.sizes else Cell(text="") for name in names]
    cells += [time_cell(result.measured_us)] if found.device is not None else []
    for soc in found.socs:
        one = result.simulated.get(soc)
        cells += [time_cell(None if one is None else one.time_us), Cell(text="" if one is None else one.bound)]
    texts = (result.name, result.inputs, case.call, "; ".join(notes_of(case)))
    return (*cells, *(Cell(text=text) for text in texts))


def _curves(found: Cases) -> Iterator[Curve]:
    """For each call with a size that takes several values: time over the first such size, a line for the others."""
    for text in dict.fromkeys(one.written for one in found.cases):
        cases = [one for one in found.cases if one.written == text]
        varied = [name for name in cases[0].sizes if len({one.sizes[name] for one in cases}) > 1]
        if not varied:
            continue
        across = varied[0]
        lines: dict[str, list[tuple[float, float]]] = {}
        for one in cases:
            fixed = ", ".join(f"{name}={one.sizes[name]}" for name in varied[1:])
            times = {"measured": one.result.measured_us, **one.result.simulated_us}
            for what, us in times.items():
                if us is not None and us > 0:
                    lines.setdefault(f"{what}, {fixed}" if fixed else what, []).append((float(one.sizes[across]), us))
        drawn = list(lines.items())[:MOST_LINES]
        yield Curve(
            title=f"Time over {across}: {text}",
            across=across,
            lines=tuple(Line(name=name, points=tuple(sorted(points))) for name, points in drawn),
            left_out=len(lines) - len(drawn),
        )
