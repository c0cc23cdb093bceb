"""The form in which servers run a captured plan."""

from __future__ import annotations

from opreplay.replay.capture.serving.fused import fused as fused_plan
from opreplay.replay.capture.serving.fusions import MATCHERS
from opreplay.replay.capture.serving.quantised import Weights, quantised
from opreplay.replay.ir.model import ReplayPlan


def as_served(plan: ReplayPlan, *, fused: bool, weights: Weights | None) -> ReplayPlan:
    """With fused kernels, then with quantised weights, where they are wanted. Raises UsageError as these do."""
    plan = fused_plan(plan, MATCHERS) if fused else plan
    return quantised(plan, weights) if weights is not None else plan
