# pyright: strict
"""Calls that an op must refuse: each must raise an exception that explains the error, and must not crash."""

from __future__ import annotations

import contextlib

import msgspec
import torch

from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Bench, NotApplicable
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case, Values
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.peak import arguments_for
from opreplay.replay.check.points.trials import Attempt, attempt, failed, nothing, passed
from opreplay.replay.check.points.values import against_reference

INDICES: tuple[Values, ...] = ("too large", "negative")
INDEX = (torch.int32, torch.int64)
MAX_CALLS = 60
"""Maximum number of calls that are tried."""


def bad_input(bench: Bench) -> list[Attempt]:
    """Return trials with wrong dtypes, ranks, sizes or numbers, trials with NaN, and one with a tensor on another
    device.
    """
    base = bench.compact_bases[0]
    odd = [case for case in variants.vary_values(base) if case.values == "odd"]
    beyond = [msgspec.structs.replace(base, kind=f"{values} index", values=values) for values in INDICES]
    return [
        *(attempt(bench, case, _indices_refused) for case in (beyond if bench.has_reference(base) else ())),
        *(attempt(bench, case, _refused) for case in [*variants.wrong(base), *odd][:MAX_CALLS]),
        attempt(bench, base, _elsewhere, "another device"),
    ]


def _indices_refused(bench: Bench, case: Case) -> Finding:
    """Check that the op treats an out-of-range index in its arguments as the reference does."""
    arguments = arguments_for(bench, case)
    if not any(t.dtype in INDEX and t.numel() for t in arguments.tensors()):
        return nothing("no argument has integers that may be indices")
    return _refused(bench, case)


def _refused(bench: Bench, case: Case) -> Finding:
    """Check that the op raises an exception with a message.

    If the op returns results instead, it passes in two cases: there is no reference, or the reference returns equal
    results.
    """
    arguments = arguments_for(bench, case)
    try:
        bench.call(case, arguments.copy())
    except Exception as error:  # this is what is wanted
        return _said(error)
    if not bench.has_reference(case):
        return passed("is taken")
    try:
        bench.refer(case, arguments.copy())
    except Exception as error:  # references raise anything
        if case.trait == "dtype":
            return passed(f"the op accepts it, but the reference refuses it: {words(error)}")
        return failed(f"the op accepts it, but the reference refuses it: {words(error)}")
    with contextlib.suppress(NotApplicable):
        finding = against_reference(bench, case)
        if finding.verdict == "fail":
            return failed(f"the op accepts it, but the result is wrong: {finding.detail}")
    return passed("the op accepts it, like the reference")


def _said(error: BaseException) -> Finding:
    return passed(words(error)) if str(error).strip() else failed(f"raises {type(error).__name__} without a message")


def _elsewhere(bench: Bench, case: Case) -> Finding:
    """Check a call with several tensors whose first is on the meta device, where tensors have no values."""
    arguments = bench.arguments(case).copy()
    tensors = arguments.tensors()
    if len(tensors) < 2:
        return nothing("the only tensor determines the device")
    arguments = arguments.changed(lambda t: torch.empty_like(t, device="meta") if t is tensors[0] else t)
    try:
        bench.call(case, arguments)
    except Exception as error:  # this is what is wanted
        return _said(error)
    return passed("is taken")
