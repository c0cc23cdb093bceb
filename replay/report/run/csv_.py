# pyright: strict
"""A run as CSV, one row an op; cells that a spreadsheet would take for a formula are escaped."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from opreplay.replay.report.run.facts import socs_of
from opreplay.replay.report.run.fidelity import fidelity_cell
from opreplay.replay.report.run.work import work_cell
from opreplay.replay.report.text import safe
from opreplay.replay.results.records import Header, OpResult, Summary

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def cell(text: str | None) -> str:
    """Text as it may stand in a cell: control characters escaped, an apostrophe before what starts like a formula."""
    if not text:
        return ""
    return ("'" if text.startswith(FORMULA_STARTS) else "") + safe(text)


def columns(socs: Sequence[str]) -> list[str]:
    """The header row; `simulated_us_SOC` and `confidence_SOC` for each SoC."""
    return [
        "id",
        "name",
        "count",
        "status",
        "reason",
        "reason_kind",
        "resolved_by",
        "via",
        "inputs",
        "recorded_device_us",
        "recorded_host_us",
        "recorded_share",
        "measured_us",
        "measured_ci_low_us",
        "measured_ci_high_us",
        "measured_samples",
        *(f"simulated_us_{soc}" for soc in socs),
        "bound",
        *(f"confidence_{soc}" for soc in socs),
        "initializer",
        "assumptions",
        "work",
        "fidelity",
        "npu_kernels",
        "call",
    ]


def values(result: OpResult, socs: Sequence[str]) -> list[str | int | float | None]:
    """What stands in the columns, text as it is; None or "" for what is missing."""
    r, measured = result, result.measurement
    return [
        r.id,
        r.name,
        r.count,
        r.status,
        r.reason and str(r.reason),
        None if r.status == "replayed" else r.why_not().kind,
        r.resolved_by,
        r.via,
        r.inputs,
        r.recorded_device_us,
        r.recorded_host_us,
        r.recorded_share,
        r.measured_us,
        measured.ci_low_us if measured else None,
        measured.ci_high_us if measured else None,
        measured.samples if measured else None,
        *(r.simulated_us.get(soc) for soc in socs),
        r.bound,
        *(r.simulated[soc].confidence if soc in r.simulated else None for soc in socs),
        r.initializer,
        "; ".join(f"{a.argument}: {a.what}" for a in r.assumptions),
        work_cell(r),
        fidelity_cell(r),
        "; ".join(f"{k.type} x{k.count} {k.total_us:g} us" for k in r.npu_kernels),
        r.call,
    ]


def render(header: Header, results: Sequence[OpResult], summary: Summary) -> str:
    """The ops of a run, times in microseconds a call; missing values are empty cells."""
    socs = socs_of(results)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([cell(name) for name in columns(socs)])
    for result in results:
        writer.writerow([cell(v) if isinstance(v, str) else v for v in values(result, socs)])
    return out.getvalue()
