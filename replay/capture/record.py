"""Runs a step once under the recorder, on fake tensors or on real ones, and builds the plan."""

from __future__ import annotations

import gc
from collections.abc import Callable, Set
from contextlib import nullcontext
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import msgspec
import torch

from opreplay.replay.capture import graphs
from opreplay.replay.capture.calls.arguments import metas_of
from opreplay.replay.capture.calls.fakes import Fakes
from opreplay.replay.capture.calls.module_tracker import ModuleTracker
from opreplay.replay.capture.calls.recorder import Look, Recorder
from opreplay.replay.capture.calls.storages import Storages, inner_tensors
from opreplay.replay.capture.failures import explained
from opreplay.replay.capture.step import Step, named_tensors
from opreplay.replay.ir.captured import PHASES, Capture, CapturedOutput, LikeDevice, StepPhase, Via
from opreplay.replay.ir.model import MAX_CALLS, RecordedSequence, ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import tensors_of
from opreplay.replay.plan.passes import by_recorded_time
from opreplay.replay.plan.recorded.ops import COUNTER

Make = Callable[[], Step]
_CachedFunction = type(lru_cache(str))
_cached_functions: WeakSet[Any] = WeakSet()
"""All cached functions seen so far. They are kept because gc does not list objects that `gc.freeze` has set aside."""
_misses_without: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Cached function → its misses when it held no tensor and nothing that could be given one. It need not be searched
again until it misses again.
"""
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
"""Types of most of what is cached."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The results of running a step under the recorder."""

    recorder: Recorder
    storages: Storages
    tracker: ModuleTracker
    outputs: tuple[CapturedOutput, ...]
    returned: Any
    step: Step
    notes: tuple[str, ...] = ()
    """Assumptions about values."""
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of `Capture` (about the step) that the run determined."""


def record(
    make: Make,
    *,
    real: bool = False,
    seed: int = 0,
    look: Callable[[Storages], Look] | None = None,
    via: Via = "dispatch",
    decompose: bool = False,
    device: LikeDevice = "cpu",
) -> Recording:
    """Create a step and run it once.

    On real tensors, `torch.manual_seed(seed)` is called before the creation and again before the run. Calls are
    recorded as torch makes them on `device`. Raises UsageError with the user's line if the step cannot be run this way.
    """
    fakes = None if real else Fakes()
    storages = Storages(None if fakes is None else fakes.of)
    tracker = ModuleTracker(storages, device=device)
    looking = None if look is None else look(storages)
    recorder = Recorder(storages, tracker, fakes=fakes, look=looking, device=device)
    forget_cached_tensors()
    with nullcontext() if fakes is None else fakes.entered(), explained(recorder, real=real):
        if real:
            torch.manual_seed(seed)
        with nullcontext() if fakes is None else fakes.constructing():
            step = make()
        as_calls = via == "dispatch" and step.program is None
        if step.root is not None and via != "export":  # an exported program has parameters of its own
            tracker.register(step.root)
        for name, tensor in named_tensors(step.inputs):
            storages.describe(tensor, "input", name)
        if real:
            torch.manual_seed(seed)
        try:
            with tracker.following() if as_calls else nullcontext(), storages.watching_resizes():
                returned, facts = _run(step, recorder, tracker, fakes, via=via, decompose=decompose)
            tracker.mark_gradients()
            outputs = _outputs(returned, storages, fakes)
        finally:
            if fakes is not None:
                tracker.restore()
    return Recording(
        recorder=recorder,
        storages=storages,
        tracker=tracker,
        outputs=outputs,
        returned=returned,
        step=step,
        notes=() if fakes is None else fakes.known.notes,
        facts=facts,
    )


def forget_cached_tensors() -> None:
    """Empty the function caches (`functools.lru_cache`) that hold tensors. Those tensors are fake or were computed in
    another run.
    """
    _cached_functions.update(each for each in gc.get_referrers(_CachedFunction) if type(each) is _CachedFunction)
    for cached in list(_cached_functions):
        found = cached.cache_info()
        if not found.currsize or _misses_without.get(cached) == found.misses:
            continue
        holds, may_be_given = _searched_for_tensors(cached)
        if holds:
            cached.cache_clear()
        elif not may_be_given:
            _misses_without[cached] = found.misses


def _searched_for_tensors(cached: Any) -> tuple[bool, bool]:
    """Check whether a tensor is among the results or arguments that are cached for a function, and whether a list or
    dict among them may be given one later.
    """
    attributes = vars(cached)
    waiting = [each for each in gc.get_referents(cached) if each is not attributes]
    mutable = -1  # the dict of the entries is no entry
    while waiting:
        value = waiting.pop()
        if type(value) in _PLAIN:
            continue
        if isinstance(value, torch.Tensor):
            return True, True
        mutable += isinstance(value, dict | list)
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, list | tuple):
            waiting += value  # pyright: ignore[reportUnknownArgumentType]
    return False, mutable > 0


def _run(
    step: Step, recorder: Recorder, tracker: ModuleTracker, fakes: Fakes | None, *, via: Via, decompose: bool
) -> tuple[Any, dict[str, Any]]:
    """Run a step as `via` says; return its result and the fields of `Capture` that the run determined."""
    if step.program is not None:
        return graphs.run_program(step.program, step, recorder, tracker, fakes, decompose=decompose), {}
    if via == "export":
        return graphs.run_exported(step, recorder, tracker, fakes, decompose=decompose), {}
    if via == "compile":
        compiled = graphs.Compiled(recorder, tracker)
        returned = compiled.run(step)
        return returned, {"graphs": compiled.graphs, "graph_breaks": compiled.breaks}
    taken_for_real = nullcontext() if fakes is None else fakes.taken_for_real()
    with recorder.without_mode.following(), taken_for_real, recorder:
        return step.run(), {}


def plan_of_recording(
    recording: Recording, *, source: str, via: Via = "dispatch", real: bool = False, **facts: Any
) -> ReplayPlan:
    """Return the plan of a recording; `facts` are fields of `Capture`."""
    recorder, storages = recording.recorder, recording.storages
    ops = _counting_on_host(recorder, storages, recording.tracker.counters)
    notes = (*facts.pop("notes", ()), *recording.notes, *recording.tracker.notes)
    capture = Capture(
        notes=notes,
        via=via,
        real=real,
        torch_version=str(torch.__version__),
        flops=flops_by_phase(ops, recorder.calls, recorder.phases),
        peaks=storages.peaks(recorder.phases),
        storages=storages.listed(),
        outputs=recording.outputs,
        **recording.facts,
        **facts,
    )
    ids = tuple(dict.fromkeys(op.id for op in ops))
    place = {id_: number for number, id_ in enumerate(ids)}
    calls = [place[ops[index].id] for index in recorder.calls]
    sequence = RecordedSequence(
        step="",
        steps=1,
        dur_us=0.0,
        ids=ids,
        calls=tuple(calls[:MAX_CALLS]),
        host_us=(0.0,) * min(len(calls), MAX_CALLS),
        memories=tuple(recorder.memories[:MAX_CALLS]),
        phases=tuple(recorder.phases[:MAX_CALLS]),
        modules=tuple(recorder.modules[:MAX_CALLS]),
        module_names=recording.tracker.names,
        places=storages.places,
        cut=max(0, len(calls) - MAX_CALLS),
    )
    plan = ReplayPlan(
        source=source,
        selection="all",
        device_us_total=0.0,
        host_us_total=0.0,
        ops=_merged(ops),
        sequence=sequence,
        captured=True,
        capture=capture,
    )
    return by_recorded_time(plan)


def _counting_on_host(recorder: Recorder, storages: Storages, counters: Set[int]) -> tuple[ReplayOp, ...]:
    """Return all ops. An op is marked if all its calls work on an optimizer's step counters.

    The marked ops run on the host even if the step runs on a device, as in a trace (`traces.links.optimizer_counters`).
    """
    if not counters:
        return recorder.ops
    places = storages.places
    others: set[int] = set()
    counting: set[int] = set()
    for index, (taken, _) in zip(recorder.calls, recorder.memories, strict=True):
        counts = any(places[memory][0] in counters for memory in taken if memory >= 0)
        (counting if counts else others).add(index)
    return tuple(
        msgspec.structs.replace(op, on_host=True, assumptions=(*op.assumptions, *COUNTER))
        if index in counting and index not in others and not any(meta.shape for meta in tensors_of(op) if meta)
        else op
        for index, op in enumerate(recorder.ops)
    )


def flops_by_phase(ops: tuple[ReplayOp, ...], calls: list[int], phases: list[StepPhase]) -> dict[StepPhase, int]:
    """Return the FLOPs of each phase; only ops for which torch has a formula are counted."""
    sums: dict[StepPhase, int] = {phase: 0 for phase in PHASES if phase in phases}
    for index, phase in zip(calls, phases, strict=True):
        sums[phase] += ops[index].flops or 0
    return sums


def _merged(ops: tuple[ReplayOp, ...]) -> tuple[ReplayOp, ...]:
    """Merge ops with the same id, because a plan records nothing that distinguishes them."""
    by_id: dict[str, ReplayOp] = {}
    for op in ops:
        known = by_id.get(op.id)
        by_id[op.id] = op if known is None else msgspec.structs.replace(known, count=known.count + op.count)
    return tuple(by_id.values())


def _outputs(returned: Any, storages: Storages, fakes: Fakes | None) -> tuple[CapturedOutput, ...]:
    outputs = []
    for name, tensor in named_tensors(returned):
        for inner in inner_tensors(tensor):
            plain = inner if fakes is None else fakes.of(inner)
            (meta,) = metas_of([plain])
            if meta is not None:
                outputs.append(CapturedOutput(name=name, tensor=meta, memory=storages.memory(plain)))
    return tuple(outputs)
