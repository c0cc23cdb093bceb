# pyright: strict
"""Timeline of a captured step on a simulated device. The host dispatches the calls one by one, and the device executes
them in order.

Nothing was recorded. The host time of a call is an assumption with an error band, and `ascend` predicts the device
times. This module only combines the two.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec
import numpy as np

from opreplay.replay.ascend.simulate.coverage import measured_text
from opreplay.replay.ascend.simulate.step import OpStep, Step
from opreplay.replay.ir.model import RecordedSequence, ReplayOp, ReplayPlan
from opreplay.replay.ir.step import ModuleTime
from opreplay.replay.timeline.changes import (
    AS_LONG_AS_LONGEST,
    fused_patterns,
    parsed_value,
    refuse_combination,
    scalings,
)
from opreplay.replay.timeline.measured import MeasuredHost
from opreplay.replay.timeline.modules import DEEPEST, as_tree
from opreplay.replay.timeline.offload import BLOCKING, DISPATCH_BAND, DISPATCH_US, HOST_RATIO
from opreplay.replay.timeline.simulated import LATENCY_BAND, LAUNCH_LATENCY_US, TASK_GAP_US
from opreplay.traces.arrays import Bools, Floats
from opreplay.traces.errors import TraceError, UsageError
from opreplay.traces.sums import summed
from opreplay.traces.times.kernel_classes import class_named, class_of_op

SCHEMA_VERSION = 1
"""Version of the JSON format. History: 1 is the first version."""
BOUND_SHARE = 0.9
"""Share of the step time that the host or the device must need alone to count as the step's bound.

The host bounds a step that would still take this share of its time without device work. The same holds for the device
without host work.
"""
VIEW_US = 2.0
"""Assumed host time, in µs, of a call that starts no kernel, e.g. a view; its error band is `DISPATCH_BAND`."""
PYTHON_US = 23.0 * HOST_RATIO
"""Python time between two calls that start kernels, in eager models, in µs.

23 µs is the median of five public H100 traces of transformers, which have 10 to 42 µs each. It is unknown how the model
is served. Therefore only the upper end of the band includes this time, and the step time excludes it.
"""
GRAPH = ("graph", "cudagraph", "aclgraph")
"""Names of the change that replays the whole step as one captured graph, launched once by the host."""
CHANGES = "Write 'PATTERN=0.5x', 'fuse OP,OP' or 'cudagraph'."
OUTSIDE = "(in no module below the model)"
"""Row of the table for calls made by the outermost module itself, by a numbered module directly in it, or outside all
modules.
"""
COPIES = 3
"""Number of consecutive steps to schedule. After these, the step time is constant, because the host either runs ahead
or waits.
"""


class CapturedTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a step on one device, in µs."""

    step_us: float
    """Time from the completion of the previous step to the completion of this one."""
    low_us: float
    high_us: float
    """Upper end of the 80 % band, from the errors of kernel times, of the host time per call, and of launch
    latencies.
    """
    host_us: float
    """Time that the host takes to dispatch the step."""
    device_us: float
    """Time from the start of the first kernel to the end of the last one."""
    computing_us: float
    communication_us: float
    idle_us: float
    """Rest of the step: the device waits for the host, or is idle between two tasks."""
    bound: str
    """What bounds the step: "host", "device" or "both".

    "host": without device work, the step would still take at least 90 % as long. "device": without host work, it would.
    "both": host and device take turns.
    """


class CapturedChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change, with the resulting step time on each device."""

    change: str
    matched: int
    """Number of calls that the change affects."""
    socs_us: dict[str, float]


class CapturedTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """A captured step on simulated devices."""

    schema_version: int = SCHEMA_VERSION
    source: str
    fused: bool | None = None
    """Whether fused kernels, as inference servers use them, replace some of the calls. None for a step of the user's
    own code.
    """
    unfused: tuple[str, ...] = ()
    """Parts of a fused step that no fused kernel replaced."""
    calls: int
    unpredicted_calls: int
    """Number of calls without a prediction. They take no time here, so the reported step time is a lower bound."""
    unpredicted: tuple[str, ...]
    """Ops of the calls without a prediction."""
    host_call_us: float
    """Host time assumed for a call that starts kernels and whose host time was not measured."""
    host_measured_calls: int = 0
    """Number of calls whose host time was measured."""
    socs: dict[str, CapturedTimes]
    phases_us: dict[str, dict[str, float]]
    """Device time by device and by phase of a training step."""
    modules: tuple[ModuleTime, ...]
    """Device time by module on the first device. `path_us` is 0, because there is no critical path."""
    what_if: tuple[CapturedChange, ...] = ()
    notes: tuple[str, ...] = ()


class _Calls(msgspec.Struct, frozen=True):
    """The calls of the step in order, on one device."""

    device_us: Floats
    kernels: Floats
    host_us: Floats
    host_band: Floats
    """Factor of the 80 % band around each call's host time; 1.0 if that time was measured."""
    waits: Floats
    """1.0 for a call whose result the host needs, 0.0 for any other."""
    talks: Floats
    """1.0 for a collective, 0.0 for any other call."""
    host_scale: float
    """Factor by which the assumed host times of calls that were not measured are multiplied."""


def _whole_sequence(plan: ReplayPlan) -> RecordedSequence:
    """Return the plan's calls. Raises UsageError if the plan was not captured, or if its calls are truncated."""
    sequence = plan.sequence
    if not plan.captured or sequence is None:
        raise UsageError(
            f"{plan.source} does not contain every call of one step",
            hint="`opreplay capture` writes a complete plan; for a trace, name the trace itself.",
        )
    if sequence.cut:
        raise UsageError(
            f"{plan.source} contains the first {len(sequence.calls):,} calls of its step and lacks {sequence.cut:,}",
            hint="Capture a smaller step: fewer tokens or layers.",
        )
    return sequence


def captured_timeline(
    plan: ReplayPlan,
    steps: Sequence[Step],
    *,
    host_scale: float = 1.0,
    what_if: Sequence[str] = (),
    host: MeasuredHost | None = None,
) -> CapturedTimeline:
    """Compute the times of a captured step on devices; `steps` are the predictions, one per device.

    `host` has host times of the calls, measured on a machine. Calls without a measured time get the assumed time,
    scaled by the machine's speed in the measured calls.

    Raises UsageError for a plan that was not captured, for truncated calls, and for a `host` that has none of the
    calls. Raises TraceError for `what_if` text that is not a change.
    """
    sequence = _whole_sequence(plan)
    if not steps:
        raise UsageError("a captured step has no recorded times", hint="Name a simulated device: --soc 910b3.")
    ops = {op.id: op for op in plan.ops}
    called = [ops[sequence.ids[index]] for index in sequence.calls]
    calls = _calls_on(called, steps, host_scale, host)
    first = calls[steps[0].device]
    call_us = DISPATCH_US * first.host_scale
    missing = _unpredicted(called, steps[0])
    return CapturedTimeline(
        source=plan.source,
        fused=None if plan.capture is None else plan.capture.fused,
        unfused=() if plan.capture is None else plan.capture.unfused,
        calls=len(called),
        unpredicted_calls=len(missing),
        unpredicted=tuple(dict.fromkeys(op.name for op in missing)),
        host_call_us=call_us,
        host_measured_calls=int((first.host_band == 1.0).sum()),
        socs={step.device: _times(calls[step.device], _bands(called, step)) for step in steps},
        phases_us={step.device: _phases(sequence, calls[step.device]) for step in steps},
        modules=_modules(sequence, first),
        what_if=tuple(_change(text, called, calls) for text in what_if),
        notes=(
            *_notes(missing, len(called), first),
            *(f"{step.device}: {text}" for step in steps if (text := measured_text(step.measured))),
            *(AS_LONG_AS_LONGEST,) * any(text.strip().startswith("fuse ") for text in what_if),
            *(() if plan.capture is None else plan.capture.all_notes),
        ),
    )


