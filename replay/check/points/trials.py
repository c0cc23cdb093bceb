# pyright: strict
"""What every point is made of: trials, each of one case, and the usual ways in which they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from opreplay.replay.check.calling.calls import Bench, NotApplicable
from opreplay.replay.check.calling.refusals import is_refusal, words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding, Timed
from opreplay.replay.ir.reasons import NotReplayable


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trial: what it is called, and what judges it."""

    case: str
    judge: Callable[[], Finding | Timed]

    def run(self) -> Finding | Timed:
        """What became of it; whatever it raises is a finding."""
        try:
            judged = self.judge()
        except NotApplicable as reason:
            judged = nothing(str(reason))
        except NotReplayable as stopped:
            judged = nothing(str(stopped.reason))
        except Exception as error:  # ops raise anything
            judged = failed(words(error))
        if isinstance(judged, Timed):
            return msgspec.structs.replace(judged, finding=self._named(judged.finding))
        return self._named(judged)

    def _named(self, finding: Finding) -> Finding:
        return finding if finding.case else msgspec.structs.replace(finding, case=self.case)


def attempt(bench: Bench, case: Case, judge: Callable[[Bench, Case], Finding], name: str = "") -> Attempt:
    """A trial of one case, after what it is about."""
    return Attempt(f"{name}: {case.text}" if name else case.text, lambda: judge(bench, case))


def passed(detail: str = "") -> Finding:
    return Finding(verdict="pass", detail=detail)


def failed(detail: str) -> Finding:
    return Finding(verdict="fail", detail=detail)


def missing(detail: str) -> Finding:
    """Nothing is registered."""
    return Finding(verdict="missing", detail=detail)


def refused(detail: str) -> Finding:
    """An error says clearly that the op does not do this."""
    return Finding(verdict="refused", detail=detail)


def nothing(why: str) -> Finding:
    """There is nothing to be tried."""
    return Finding(verdict="not applicable", detail=why)


def raised(error: BaseException) -> Finding:
    """The verdict on an error of the op for a call that it should take."""
    return refused(words(error)) if is_refusal(error) else failed(words(error))
