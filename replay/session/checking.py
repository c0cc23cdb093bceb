# pyright: strict
"""`opreplay.check`: check an op against a reference on the given calls, and return typed rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Literal

from opreplay.replay.check.check import check_op
from opreplay.replay.check.isolated import LIMIT_S, Tell
from opreplay.replay.check.model import POINTS, CheckResult, Setup, point_named
from opreplay.replay.host import environment
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import need_of
from opreplay.replay.plugins import load_plugins
from opreplay.replay.session.trace import OpenTrace, Source
from opreplay.replay.session.trace import open as open_trace
from opreplay.traces.errors import UsageError
from opreplay.traces.model import Trace

MOST_RECORDED = 8
"""Maximum number of recorded calls that are tried. The calls that take the most time come first."""
COPIES = 12
"""Maximum number of copies of arguments and results that a trial holds at once. A copy in float64 counts as two."""


def check(
    op: str,
    *,
    against: str | None = None,
    shapes: Sequence[str] = (),
    trace: Source | OpenTrace | None = None,
    points: Sequence[str] = tuple(POINTS),
    plugins: Sequence[str] = (),
    init_modules: Sequence[str] = (),
    device: str = "cpu",
    soc: Sequence[str] = (),
    seed: int = 0,
    threads: int | None = None,
    speed_time_s: float = 10.0,
    limit_s: float = LIMIT_S,
    isolation: Literal["process", "none"] = "process",
    tell: Tell | None = None,
) -> CheckResult:
    """Check an op for correctness, generality and speed; return a verdict for each point, with the cases that prove it.

    Args:
        op: "namespace::op" or "namespace::op.overload", or "file.py:function".
        against: reference for results and times: an op, "torch.add", "file.py:function",
            "gradient:aten::silu" (autograd of a forward op), "stand-in" or "decomposition"; by default the op itself in
            float64.
        shapes: calls to try: "4096x4096", "f32[4,8], f32[8]", "mylib::op(f32[4,8], 0.5)".
        trace: a trace or plan whose recorded calls of the op are tried.
        points: names of the points to check; all of them by default.
        plugins: files and modules to run first, which may register the op.
        init_modules: the user's files and modules with initializers.
        device: torch device.
        soc: simulated devices to predict times on.
        seed: seed of the arguments' values.
        threads: number of CPU threads of torch.
        speed_time_s: maximum seconds for the comparison of times.
        limit_s: seconds after which a trial counts as hanging.
        isolation: "process": trials run in a separate process, so that a crash affects only its case; the process knows
            only what `plugins` and installed packages register. "none": trials run in this process.
        tell: called before each trial with the point, the number of the trial and the number of trials.

    Raises UsageError for input that cannot be checked, EnvironmentRefused if the device is missing.
    """
    if shapes and trace is not None:
        raise UsageError("calls come either from a trace or from shapes, not from both", hint="Remove one of them.")
    room = environment.default_op_bytes()
    load_plugins(plugins)  # a trace's calls of what they register are resolved here
    recorded, notes = ((), ()) if trace is None else _recorded(op, trace, device, room)
    if isolation == "process":
        _refuse_what_workers_lack(op)
    setup = Setup(
        op=op,
        against=against,
        shapes=tuple(shapes),
        recorded=recorded,
        points=tuple(point for point in POINTS if point in {point_named(name) for name in points}),
        plugins=tuple(os.path.abspath(name) if name.endswith(".py") else name for name in plugins),
        init_modules=tuple(init_modules),
        device=device,
        seed=seed,
        threads=threads,
        speed_s=speed_time_s,
        memory_bytes=room,
        socs=tuple(soc),
        notes=notes,
    )
    return check_op(setup, isolated=isolation == "process", limit_s=limit_s, tell=tell)


def _recorded(
    op: str, trace: Source | OpenTrace, device: str, room: int
) -> tuple[tuple[ReplayOp, ...], tuple[str, ...]]:
    """Return the recorded calls of an op to try, and notes on the calls that are left out.

    Raises UsageError if there is no call to try.
    """
    name = op.partition(".")[0] if "::" in op else op
    opened = trace if isinstance(trace, OpenTrace) else _opened(trace, name, device)
    calls = [call for call in opened.plan.ops if call.name == name]
    if not calls and isinstance(opened.read, ReplayPlan):
        chosen = opened.read.selection
        raise UsageError(
            f"the plan has no {name}: it contains the ops selected by {chosen}",
            hint="Give the trace, or make the plan with --select all." if chosen != "all" else "",
        )
    if not calls:
        raise UsageError(f"the trace does not call {name}", hint="`opreplay inspect TRACE` lists its ops.")
    sound = [call for call in calls if call.reason is None]
    if not sound:
        raise UsageError(f"no call of {name} in the trace can be repeated: {calls[0].reason}")
    fits = [call for call in sound if COPIES * need_of(call).total <= room]
    if not fits:
        need = min(need_of(call).total for call in sound)
        raise UsageError(
            f"the smallest recorded call of {name} needs {COPIES} times {need:,} bytes, but only "
            f"{room:,} are available",
            hint="Give a smaller call: --shapes.",
        )
    return tuple(fits[:MOST_RECORDED]), tuple(_notes_on(calls, len(sound), len(fits)))


def _notes_on(calls: Sequence[ReplayOp], sound: int, fits: int) -> Iterator[str]:
    """Yield notes on recorded calls that are not tried.

    `sound` is how many calls can be repeated. `fits` is how many of these fit into memory.
    """
    if len(calls) > sound:
        reason = next(call.reason for call in calls if call.reason is not None)
        yield f"{len(calls) - sound} recorded calls cannot be made again: {reason}"
    if sound > fits:
        yield f"{sound - fits} recorded calls need too much memory for this machine"
    if fits > MOST_RECORDED:
        yield f"the {MOST_RECORDED} heaviest of {fits} recorded calls are tried"


def _opened(trace: Source, name: str, device: str) -> OpenTrace:
    """Open a trace and select all calls of an op, at any nesting level. A plan is opened without a selection."""
    whole = open_trace(trace, device=device)
    if isinstance(whole.read, ReplayPlan):
        return whole
    return open_trace(whole.read if isinstance(whole.read, Trace) else trace, device=device, select="all", include=name)


def _refuse_what_workers_lack(op: str) -> None:
    """Raise UsageError for an executor that this program itself registered. Worker processes do not have it."""
    from opreplay.initializers.user_code import PROGRAM
    from opreplay.replay.resolve.user.executors import EXECUTORS

    entry = EXECUTORS.find(op) if "::" in op else None
    if entry is not None and entry.source == PROGRAM:
        raise UsageError(
            f"worker processes do not have the executor {entry.shown}, which this program registered",
            hint=(
                'Check in this process with isolation="none", or put the executor into a file: plugins=("my_ops.py",).'
            ),
        )
