# pyright: strict
"""Times by op of a trace or plan, predicted on one simulated device, for comparison with recorded or measured times."""

from __future__ import annotations

from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.job.job import Job
from opreplay.replay.job.settings import Settings
from opreplay.replay.plan.selection import Selection
from opreplay.replay.results.compare.sides import OpTime, Times, with_prediction
from opreplay.traces.model import Trace


def simulated_times(read: Trace | ReplayPlan, soc: str, select: str = "owner") -> Times:
    """Predict the time of one call of each op on a device.

    The caches are in the state in which earlier calls of the step leave them.

    Raises UsageError for an unknown device.
    """
    job = Job.open(read, Selection(select=select), Settings(order=True, l2="sequence"), (soc,))
    (step,) = job.steps()
    times = {op.id: op.simulated for op in step.ops}
    ops = tuple(
        with_prediction(OpTime(id=op.id, name=op.name, inputs=describe_inputs(op), count=op.count), times.get(op.id))
        for op in job.plan.ops
    )
    return Times(what="simulated", on=step.device, source=job.plan.source, ops=ops)
