# pyright: strict
"""Makes a plan from a trace and a selection, with the metadata of each op's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opreplay.replay.plan.selection import Selection

if TYPE_CHECKING:
    from opreplay.replay.ir.model import ReplayOp, ReplayPlan
    from opreplay.replay.ir.verdicts import MetaCheck
    from opreplay.replay.plan.step.beside import RequestedCollective
    from opreplay.traces import Trace


def make_plan(
    trace: Trace,
    selection: Selection,
    *,
    device: str,
    in_order: bool = False,
    collectives: Sequence[RequestedCollective] = (),
) -> ReplayPlan:
    """Return the plan of the selected ops, with the metadata of their outputs.

    With `in_order`, the plan also contains the calls of one step, in order, and the trace's `collectives`.
    """
    from opreplay.replay.plan.build import build_plan
    from opreplay.replay.plan.opaque_layers import with_layers
    from opreplay.replay.plan.physical import mark_impossible
    from opreplay.replay.plan.recorded.unread import mark_unread
    from opreplay.replay.resolve.meta.outputs import with_outputs
    from opreplay.replay.resolve.policy import Policy
    from opreplay.traces.times.clock import coarse_unit_us

    policy = Policy(allow_imports=selection.allow_imports)
    plan = build_plan(
        trace,
        select=selection.select,
        filters=selection,
        policy=policy,
        device=device,
        in_order=in_order,
        collectives=collectives,
    )
    plan = with_outputs(with_layers(plan), policy=policy)
    return mark_unread(plan if coarse_unit_us(trace) is not None else mark_impossible(plan), trace)


def check_on_meta(plan: ReplayPlan, selection: Selection) -> dict[str, MetaCheck]:
    """Call the plan's ops on meta tensors, and return the result of each call by op id."""
    from opreplay.replay.resolve.meta.check import check_plan
    from opreplay.replay.resolve.policy import Policy

    return check_plan(plan, policy=Policy(allow_imports=selection.allow_imports))


def find_ops(plan: ReplayPlan, wanted: str) -> list[ReplayOp]:
    """Return the ops that `wanted` selects, heaviest first.

    `wanted` is a name, a glob, the start of an id, or "#4" for the fourth op. Raises UsageError if no op is selected.
    """
    from opreplay.replay.plan.select import select_ops

    return select_ops(plan.ops, wanted)
