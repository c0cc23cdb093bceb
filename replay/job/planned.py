# pyright: strict
"""The results that a run of a plan would start from: what would be run, what not and why, and every prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from opreplay.replay.arguments.shrink.choose import fitted
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.reasons import Reason
from opreplay.replay.ir.sizes import over_budget
from opreplay.replay.ir.verdicts import MetaCheck
from opreplay.replay.job.predicting import Predict, no_prediction
from opreplay.replay.results.of_plan import result_of
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.replay.results.records import OpResult

OverBudget = Literal["shrink", "skip"]
"""What a run does with an op over its budget; see `opreplay.replay.arguments.shrink.choose`."""


def why_not(op: ReplayOp, max_op_bytes: int | None, over: OverBudget = "shrink") -> Reason | None:
    """Return why the op would not run: the plan's reason, else that it is over the budget and cannot be shrunk."""
    if op.reason is not None or max_op_bytes is None:
        return op.reason
    return over_budget(op if over == "skip" else fitted(op, max_op_bytes).op, max_op_bytes)


def _outcome(op: ReplayOp, max_op_bytes: int | None, over: OverBudget) -> Outcome:
    reason = why_not(op, max_op_bytes, over)
    if reason is not None:
        return unable(reason)
    if max_op_bytes is None or over == "skip":
        return Outcome(status="replayed")
    return Outcome(status="replayed", assumptions=fitted(op, max_op_bytes).assumptions)


def planned_results(
    plan: ReplayPlan,
    predict: Predict = no_prediction,
    *,
    max_op_bytes: int | None = None,
    checks: Mapping[str, MetaCheck] | None = None,
    over: OverBudget = "shrink",
) -> list[OpResult]:
    """Return one result an op, "replayed" where a run would try it; nothing is measured.

    `checks`: verdicts of a run on meta tensors, by id.
    """
    results: list[OpResult] = []
    for op in plan.ops:
        predicted = predict(op)
        outcome = _outcome(op, max_op_bytes, over)
        results.append(result_of(plan, op, outcome, predicted.simulated, unpredicted=predicted.why))
    return [msgspec.structs.replace(result, meta=checks.get(result.id)) for result in results] if checks else results