def _calls(called: Sequence[ReplayOp], step: Step, host_scale: float, host: MeasuredHost | None) -> _Calls:
    by_id: dict[str, OpStep] = {op.id: op for op in step.ops}
    device_us, kernels = np.zeros(len(called)), np.zeros(len(called))
    for place, op in enumerate(called):
        if (predicted := by_id.get(op.id)) is not None:
            device_us[place] = predicted.simulated.time_us
            kernels[place] = max(len(predicted.simulated.kernels), predicted.simulated.time_us > 0.0)
    assumed_us = np.where(kernels > 0, DISPATCH_US, VIEW_US)
    measured_us = np.full(len(called), np.nan)
    if host is not None:
        whole_us = [host.call_us.get(op.id, np.nan) for op in called]
        launch_us = [host.launch_us.get(op.id, np.nan) for op in called]
        measured_us = np.where(kernels > 0, launch_us, np.fmin(launch_us, whole_us))
    known = ~np.isnan(measured_us)
    speed = float(np.median(measured_us[known] / assumed_us[known])) if known.any() else 1.0
    return _Calls(
        device_us=device_us,
        kernels=kernels,
        host_us=np.where(known, measured_us, assumed_us * speed) * host_scale,
        host_band=np.where(known, 1.0, DISPATCH_BAND),
        host_scale=speed * host_scale,
        waits=np.array([float(op.name in BLOCKING and not op.on_host) for op in called]),
        talks=np.array([float(op.collective is not None) for op in called]),
    )


def _scheduled(calls: _Calls, *, latency_us: float = LAUNCH_LATENCY_US) -> tuple[float, float]:
    """Return (time per step in steady state, time from the first to the last kernel of that step), in µs."""
    device_us, kernels = calls.device_us.tolist(), calls.kernels.tolist()
    host_us, waits = calls.host_us.tolist(), calls.waits.tolist()
    host = device = completed = 0.0
    pace = window = 0.0
    for _ in range(COPIES):
        first = math.inf
        for us, count, dispatch, is_waited_for in zip(device_us, kernels, host_us, waits, strict=True):
            host += dispatch
            if count:
                start = max(host + latency_us, device + TASK_GAP_US * count)
                first = min(first, start)
                device = start + us
            if is_waited_for:
                host = max(host, device)
        before, completed = completed, max(host, device)
        pace, window = completed - before, max(0.0, device - first)
    return pace, window


def _times(calls: _Calls, band: tuple[Floats, Floats]) -> CapturedTimes:
    step_us, window_us = _scheduled(calls)
    replace = msgspec.structs.replace
    shorter, longer = band
    python_us = np.where((calls.host_band > 1.0) & (calls.kernels > 0), PYTHON_US * calls.host_scale, 0.0)
    slower = [
        _scheduled(replace(calls, device_us=longer))[0],
        _scheduled(replace(calls, host_us=calls.host_us * calls.host_band + python_us))[0],
        _scheduled(calls, latency_us=LAUNCH_LATENCY_US * LATENCY_BAND)[0],
    ]
    faster = [
        _scheduled(replace(calls, device_us=shorter))[0],
        _scheduled(replace(calls, host_us=calls.host_us / calls.host_band))[0],
        _scheduled(calls, latency_us=LAUNCH_LATENCY_US / LATENCY_BAND)[0],
    ]
    talking_us, working_us = float((calls.device_us * calls.talks).sum()), float(calls.device_us.sum())
    return CapturedTimes(
        step_us=step_us,
        low_us=max(0.0, step_us - math.sqrt(sum(max(0.0, step_us - us) ** 2 for us in faster))),
        high_us=step_us + math.sqrt(sum(max(0.0, us - step_us) ** 2 for us in slower)),
        host_us=float(calls.host_us.sum()),
        device_us=window_us,
        computing_us=working_us - talking_us,
        communication_us=talking_us,
        idle_us=max(0.0, step_us - working_us),
        bound=_bound(calls, step_us),
    )


