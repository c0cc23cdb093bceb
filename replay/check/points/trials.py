# pyright: strict
"""Building blocks of all points: trials of one case, and common findings."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from opreplay.replay.check.calling.calls import Bench, NotApplicable
from opreplay.replay.check.calling.refusals import is_refusal, words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding, Timed
from opreplay.replay.ir.reasons import NotReplayable


class Attempt(msgspec.Struct, frozen=True):
    """One trial: its name and the function that runs it."""

    case: str
    judge: Callable[[], Finding | Timed]

    def run(self) -> Finding | Timed:
        """Run the trial and return its result; an exception becomes a finding."""
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
    """Return a trial of one case, named after `name` and the case."""
    return Attempt(f"{name}: {case.text}" if name else case.text, lambda: judge(bench, case))


def passed(detail: str = "") -> Finding:
    return Finding(verdict="pass", detail=detail)


def failed(detail: str) -> Finding:
    return Finding(verdict="fail", detail=detail)


def missing(detail: str) -> Finding:
    """Return a "missing" finding: what the point needs is not registered."""
    return Finding(verdict="missing", detail=detail)


def refused(detail: str) -> Finding:
    """Return a "refused" finding: a clear error says that the op does not support this use."""
    return Finding(verdict="refused", detail=detail)


def nothing(why: str) -> Finding:
    """Return a "not applicable" finding; `why` is the reason."""
    return Finding(verdict="not applicable", detail=why)


def raised(error: BaseException) -> Finding:
    """Return a finding for an error that the op raised in a call that it should accept."""
    return refused(words(error)) if is_refusal(error) else failed(words(error))
