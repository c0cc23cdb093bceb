# pyright: strict
"""Results of a plan before any measurement: which ops would run, why others would not, and all predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from opreplay.replay.arguments.shrink.choose import shrink_to_limit
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.reasons import Reason
from opreplay.replay.ir.sizes import over_budget
from opreplay.replay.ir.verdicts import MetaCheck
from opreplay.replay.job.predicting import Predict, no_prediction
from opreplay.replay.results.of_plan import result_of
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.replay.results.records import OpResult

OverBudget = Literal["shrink", "skip"]
"""What to do with an op over its memory budget; see `opreplay.replay.arguments.shrink.choose`."""


def why_not(op: ReplayOp, max_op_bytes: int | None, over: OverBudget = "shrink") -> Reason | None:
    """Return why an op would not run: the plan's reason, or a memory budget that it exceeds even after shrinking."""
    if op.reason is not None or max_op_bytes is None:
        return op.reason
    return over_budget(op if over == "skip" else shrink_to_limit(op, max_op_bytes).op, max_op_bytes)


def _outcome(op: ReplayOp, max_op_bytes: int | None, over: OverBudget) -> Outcome:
    reason = why_not(op, max_op_bytes, over)
    if reason is not None:
        return unable(reason)
    if max_op_bytes is None or over == "skip":
        return Outcome(status="replayed")
    return Outcome(status="replayed", assumptions=shrink_to_limit(op, max_op_bytes).assumptions)


def planned_results(
    plan: ReplayPlan,
    predict: Predict = no_prediction,
    *,
    max_op_bytes: int | None = None,
    checks: Mapping[str, MetaCheck] | None = None,
    over: OverBudget = "shrink",
) -> list[OpResult]:
    """Return one result per op without measuring. The status "replayed" means that a run would try the op.

    `checks` maps op ids to the results of checks on meta tensors.
    """
    results: list[OpResult] = []
    for op in plan.ops:
        predicted = predict(op)
        outcome = _outcome(op, max_op_bytes, over)
        results.append(result_of(plan, op, outcome, predicted.simulated, unpredicted=predicted.why))
    return [msgspec.structs.replace(result, meta=checks.get(result.id)) for result in results] if checks else results
