# pyright: strict
"""A trace or plan on one simulated device as times by op, for a comparison with what was recorded or measured."""

from __future__ import annotations

from opreplay.replay.ascend.simulate.devices import load_socs, simulate_plan
from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.selection import Selection
from opreplay.replay.results.compare.sides import OpTime, Times, with_prediction
from opreplay.traces.model import Trace


def simulated_times(read: Trace | ReplayPlan, soc: str, select: str = "owner") -> Times:
    """What each op takes on a device, a call, as `simulate` predicts it: caches hold what the calls before left.

    Raises UsageError for an unknown device.
    """
    from opreplay.replay.ops.work.expected import expected_contents
    from opreplay.replay.plan.inputs import plan_of

    devices = load_socs((soc,))
    plan = plan_of(read, Selection(select=select), device="cpu", in_order=True)
    (step,) = simulate_plan(plan, list(devices.values()), expected_contents())
    times = {op.id: op.simulated for op in step.ops}
    ops = tuple(
        with_prediction(OpTime(id=op.id, name=op.name, inputs=describe_inputs(op), count=op.count), times.get(op.id))
        for op in plan.ops
    )
    return Times(what="simulated", on=step.device, source=plan.source, ops=ops)
