"""A run as Parquet, one row an op with the columns of the CSV, typed; needs pyarrow, the extra `parquet`."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec

from opreplay.replay.report.run.csv_ import columns, values
from opreplay.replay.report.run.facts import socs_of
from opreplay.replay.report.text import safe
from opreplay.replay.results.records import Header, OpResult, Summary
from opreplay.traces.errors import EnvironmentRefused


def render(header: Header, results: Sequence[OpResult], summary: Summary) -> bytes:
    """The bytes of the file; its metadata `opreplay` is the header and the summary as JSON.

    Types follow from the column, not from what is in it: files of several runs can be read as one data set.
    Raises EnvironmentRefused where pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise EnvironmentRefused(
            "Parquet needs pyarrow, which is not installed",
            hint="pip install 'opreplay[parquet]', or use --format csv.",
        ) from None
    socs = socs_of(results)
    types = {"int": pyarrow.int64(), "float": pyarrow.float64(), "text": pyarrow.string()}
    about = msgspec.json.encode({"header": header, "summary": summary})
    schema = pyarrow.schema(
        [pyarrow.field(safe(name), types[kind_of(name)]) for name in columns(socs)], metadata={"opreplay": about}
    )
    rows = [[_stored(value) for value in values(result, socs)] for result in results]
    by_column = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pyarrow.array(cells, field.type) for cells, field in zip(by_column, schema, strict=True)]
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), out)
    return out.getvalue()


def kind_of(column: str) -> str:
    """int, float or text."""
    if column in ("count", "measured_samples"):
        return "int"
    return "float" if "_us_" in column or column.endswith("_us") or column == "recorded_share" else "text"


def _stored(value: str | float | None) -> str | float | None:
    """Control characters escaped as everywhere, no spreadsheet's apostrophe; nothing for empty text."""
    return (safe(value) or None) if isinstance(value, str) else value
