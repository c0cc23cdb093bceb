# pyright: strict
"""What every report says of the work that arguments cause: its text, the ops that do none, and what is wrong.

Owns no counting; an op whose work was not counted does not appear.
"""

from __future__ import annotations

from collections.abc import Sequence

from opreplay.replay.ops.work.amounts import work_text
from opreplay.replay.report.text import end, plural, safe
from opreplay.replay.results.records import OpResult

LISTED = 4
"""Ops that a note names before it says how many more there are."""
TEXT_CHARS = 400
"""Longer than every text of a counter; only a damaged file has longer ones."""


def work_cell(result: OpResult) -> str:
    """ "8,192 of 65,536 context tokens (12.5 %); ..."; a warning first where the op does none; "" where not counted."""
    if result.work is None or not result.work.amounts:
        return ""
    text = end(safe(work_text(result.work)), TEXT_CHARS)
    return f"no work: {text}" if result.work.idle else text


def counted(results: Sequence[OpResult]) -> list[OpResult]:
    """The results whose work was counted."""
    return [result for result in results if work_cell(result)]


def work_notes(results: Sequence[OpResult]) -> list[str]:
    """Warnings: ops that do no work, and values that break a convention."""
    idle = [result.name for result in counted(results) if result.work is not None and result.work.idle]
    lines = [f"warning: {plural(len(idle), 'op')} without work: {_listed(idle)}"] if idle else []
    odd = [(result.name, result.work.warnings) for result in results if result.work and result.work.warnings]
    wrong = [f"{name}: {warning}" for name, warnings in odd for warning in warnings]
    return lines + ([f"warning: the values of {plural(len(odd), 'op')} are odd: {_listed(wrong)}"] if wrong else [])


def _listed(texts: Sequence[str]) -> str:
    named = [end(safe(text), TEXT_CHARS) for text in dict.fromkeys(texts)]
    rest = len(named) - LISTED
    return ", ".join(named[:LISTED]) + (f" and {plural(rest, 'other')}" if rest > 0 else "")