def _bound(calls: _Calls, step_us: float) -> str:
    nothing, replace = np.zeros(len(calls.host_us)), msgspec.structs.replace
    host_alone_us = _scheduled(replace(calls, device_us=nothing))[0]
    device_alone_us = _scheduled(replace(calls, host_us=nothing))[0]
    if max(host_alone_us, device_alone_us) < BOUND_SHARE * step_us:
        return "both"
    return "host" if host_alone_us > device_alone_us else "device"


WORK = {
    "hbm": "memory",
    "core load": "memory",
    "l2": "memory",
    "link": "communication",
    "launch": "kernel launches",
}
"""Limit of a step for each bound of its kernels. Bounds that are not listed mean "compute"."""


def limit_of(times: CapturedTimes, step: Step) -> str:
    """Return what limits a step: "host", "compute", "communication", "kernel launches", or the name of a memory bound.

    A step limited by memory gets the bound with the most time: "hbm", "core load" or "l2". If host and device both
    limit the step, "host and " precedes the device's limit.
    """
    if times.bound == "host":
        return "host"
    by_limit = summed((WORK.get(bound, "compute"), us) for bound, us in step.by_bound.items())
    limit = max(by_limit, key=by_limit.__getitem__, default="compute")
    if times.communication_us > times.computing_us:
        limit = "communication"
    elif limit == "memory":
        limit = max((us, bound) for bound, us in step.by_bound.items() if WORK.get(bound) == limit)[1]
    return limit if times.bound == "device" else f"host and {limit}"


def _bands(called: Sequence[ReplayOp], step: Step) -> tuple[Floats, Floats]:
    """Return the device times of all calls, first for the lower and then for the upper end of the step's error band.

    All calls are scaled by one factor, because errors of similar kernels are correlated.
    """
    total = step.total_us or 1.0
    by_id = {op.id: op.simulated.time_us for op in step.ops}
    us = np.array([by_id.get(op.id, 0.0) for op in called])
    return us * (step.low_us / total), us * (step.high_us / total)


def _calls_on(
    called: Sequence[ReplayOp], steps: Sequence[Step], host_scale: float, host: MeasuredHost | None
) -> dict[str, _Calls]:
    """Return the calls for each device. Raises UsageError if `host` has no measured time of any call."""
    calls = {step.device: _calls(called, step, host_scale, host) for step in steps}
    if host is not None and not any((of_device.host_band == 1.0).any() for of_device in calls.values()):
        raise UsageError(
            "the results of --host contain no host times of this step",
            hint="Measure the plan itself: `opreplay run PLAN --output HOST.jsonl`.",
        )
    return calls


def _unpredicted(called: Sequence[ReplayOp], step: Step) -> list[ReplayOp]:
    predicted = {op.id for op in step.ops}
    return [op for op in called if op.id not in predicted]


def _phases(sequence: RecordedSequence, calls: _Calls) -> dict[str, float]:
    """Return device time by phase; empty for a step of one phase."""
    spent = summed(zip(sequence.phases, calls.device_us.tolist(), strict=False))
    return spent if len(spent) > 1 else {}


def _modules(sequence: RecordedSequence, calls: _Calls) -> tuple[ModuleTime, ...]:
    """Return device time by module path, with `layers.0` and `layers.1` folded to `layers.N`."""
    if not sequence.modules:
        return ()
    times: defaultdict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    modules: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for number, us in zip(sequence.modules, calls.device_us.tolist(), strict=True):
        path = sequence.module_names[number].split(".") if number >= 0 else []
        for depth, part in enumerate(path[:DEEPEST], 1):
            if part.isdigit() or not part:
                continue  # a layer is told by the list that holds it
            numbered = path[depth : depth + 1]
            folded = tuple(part for part in path[:depth] if not part.isdigit())
            times[folded][0] += us
            modules[folded].add(".".join(path[:depth] + [number for number in numbered if number.isdigit()]))
        if not any(part and not part.isdigit() for part in path[:DEEPEST]):
            times[OUTSIDE,][0] += us
            modules[OUTSIDE,].add(OUTSIDE)
    if times.keys() == {(OUTSIDE,)}:
        return ()
    return as_tree(times, modules)


