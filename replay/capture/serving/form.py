"""The form in which servers run a captured plan."""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.replay.capture.serving.fused import Graph
from opreplay.replay.capture.serving.fused import fused as fused_plan
from opreplay.replay.capture.serving.fusions import MATCHERS
from opreplay.replay.capture.serving.quantised import Weights, quantised
from opreplay.replay.capture.serving.unfused import unfused_parts
from opreplay.replay.ir.model import ReplayPlan

Fused = Literal["ascend", "none"]
"""Whose fused kernels stand in place of a plan's calls."""


def as_served(plan: ReplayPlan, fused: Fused | None = None, weights: Weights | None = None) -> ReplayPlan:
    """Return the plan with fused kernels, then with quantised weights, where they are wanted.

    Without a choice an inference step of a model that was built from its config is fused, as servers run it. Raises
    UsageError as `fused` and `quantised` do.
    """
    if fused == "ascend" or (fused is None and is_for_servers(plan)):
        plan = _with_unfused_parts(fused_plan(plan, MATCHERS))
    return quantised(plan, weights) if weights is not None else plan


def is_for_servers(plan: ReplayPlan) -> bool:
    """Whether a plan is an inference step of a model built from its config, and has all of its calls."""
    capture, sequence = plan.capture, plan.sequence
    if capture is None or capture.fused is not False or "backward" in capture.flops:
        return False
    return sequence is not None and not sequence.cut


def _with_unfused_parts(plan: ReplayPlan) -> ReplayPlan:
    """Return the plan with the names of the parts that no fused kernel replaced, and a note on each."""
    capture = plan.capture
    if capture is None or not capture.fused or not (parts := unfused_parts(Graph(plan))):
        return plan
    notes = (f"{part} written out in single calls{f': {why}' if why else ''}" for part, why in parts.items())
    capture = msgspec.structs.replace(capture, unfused=tuple(parts), notes=(*capture.notes, *notes))
    return msgspec.structs.replace(plan, capture=capture)
