# pyright: strict
"""What this program has registered by itself, and that worker processes do not know of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from opreplay.initializers import extensions
from opreplay.replay import plugins
from opreplay.replay.resolve.defining_files import definition_of
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.execute.options import RunOptions
    from opreplay.replay.ir.model import ReplayOp, ReplayPlan


def refuse_what_workers_lack(plan: ReplayPlan, options: RunOptions) -> None:
    """Raises UsageError where an op of the plan would run otherwise in a worker process than here.

    Ops of torch.library, executors and initializers that a notebook or a script registers exist in its own process; a
    worker has what is installed and what the options name. To go on without them would give times of something else.
    """
    lacking = None if options.isolation == "none" else next(_lacking(plan.ops, options), None)
    if lacking is not None:
        raise UsageError(
            f"worker processes do not have {lacking}, which this program registered",
            hint='Run in this process with RunOptions(isolation="none"), or put it into a file and name that: '
            'RunOptions(plugins=("my_ops.py",)), or opreplay.open(plugins=("my_ops.py",)).',
        )


def _lacking(ops: Sequence[ReplayOp], options: RunOptions) -> Iterator[str]:
    """What worker processes do not have of all that decides how these ops run, in words."""
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
    if options.plugins or options.init_modules or _installed():  # a worker may well have them
        return
    for op in ops:
        if op.called.partition("::")[0] not in options.allow_imports and (file := _defined_here(op)) is not None:
            yield f"the op {op.called}, defined in {file.name},"


def _defined_here(op: ReplayOp) -> Path | None:
    """The file in Python that put the op into torch, unless that is one of torch's own or of a library known here."""
    if op.reason is not None or op.resolved_by != "torch.ops":
        return None
    return definition_of(op.called, op.overload or "")


def _installed() -> bool:
    """Whether packages here have plugins, which workers load as well."""
    return any(entry_points(group=group) for group in (plugins.ENTRY_POINTS, extensions.ENTRY_POINTS))