def _scaled(text: str, called: Sequence[ReplayOp], calls: dict[str, _Calls]) -> tuple[dict[str, _Calls], Bools]:
    """Return the calls with changed times for ops whose names match, and a mask of these calls. Raises TraceError."""
    if "=" not in text:
        raise TraceError(f"{text!r} is not a change of a captured step", hint=CHANGES)
    any_hit, replace = np.zeros(len(called), bool), msgspec.structs.replace
    for pattern, value in scalings(text):
        number, is_factor = parsed_value(value)
        kind = class_named(pattern)
        hit = np.array(
            [fnmatchcase(op.name, pattern) if kind is None else class_of_op(op.name) == kind for op in called], bool
        )
        us = {name: soc.device_us * number if is_factor else number for name, soc in calls.items()}
        calls = {name: replace(soc, device_us=np.where(hit, us[name], soc.device_us)) for name, soc in calls.items()}
        any_hit |= hit
    return calls, any_hit


def _change(text: str, called: Sequence[ReplayOp], calls: dict[str, _Calls]) -> CapturedChange:
    """Apply a change: replay as a captured graph, fuse calls into one kernel, or change times of matching ops."""
    replace, hit = msgspec.structs.replace, np.ones(len(called), bool)
    refuse_combination(text)
    word, _, listed = text.strip().partition(" ")
    if text.strip().lower() in GRAPH:
        changed = {name: replace(soc, host_us=np.zeros(len(called))) for name, soc in calls.items()}
    elif word == "fuse":
        patterns = fused_patterns(listed)
        changed = {name: _fused(soc, called, patterns) for name, soc in calls.items()}
        first = next(iter(calls))
        hit = changed[first].kernels < calls[first].kernels
    else:
        changed, hit = _scaled(text, called, calls)
    socs_us = {name: _scheduled(soc)[0] for name, soc in changed.items()}
    return CapturedChange(change=text, matched=int(hit.sum()), socs_us=socs_us)


def _fused(calls: _Calls, called: Sequence[ReplayOp], patterns: Sequence[str]) -> _Calls:
    """Merge consecutive calls of matching ops into one kernel as long as the longest call.

    Adjacent calls of the same op are not merged. The host still makes each call.
    """
    device_us, kernels = calls.device_us.copy(), calls.kernels.copy()
    before: int | None = None
    for place in np.flatnonzero(calls.kernels > 0).tolist():
        name = called[place].name
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            before = None
            continue
        if before is not None and called[before].name != name:
            device_us[place] = max(device_us[place], device_us[before])
            device_us[before] = kernels[before] = 0.0
            kernels[place] = 1.0
        before = place
    return msgspec.structs.replace(calls, device_us=device_us, kernels=kernels)


def _notes(missing: Sequence[ReplayOp], calls: int, of_host: _Calls) -> tuple[str, ...]:
    call_us, view_us = DISPATCH_US * of_host.host_scale, VIEW_US * of_host.host_scale
    measured = int((of_host.host_band == 1.0).sum())
    notes = [
        f"{measured} of {calls} calls have measured host times; the others take {of_host.host_scale:.2f} times the "
        "default host time (the median ratio of the measured calls)"
        if measured
        else "",
        f"the host takes {call_us:.3g} µs for a call that launches kernels (from a public torch_npu profile), "
        f"{view_us:.3g} µs for a call that launches none (assumed), within a factor of {DISPATCH_BAND:g}; "
        f"only the upper end of the band includes the Python between calls, {PYTHON_US:.0f} µs per call",
        f"a launch takes {LAUNCH_LATENCY_US:g} µs and the gap between tasks {TASK_GAP_US:g} µs (public 910B profiles); "
        "collectives do not overlap with compute kernels",
    ]
    if missing:
        notes.append(
            f"{len(missing)} of {calls} calls have no prediction and count as 0 µs, so the real step is longer"
        )
    return tuple(filter(None, notes))
