# pyright: strict
"""What every point is made of: trials, each of one case, and the usual ways in which they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opreplay.replay.check.calling.refusals import kind_of, words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding, Timed


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trial: what it is called, and what runs it."""

    case: str
    run: Callable[[], Finding | Timed]


def attempt(case: Case, run: Callable[[Case], Finding]) -> Attempt:
    """A trial of one case."""
    return Attempt(case.text, lambda: run(case))


def raised(case: str, error: BaseException, *, what: str = "") -> Finding:
    """The verdict on an error of the op for a call that it should take."""
    kind = kind_of(error)
    said = f"{what}{words(error)}"
    if kind == "clear":
        return Finding(case=case, verdict="refused", detail=said)
    return Finding(case=case, verdict="fail", detail=said)


def nothing(case: str, why: str) -> Finding:
    """There is nothing to be tried."""
    return Finding(case=case, verdict="not applicable", detail=why)
