# pyright: strict
"""A step's host time by call stack: Python frames, modules, marked ranges and ops. Equal stacks are merged."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from opreplay.replay.timeline.graph.model import StepGraph
from opreplay.replay.timeline.names import MODULE, named_ranges, without_folders
from opreplay.replay.timeline.python_time import FRAMES
from opreplay.traces import Trace
from opreplay.traces.links.parents import nest

LEAST = 1 / 2000
"""Minimum share of the total time for a stack to be listed."""
DEEPEST = 40
_NUMBER = re.compile(r"_\d+$")
Kind = Literal["frame", "module", "op"]
OP: Kind = "op"


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one name from the same callers, merged."""

    name: str
    kind: Kind
    depth: int
    """Depth of the frame; 0 for the outermost caller."""
    start_us: float
    """Horizontal position in the flame graph. It is not a time, because calls are summed. Callees lie below their
    callers.
    """
    us: float
    before_us: float | None = None
    after_us: float | None = None
    """Time in the second step of a comparison; `us` is the longer of the two times."""


def compared_frames(before: Sequence[Frame], after: Sequence[Frame]) -> tuple[Frame, ...]:
    """Merge the stacks of two steps into one flame graph. Each frame is as wide as the longer of its two times."""
    first, second = _by_stack(before), _by_stack(after)
    stacks: dict[tuple[int, str], int] = {}
    kinds: dict[int, Kind] = {}
    numbers: dict[Stack, int] = {(): -1}
    both: dict[int, tuple[float, float]] = {}
    for stack in sorted({**first, **second}, key=len):
        kind = (first.get(stack) or second[stack])[0]
        number = stacks.setdefault((numbers[stack[:-1]], stack[-1]), len(stacks))
        numbers[stack], kinds[number] = number, kind
        both[number] = first.get(stack, (kind, 0.0))[1], second.get(stack, (kind, 0.0))[1]
    us = defaultdict[int, float](float, {number: max(times) for number, times in both.items()})
    inner = defaultdict[int, float](float)
    for (caller, _), number in reversed(stacks.items()):  # callees come after their callers
        us[number] = max(us[number], inner[number])
        inner[caller] += us[number]
    return _laid_out(stacks, kinds, us, both)


Stack = tuple[str, ...]
"""Names of callers, outermost first, and of the frame itself."""


def _by_stack(frames: Sequence[Frame]) -> dict[Stack, tuple[Kind, float]]:
    """Return the kind and time of each stack. Callers come before their callees, as `frames_of` returns them."""
    out: dict[Stack, tuple[Kind, float]] = {}
    stack: Stack = ()
    for frame in frames:
        stack = (*stack[: frame.depth], frame.name)
        out[stack] = frame.kind, frame.us
    return out


def frames_of(trace: Trace, graph: StepGraph) -> tuple[Frame, ...]:
    """Return the stacks of a step's host threads, callers before callees; empty if no frames are recorded."""
    us: defaultdict[int, float] = defaultdict(float)
    stacks: dict[tuple[int, str], int] = {}
    kinds: dict[int, Kind] = {}
    ranges, ops = named_ranges(trace, FRAMES), trace.ops
    low, high = graph.step.start_ns, graph.step.end_ns
    for track in {lane.track for lane in graph.lanes if not lane.device}:
        mine = ranges.of(track)
        calls = np.flatnonzero((mine.start_ns >= low) & (mine.start_ns + mine.dur_ns <= high))
        rows = np.flatnonzero((ops.track == track) & (ops.start_ns >= low) & (ops.start_ns + ops.dur_ns <= high))
        start = np.concatenate([mine.start_ns[calls], ops.start_ns[rows]])
        dur = np.concatenate([mine.dur_ns[calls], ops.dur_ns[rows]]).astype(np.int64)
        order, parents = nest(np.arange(len(start)), start, dur)
        labels: list[tuple[str, Kind]] = [
            *(_named(mine.names[int(mine.label[row])]) for row in calls.tolist()),
            *((trace.signatures[int(ops.signature[row])].name, OP) for row in rows.tolist()),
        ]
        stack_of: list[int] = []
        pairs: Iterable[tuple[int, int]] = zip(order.tolist(), parents.tolist(), strict=True)
        for row, parent in pairs:
            name, kind = labels[row]
            stack = stacks.setdefault((stack_of[parent] if parent >= 0 else -1, name), len(stacks))
            stack_of.append(stack)
            kinds[stack] = kind
            us[stack] += float(dur[row]) / 1e3
    if not len(ranges.label) or all(kind == OP for kind in kinds.values()):
        return ()
    return _laid_out(stacks, kinds, us)


def _named(name: str) -> tuple[str, Kind]:
    if name.startswith(MODULE):
        return _NUMBER.sub("", name.removeprefix(MODULE)), "module"
    return without_folders(name), "frame"


def _laid_out(
    stacks: dict[tuple[int, str], int],
    kinds: dict[int, Kind],
    us: defaultdict[int, float],
    both: Mapping[int, tuple[float, float]] | None = None,
) -> tuple[Frame, ...]:
    inner: defaultdict[int, list[tuple[float, str, int]]] = defaultdict(list)
    for (caller, name), stack in stacks.items():
        inner[caller].append((-us[stack], name, stack))
    least_us = LEAST * -sum(part for part, _, _ in inner[-1])
    out: list[Frame] = []

    def lay(caller: int, depth: int, at: float) -> None:
        for part, name, stack in sorted(inner[caller]):
            if -part < least_us or depth >= DEEPEST:
                break
            was, now = (None, None) if both is None else both[stack]
            frame = Frame(name=name, kind=kinds[stack], depth=depth, start_us=at, us=-part, before_us=was, after_us=now)
            out.append(frame)
            lay(stack, depth + 1, at)
            at -= part

    lay(-1, 0, 0.0)
    return tuple(out)
