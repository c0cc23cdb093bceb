# pyright: strict
"""Steps of a model in several batch sizes and contexts on devices: ms per token, tokens per second, memory, limit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.report.page.model import Answer
from opreplay.replay.report.step.sizes import (
    curves_over,
    device_column,
    file_columns,
    fits_text,
    memory_columns,
    missing_text,
    notes_of,
    view_of,
)
from opreplay.replay.report.table import COUNT, Column, Table, number
from opreplay.replay.report.text import listed, plural, safe
from opreplay.replay.report.view import View
from opreplay.replay.timeline.served import SERVER_BAND, ServedStep, ServedSteps


def view(served: ServedSteps) -> View:
    """Return the results for all sizes in every output format."""
    return view_of(
        [headline(served), setting_line(served)],
        table(served.rows),
        Table("Sizes", file_columns(ServedStep, FIELDS), served.rows),
        notes(served),
        {"headline": headline(served), **msgspec.to_builtins(served)},
        _answers(served.rows),
        (
            *curves_over(served.rows, _sizes, "Time of a token", "ms", lambda row: row.token_ms),
            *curves_over(
                served.rows,
                _sizes,
                "Memory of a rank",
                "GB",
                lambda row: row.memory_bytes / 1e9,
                lambda row: None if row.hbm_bytes is None else row.hbm_bytes / 1e9,
            ),
        ),
    )


FIELDS = (
    "batch",
    "context",
    "soc",
    "token_ms",
    "low_ms",
    "high_ms",
    "tokens_per_s",
    "graph_token_ms",
    "graph_low_ms",
    "graph_high_ms",
    "graph_tokens_per_s",
    "server_ms",
    "memory_bytes",
    "hbm_bytes",
    "fits",
    "limit",
    "fused",
    "unpredicted_calls",
)


def _sizes(row: ServedStep) -> dict[str, int]:
    return {"batch": row.batch, "context": row.context}


def headline(served: ServedSteps) -> str:
    """Return the shortest and longest time per token, the most tokens per second, and what does not fit in memory."""
    rows = served.rows
    low, high = (_ms(end(row.token_ms for row in rows)) for end in (min, max))
    took = low if low == high else f"{low} to {high}"
    socs = listed([safe(soc) for soc in dict.fromkeys(row.soc for row in rows)], 3)
    text = f"{safe(served.model)} {served.phase} on {socs}: {took} ms a token"
    best = max((row for row in rows if row.fits is not False), key=lambda row: row.tokens_per_s, default=None)
    if best is not None:
        text += f", at most {best.tokens_per_s:,.0f} tokens/s ({best.batch:,} × {best.context:,})"
    return f"{text}{missing_text(rows)}; {fits_text(rows)}"


def setting_line(served: ServedSteps) -> str:
    """Return the dtype, the weights, the ranks, and whether the calls are fused as in a server."""
    ranks = [
        plural(count, name)
        for count, name in (
            (served.tensor_parallel, "tensor rank"),
            (served.pipeline_parallel, "pipeline stage"),
            (served.expert_parallel, "expert rank"),
        )
        if count > 1 or name == "tensor rank"
    ]
    fused = {row.fused for row in served.rows}
    unfused = dict.fromkeys(part for row in served.rows for part in row.unfused)
    kernels = "fused kernels of Ascend servers" if True in fused else "not fused: calls as in transformers"
    kernels += f", except {', '.join(unfused)}" if unfused else ""
    weights = f"weights {served.weights}" if served.weights else ""
    return ", ".join(filter(None, (kernels, served.dtype, weights, *ranks)))


def table(rows: Sequence[ServedStep]) -> Table[ServedStep]:
    """Return one row per size and device."""
    column = Column[ServedStep]
    columns = [
        column("batch", lambda row: row.batch, COUNT),
        column("context", lambda row: row.context, COUNT),
        device_column(ServedStep, rows),
        column(
            "ms a token (80 %)",
            lambda row: f"{_ms(row.token_ms)} ({_ms(row.low_ms, 2)}–{_ms(row.high_ms, 2)})",
            right=True,
        ),
        column("tokens/s", lambda row: row.tokens_per_s, number("{:,.0f}"), drop=4),
        column("as a graph, ms", lambda row: _ms(row.graph_token_ms), right=True, drop=5),
        *memory_columns(ServedStep),
    ]
    return Table("Sizes", columns, rows, noun="size")


def notes(served: ServedSteps) -> list[str]:
    """Return the assumptions common to all rows."""
    said = notes_of(served.notes, served.rows)
    if server_ms := max((row.server_ms for row in served.rows), default=0.0):
        said.append(
            f"a server's host needs {server_ms:.3g} ms between two tokens, within a factor of {SERVER_BAND:g} (from "
            "vLLM's own profile on an H100, scaled to hosts of NPUs). All times include it; servers that schedule "
            "ahead hide it"
        )
    return said


def _answers(rows: Sequence[ServedStep]) -> tuple[Answer, ...]:
    """Return the shortest and the longest time of a token."""
    ends = (("shortest", min(rows, key=_token_ms)), ("longest", max(rows, key=_token_ms)))
    return tuple(
        Answer(
            name=f"ms a token, {which}",
            ratio=_ms(row.token_ms),
            band=f"{_ms(row.low_ms, 2)} to {_ms(row.high_ms, 2)} (80 %)",
            detail=f"batch {row.batch:,}, context {row.context:,}, {row.soc}; limit: {row.limit}",
        )
        for which, row in ends[: len(rows)]
    )


def _token_ms(row: ServedStep) -> float:
    return row.token_ms


def _ms(value: float, digits: int = 3) -> str:
    """Format a number with `digits` significant digits (0.0123, 1.23, 12.3), or as an integer from 100 on (1,230)."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"
