"""A run as Parquet, one row an op with the columns of the CSV, typed; needs pyarrow, the extra `parquet`."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence

from opreplay.replay.report import csv_
from opreplay.replay.results import Header, OpResult, Summary
from opreplay.traces.errors import EnvironmentRefused


def render(header: Header, results: Sequence[OpResult], summary: Summary) -> bytes:
    """The bytes of the file. Raises EnvironmentRefused where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise EnvironmentRefused(
            "Parquet needs pyarrow, which is not installed",
            hint="pip install 'opreplay[parquet]', or use --format csv.",
        )
    import pandas

    out = io.BytesIO()
    pandas.DataFrame(rows(header, results, summary)).to_parquet(out, engine="pyarrow", index=False)
    return out.getvalue()


def rows(header: Header, results: Sequence[OpResult], summary: Summary) -> list[dict[str, object]]:
    """One mapping an op: numbers as numbers, text as text, nothing for what is missing."""
    table = list(csv.reader(io.StringIO(csv_.render(header, results, summary))))
    return [dict(zip(table[0], map(_typed, table[0], row), strict=True)) for row in table[1:]]


def _typed(column: str, cell: str) -> object:
    if not cell:
        return None
    if column == "count":
        return int(cell)
    if "_us" in column or column == "recorded_share":
        return float(cell)
    return cell
