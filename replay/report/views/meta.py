# pyright: strict
"""Results of running a plan's ops on meta tensors: a line, a column, a table of problems, JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from opreplay.replay.ir.reasons import ReasonTotal, total_reasons
from opreplay.replay.ir.verdicts import META_WRONG, MetaCheck, MetaStatus
from opreplay.replay.report.run import ops
from opreplay.replay.report.run.ops import OpColumn
from opreplay.replay.report.run.tables import totals_by_kind
from opreplay.replay.report.table import Table
from opreplay.replay.report.text import DASH, plural
from opreplay.replay.results.records import OpResult

STYLES: dict[str, str] = {"differs": "red", "failed": "red", "no meta kernel": "yellow", "data-dependent": "yellow"}
SHORT: dict[str, str] = {"no meta kernel": "no kernel", "data-dependent": "data-dep."}
"""Status of an op on meta tensors → short text for the narrow column."""


def counts(results: Sequence[OpResult]) -> dict[MetaStatus, int]:
    """Return the number of ops for each status, with all statuses in order."""
    verdicts = Counter(r.meta.status for r in results if r.meta is not None)
    return {status: verdicts[status] for status in get_args(MetaStatus)}


def line(results: Sequence[OpResult]) -> str:
    """Return "on meta tensors: 412 ok (96 with the recorded sizes), 3 no meta kernel, 1 failed; 6 ops not called"."""
    verdicts = counts(results)
    compared = sum(r.meta is not None and r.meta.status == "ok" and r.meta.results_compared > 0 for r in results)
    parts = [f"{verdicts['ok']:,} ok" + (f" ({compared:,} with the recorded sizes)" if compared else "")]
    words = {"differs": "differ" if verdicts["differs"] != 1 else "differs"}
    parts += [
        f"{count:,} {words.get(status, status)}" for status, count in verdicts.items() if count and status != "ok"
    ]
    left_out = sum(r.meta is None for r in results)
    return f"on meta tensors: {', '.join(parts)}" + (f"; {plural(left_out, 'op')} not called" if left_out else "")


def _status(result: OpResult) -> str:
    return "" if result.meta is None else result.meta.status


COLUMN = OpColumn(
    "meta",
    _status,
    text=lambda r: SHORT.get(_status(r), _status(r)) or DASH,
    style=lambda r: STYLES.get(_status(r), ""),
    drop=1,
)
"""Column with the status of each op on meta tensors."""


def op_column(results: Sequence[OpResult]) -> ops.OpColumn:
    """Return the column of ops with their arguments, or with their problem on meta tensors."""
    wrong = {r.id: r.meta for r in results if r.status == "replayed" and r.meta and r.meta.status in META_WRONG}
    return ops.op_column(results, {id_: (meta.detail, STYLES[meta.status]) for id_, meta in wrong.items()})


def problems(results: Sequence[OpResult]) -> Table[ReasonTotal]:
    """Return one row per status other than ok, with unique ops, calls and share, and the affected ops."""
    wrong = [(r, r.meta) for r in results if r.meta is not None and r.meta.status != "ok"]
    totals = total_reasons((check.status, _about(r, check), r.count, r.recorded_share) for r, check in wrong)
    return totals_by_kind("on meta tensors", totals)


def _about(result: OpResult, check: MetaCheck) -> str:
    """Return the op's name, followed by the detail of its check if the call was wrong.

    Otherwise the status explains the result. Without details, ops of the same name are counted together.
    """
    return f"{result.name}: {check.detail}" if check.status in META_WRONG else result.name


def facts(results: Sequence[OpResult]) -> dict[str, Any] | None:
    """Return counts by status as JSON-safe values; None if nothing was run on meta tensors."""
    if all(r.meta is None for r in results):
        return None
    compared = sum(r.meta is not None and r.meta.results_compared > 0 for r in results)
    return {"counts": counts(results), "compared": compared, "not_called": sum(r.meta is None for r in results)}
