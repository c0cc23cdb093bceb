# pyright: strict
"""Find registrations made by this program itself, which worker processes do not have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opreplay.replay import plugins
from opreplay.replay.resolve.defining_files import definition_of
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.execute.options import RunOptions
    from opreplay.replay.ir.model import ReplayOp, ReplayPlan


def refuse_what_workers_lack(plan: ReplayPlan, options: RunOptions) -> None:
    """Raise UsageError if an op of the plan would run differently in a worker process than in this process.

    A notebook or a script may have registered ops of torch.library, executors and initializers only in this process. A
    worker loads only what is installed and what the options name. It would therefore measure something different.
    """
    lacking = None if options.isolation == "none" else next(_missing_in_workers(plan.ops, options), None)
    if lacking is not None:
        raise UsageError(
            f"worker processes do not have {lacking}, which this program registered",
            hint='Run in this process with RunOptions(isolation="none"), or put it into a file and pass that: '
            'RunOptions(plugins=("my_ops.py",)), or opreplay.open(plugins=("my_ops.py",)).',
        )


def _missing_in_workers(ops: Sequence[ReplayOp], options: RunOptions) -> Iterator[str]:
    """Yield descriptions of executors, initializers and ops that `ops` need but worker processes do not have."""
    from opreplay.initializers.extensions import registered
    from opreplay.initializers.user_code import PROGRAM
    from opreplay.replay.resolve.user.executors import EXECUTORS

    for name in sorted({op.called for op in ops if op.resolved_by == "executor"}):
        if (entry := EXECUTORS.find(name)) is not None and entry.source == PROGRAM:
            yield f"the executor {entry.shown} of {name}"
    names = {name for op in ops for name in (op.called, op.name)}
    for name, (kind, source) in registered().items():
        if source == PROGRAM and names & set(kind.op_patterns):
            yield f"the initializer {name}"
    if options.plugins or options.init_modules or plugins.any_installed():  # a worker may well have them
        return
    for op in ops:
        if op.called.partition("::")[0] not in options.allow_imports and (file := _defined_here(op)) is not None:
            yield f"the op {op.called}, defined in {file.name},"


def _defined_here(op: ReplayOp) -> Path | None:
    """Return the Python file that defined the op in torch; None for an op of torch or of a library that
    opreplay knows.
    """
    if op.reason is not None or op.resolved_by != "torch.ops":
        return None
    return definition_of(op.called, op.overload or "")
