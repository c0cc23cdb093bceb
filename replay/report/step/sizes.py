# pyright: strict
"""Steps captured from configs or from the user's functions, in several sizes on devices, in every output format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rich.console import Group, RenderableType

from opreplay.replay.ir.sizes import readable
from opreplay.replay.report import formats
from opreplay.replay.report.page.model import Answer, Curve, Line, Page
from opreplay.replay.report.table import FLAG, NUMBER, TEXT, Column, Table, notes_lines, terminal
from opreplay.replay.report.text import lacking_text, safe
from opreplay.replay.report.view import View
from opreplay.replay.timeline.served import ServedStep
from opreplay.replay.timeline.sized import SizedStep

RESERVE = 0.1
"""Share of device memory that servers leave free by default (vLLM: gpu_memory_utilization 0.9).

It is for workspaces and fragmentation, which are not counted.
"""
MOST_LINES = 12
AnyStep = ServedStep | SizedStep
Row = TypeVar("Row", bound=AnyStep)


def spare_share(row: AnyStep) -> float | None:
    """Return the share of device memory that a step leaves free; None if the memory size is unknown."""
    return None if not row.hbm_bytes else 1.0 - row.memory_bytes / row.hbm_bytes


def fit_text(row: AnyStep) -> str:
    """Return whether a step fits in memory: "yes", "tight" if less than `RESERVE` is left, "no", or "?" if unknown."""
    spare = spare_share(row)
    if row.fits is None or spare is None:
        return {True: "yes", False: "no", None: "?"}[row.fits]
    return "no" if not row.fits else "tight" if spare < RESERVE else "yes"


def memory_text(row: AnyStep) -> str:
    """Return used and available memory in GB, "50.4 of 68.7"; only used memory if available memory is unknown."""
    memory = _gigabytes(row.memory_bytes) if row.memory_bytes >= 1e8 else "<0.1"
    return memory if not row.hbm_bytes else f"{memory} of {_gigabytes(row.hbm_bytes)}"


def _gigabytes(size: float) -> str:
    gigabytes = size / 1e9
    return f"{gigabytes:,.0f}" if gigabytes >= 1000 else f"{gigabytes:.3g}"


def fits_text(rows: Sequence[AnyStep]) -> str:
    """Return "all fit in memory", or how many sizes do not fit."""
    words = [fit_text(row) for row in rows]
    no, tight, unknown = (words.count(word) for word in ("no", "tight", "?"))
    if unknown:
        return "device memory is unknown"
    if no:
        return f"{no} of {len(rows)} do not fit in memory"
    return f"all fit in memory, {tight} with less than {100 * RESERVE:.0f} % spare" if tight else "all fit in memory"


def missing_text(rows: Sequence[AnyStep]) -> str:
    """Return a note on how many calls are missing from the times; "" if every call has a prediction."""
    missing = max((row.unpredicted_calls for row in rows), default=0)
    up_to = "up to " if any(row.unpredicted_calls != missing for row in rows) else ""
    return f"; {lacking_text(missing, up_to)}" if missing else ""


def device_column(kind: type[Row], rows: Sequence[Row]) -> Column[Row]:
    """Return the device column. With a single device it is dropped first, because the first line names the device."""
    is_single = len({row.soc for row in rows}) == 1
    return Column[kind]("device", lambda row: row.soc, style="bold", drop=6 if is_single else 0, named=not is_single)


def memory_columns(kind: type[Row]) -> list[Column[Row]]:
    """Return columns for the memory that a step needs, whether it fits, and what limits the step."""
    column = Column[kind]
    return [
        column("memory, GB", memory_text, right=True, drop=2),
        column("fit", fit_text, drop=1),
        column("limit", lambda row: row.limit, drop=3),
    ]


def file_columns(kind: type[Row], fields: Sequence[str]) -> list[Column[Row]]:
    """Return the columns of a table for files, with plain values."""

    def unit(field: str) -> Any:
        if field in ("soc", "limit"):
            return TEXT
        return FLAG if field in ("fits", "fused") else NUMBER

    named = [
        Column[kind](field, lambda row, field=field: getattr(row, field), unit(field), key=field) for field in fields
    ]
    return [*named, Column[kind]("spare_share", spare_share, NUMBER)]


def notes_of(notes: Sequence[str], rows: Sequence[AnyStep]) -> list[str]:
    """Return the assumptions, and how it was decided whether a step fits in memory."""
    said = [safe(note) for note in notes]
    devices = {row.soc: row.hbm_bytes for row in rows if row.hbm_bytes}
    known = ", ".join(
        f"{safe(soc)} has {size / 2**30:.3g} GiB = {readable(int(size))}" for soc, size in devices.items()
    )
    if known:
        said.insert(
            0,
            "fit: peak of the tensors, without workspaces and fragmentation; tight: less than the "
            f"{100 * RESERVE:.0f} % that vLLM keeps free by default; {known}",
        )
    return said


def view_of(
    lines: Sequence[str],
    table: Table[Row],
    file_table: Table[Row],
    notes: Sequence[str],
    facts: Any,
    answers: tuple[Answer, ...],
    curves: tuple[Curve, ...],
) -> View:
    """Return the results for all sizes in every output format."""
    title, *others = lines

    def page(command: str) -> Page:
        return Page(
            title="opreplay: a step in several sizes",
            headline=title,
            command=command,
            answers=answers,
            facts=tuple(("setting", line) for line in others),
            curves=curves,
            tables=(table,),
            notes=tuple(notes),
        )

    def markdown() -> str:
        head = [f"### opreplay: {formats.escaped(title)}", *formats.bullets(others)]
        return "\n".join([*head, *formats.markdown(table), *formats.bullets(notes)]) + "\n"

    return View(
        lines=lines,
        render=lambda width: render(table, notes, width),
        facts=lambda: facts,
        table=lambda: file_table,
        markdown=markdown,
        page=page,
    )


def render(table: Table[Row], notes: Sequence[str], width: int) -> RenderableType:
    """Render one row per size and device, and the assumptions."""
    return Group(*terminal(table, width), *notes_lines(notes))


def curves_over(
    rows: Sequence[Row],
    sizes: Callable[[Row], dict[str, int]],
    what: str,
    unit: str,
    value: Callable[[Row], float],
    limit: Callable[[Row], float | None] = lambda row: None,
) -> tuple[Curve, ...]:
    """Return one curve for each size that takes several values.

    A curve has one line for each device and combination of the other sizes. For each device with a limit, it also has
    lines of a second kind, which show the limit.
    """
    names = list(sizes(rows[0])) if rows else []
    varied = [name for name in names if len({sizes(row)[name] for row in rows}) > 1]
    curves: list[Curve] = []
    for across in varied:
        lines: dict[str, dict[float, float]] = {}
        limits: dict[str, dict[float, float]] = {}
        for row in rows:
            chosen = sizes(row)
            others = "".join(f", {name} {chosen[name]:,}" for name in varied if name != across)
            lines.setdefault(f"{row.soc}{others}", {})[float(chosen[across])] = value(row)
            if (most := limit(row)) is not None:
                limits.setdefault(f"memory of {row.soc}", {})[float(chosen[across])] = most
        drawn = [
            Line(name=name, points=tuple(sorted(points.items()))) for name, points in list(lines.items())[:MOST_LINES]
        ]
        bounds = [
            Line(name=name, points=tuple(sorted(points.items())), is_limit=True) for name, points in limits.items()
        ]
        curves.append(
            Curve(
                title=f"{what} over {across}",
                across=across,
                unit=unit,
                lines=(*drawn, *bounds),
                left_out=max(0, len(lines) - MOST_LINES),
            )
        )
    return tuple(curves)
