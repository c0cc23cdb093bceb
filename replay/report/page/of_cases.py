# pyright: strict
"""The page of calls that were written down: a curve over the size that was varied, and a row a call."""

from __future__ import annotations

from collections.abc import Iterator

from opreplay.replay.report.page.model import Curve, Line, Page
from opreplay.replay.report.sweep import foot_lines, head_line, page_columns
from opreplay.replay.report.table import PAGE_ROWS, Table, cut
from opreplay.replay.results.cases import Cases

MOST_LINES = 10


def page(found: Cases, command: str) -> Page:
    """Everything that a page shows of them."""
    texts = list(dict.fromkeys(one.written for one in found.cases))
    return Page(
        title=texts[0] if len(texts) == 1 else f"{len(texts)} calls",
        headline=head_line(found),
        command=command,
        facts=tuple((soc, version) for soc, version in found.socs.items()),
        curves=tuple(_curves(found)),
        tables=(cut(Table("One call", page_columns(found), found.cases), PAGE_ROWS),),
        notes=tuple(foot_lines(found)),
    )


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
