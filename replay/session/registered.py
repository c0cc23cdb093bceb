# pyright: strict
"""What this program has registered by itself, and that worker processes do not know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.execute.options import RunOptions
    from opreplay.replay.ir.model import ReplayPlan


def refuse_what_workers_lack(plan: ReplayPlan, options: RunOptions) -> None:
    """Raises UsageError where an op of the plan would run otherwise in a worker process than here.

    Executors and initializers that a notebook or a script registers exist in its own process; a worker has what is
    installed and what the options name. To go on without them would give times of something else.
    """
    from opreplay.initializers.extensions import registered
    from opreplay.initializers.user_code import PROGRAM
    from opreplay.replay.resolve.user.executors import EXECUTORS

    if options.isolation == "none":
        return
    names = {op.called for op in plan.ops} | {op.name for op in plan.ops}
    executed = {op.called for op in plan.ops if op.resolved_by == "executor"}
    lacking = [
        f"the executor {entry.shown} of {name}"
        for name in sorted(executed)
        if (entry := EXECUTORS.find(name)) is not None and entry.source == PROGRAM
    ]
    lacking += [
        f"the initializer {name}"
        for name, (kind, source) in registered().items()
        if source == PROGRAM and names & set(kind.op_patterns)
    ]
    if lacking:
        raise UsageError(
            f"worker processes do not have {lacking[0]}, which this program registered",
            hint='Run in this process with RunOptions(isolation="none"), or put it into a file and name that: '
            'RunOptions(plugins=("my_ops.py",)).',
        )
