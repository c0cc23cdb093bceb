# pyright: strict
"""Calls that an op must refuse: each ends in an exception that says what is wrong, never in a crash."""

from __future__ import annotations

import torch

from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Bench
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.trials import Attempt, attempt, nothing
from opreplay.replay.check.points.values import against_reference
from opreplay.replay.ir.reasons import NotReplayable

MOST = 60
"""Calls that are tried at most."""


def bad_input(bench: Bench) -> list[Attempt]:
    """Other dtypes, ranks, sizes and numbers, NaN, and a tensor of another device."""
    base = bench.compact_bases[0]
    odd = [case for case in variants.valued(base) if case.values == "odd"]
    return [
        *(attempt(case, lambda case: _refused(bench, case)) for case in [*variants.wrong(base), *odd][:MOST]),
        Attempt(f"another device: {base.text}", lambda: _elsewhere(bench, base)),
    ]


def _refused(bench: Bench, case: Case) -> Finding:
    """An exception with a message, or a result where the reference gives one, too."""
    text = case.text
    try:
        arguments = bench.arguments(case)
    except NotReplayable as stopped:
        return nothing(text, f"no arguments can be made: {stopped.reason}")
    try:
        bench.call(case, arguments.copy())
    except Exception as error:  # this is what is wanted
        return _said(text, error)
    if not bench.has_reference(case):
        return Finding(case=text, verdict="pass", detail="is taken")
    try:
        bench.refer(case, arguments.copy())
    except Exception as error:  # references raise anything
        if "float" in case.kind or "int" in case.kind:
            return Finding(case=text, verdict="pass", detail=f"is taken; the reference refuses it: {words(error)}")
        detail = f"is taken, though the reference refuses it: {words(error)}"
        return Finding(case=text, verdict="fail", detail=detail)
    found = against_reference(bench, case)
    if found.verdict == "fail":
        return Finding(case=text, verdict="fail", detail=f"is taken, and the result is wrong: {found.detail}")
    return Finding(case=text, verdict="pass", detail="is taken, as by the reference")


def _said(text: str, error: BaseException) -> Finding:
    if not str(error).strip():
        return Finding(case=text, verdict="fail", detail=f"{type(error).__name__} without a message")
    return Finding(case=text, verdict="pass", detail=words(error))


def _elsewhere(bench: Bench, case: Case) -> Finding:
    """The first of several tensors on the meta device, where none has values."""
    text = f"another device: {case.text}"
    arguments = bench.arguments(case).copy()
    tensors = arguments.tensors()
    if len(tensors) < 2:
        return nothing(text, "the only tensor decides on the device")
    arguments = arguments.changed(lambda t: torch.empty_like(t, device="meta") if t is tensors[0] else t)
    try:
        bench.call(case, arguments)
    except Exception as error:  # this is what is wanted
        return _said(text, error)
    return Finding(case=text, verdict="pass", detail="is taken")
