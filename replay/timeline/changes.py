# pyright: strict
"""What-if changes given as text: their grammar, their assumptions, and their effect on the times of a step's graph."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import msgspec
import numpy as np

from opreplay.replay.ir.labels import is_label
from opreplay.replay.timeline.dispatch import elementwise_runs, ops_of_tasks, stretches_of
from opreplay.replay.timeline.graph.model import COLLECTIVE, KERNEL, LAUNCH, NEVER, NO_OP, STREAM, SYNC, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule, step_length
from opreplay.replay.timeline.graph.slowed import slowed_schedule
from opreplay.replay.timeline.names import Names, matches_kernel, op_parents
from opreplay.traces.arrays import Bools, Floats, Ints, distinct
from opreplay.traces.errors import TraceError
from opreplay.traces.links.parents import among_or_around, among_or_inside, outermost_of
from opreplay.traces.times.breakdown import classes_of_launches, classes_on_host
from opreplay.traces.times.kernel_classes import CLASSES, class_named

_FACTOR = re.compile(r"^(\d+(?:\.\d+)?|\.\d+)(x|us|ms|s)?$")
_UNIT_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
_HINT = (
    "A change is 'PATTERN=0.5x', 'PATTERN=0', 'PATTERN=120us', several of these with commas between, "
    "'fuse OP,OP', 'fuse elementwise', 'dtype bf16', 'cudagraph' or 'overlap comm'. PATTERN is the name of ops or "
    f"kernels, or a class of work: {', '.join(name.lower() for name in CLASSES)}."
)
_GRAPH = ("cudagraph", "graph", "aclgraph")
_WHOLE = re.compile(rf"({'|'.join(_GRAPH)}|overlap comm(unication)?|dtype .*|fuse .*)", re.IGNORECASE)
"""Pattern of changes of the whole step. Commas cannot combine such a change with other changes."""
_WIDTHS = {
    "bf16": 2,
    "bfloat16": 2,
    "fp16": 2,
    "float16": 2,
    "half": 2,
    "fp8": 1,
    "float8": 1,
    "int8": 1,
    "fp32": 4,
    "float32": 4,
}
LEAST_GAPS, FEW_GAPS = 0.1, 10
"""Quantile of the gaps before ops, and the number of gaps it needs at least. The quantile is taken as the overhead of a
call from Python.
"""
MOST_CALL_US = 2.0
"""Maximum overhead, in µs, of a call from Python.

If even the shortest gap before an op is longer, the rest of the gap is other work.
"""
GRAPH_GAP_US = 1.0
"""Gap in µs between two kernels of a captured graph if the recording shows none. It is the median of public CUDA
traces.
"""
WORTH = 0.01
"""Minimum loss of kernel speed that is reported, as a share."""
_RECORDED_WIDTHS = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2}
"""Bytes per element of the floating-point types, by their names in traces."""


class Edited(msgspec.Struct):
    """A step's graph with changed times."""

    graph: StepGraph
    durations_us: Floats
    lags_us: Floats
    slices_us: Floats
    """Host time of each slice. A change scales the result of earlier changes, so factors on one call multiply."""
    inside_us: Floats
    """Host time of each slice: as recorded, until a change scales it.

    It is used only inside offloaded ops (host ops that became device tasks), to compute the share of each slice in the
    op's time.
    """
    left_out: Bools
    """Mask of slices between ops that were already shortened. They lost the Python time of a removed call."""
    unchanged_us: Floats
    """Durations before any change: recorded or, on a simulated device, predicted."""
    notes: list[str] = msgspec.field(default_factory=list[str])
    """Assumptions made by the changes."""
    matched: int = 0
    """Number of device tasks, or of intervals of host time, that were changed."""
    width: int | None = None
    """Bytes per element of the widest floating-point type after a `dtype` change; None: as recorded."""
    overlap: bool = False
    """Whether collectives overlap with everything else."""
    offloaded: bool = False
    """Whether ops that the host ran are device tasks here. If so, work inside them takes no host time."""

    @classmethod
    def unchanged(
        cls,
        graph: StepGraph,
        durations_us: Floats | None = None,
        lags_us: Floats | None = None,
        slices_us: Floats | None = None,
        *,
        matched: int = 0,
        offloaded: bool = False,
    ) -> Edited:
        """Return the edit without any change, with the given times instead of the recorded ones."""
        durations_us = graph.nodes.dur_us if durations_us is None else durations_us
        return cls(
            graph,
            durations_us.copy(),
            (graph.edges.lag_us if lags_us is None else lags_us).copy(),
            (graph.slices.dur_us if slices_us is None else slices_us).copy(),
            graph.slices.dur_us.copy(),
            np.zeros(len(graph.slices.dur_us), bool),
            durations_us.copy(),
            matched=matched,
            offloaded=offloaded,
        )

    def schedule(self, lags_us: Floats | None = None) -> Schedule:
        """Return the schedule of the changed graph; `lags_us`, if given, replaces the edit's own lags."""
        lags_us = self.lags_us if lags_us is None else lags_us
        if not self.overlap:
            return slowed_schedule(self.graph, self.durations_us, lags_us)
        return _overlapped(self.graph, self.durations_us, lags_us)


class Unmatched(TraceError):
    """Raised if a change matches nothing in the step."""


def apply_change(names: Names, graph: StepGraph, change: str, before: Edited | None = None) -> Edited:
    """Apply a change to `before` (default: the step as recorded) and return the result. `before` is not modified.

    The result keeps notes, matches and the overlap of `before`. Raises TraceError for text that is not a change, and
    Unmatched if the change matches nothing in the step.
    """
    before = Edited.unchanged(graph) if before is None else before
    out = msgspec.structs.replace(
        before,
        durations_us=before.durations_us.copy(),
        lags_us=before.lags_us.copy(),
        slices_us=before.slices_us.copy(),
        inside_us=before.inside_us.copy(),
        left_out=before.left_out.copy(),
        notes=[],
        matched=0,
    )
    text = change.strip()
    _apply(names, out, text)
    if not out.matched:
        raise _unmatched(names, graph, text, out.notes)
    out.notes[:0] = before.notes
    out.matched += before.matched
    if not out.overlap and (graph.nodes.kind == COLLECTIVE).any() and graph.on_device:
        out.notes.append(f"kernels that run during collectives lose {_loss_text(graph)}")
    return out


def _loss_text(graph: StepGraph) -> str:
    """Return text about how much slower kernels are during collectives, with the range, e.g. "20 % of their speed, as
    ...".
    """
    lost, (low, high) = graph.lost_during_collectives, graph.lost_bounds
    loss = (
        f"{100 * lost:.0f} % of their speed, as measured on the steps of the trace"
        if lost >= WORTH
        else "no speed that the trace shows"
    )
    if high - low < WORTH:
        return loss
    return f"{loss}; the range of the result allows for losses of {100 * low:.0f} % to {100 * high:.0f} %"


def _apply(names: Names, out: Edited, text: str) -> None:
    """Apply the change described by `text` to `out`. Raises TraceError for text that is not a change."""
    refuse_combination(text)
    word, _, rest = text.partition(" ")
    if rest.strip() and word in _RULES:
        _RULES[word](names, out, rest)
    elif text.lower() in _GRAPH:
        _captured(names, out)
    elif text.lower() in ("overlap comm", "overlap communication"):
        out.overlap = True
        out.matched = int((out.graph.nodes.kind == COLLECTIVE).sum())
        out.notes.append(
            "no task waits for a collective and collectives slow nothing down, but the step ends only after all of them"
        )
    elif "=" in text:
        for pattern, value in scalings(text):
            was_us = out.durations_us.copy()
            _scale(names, out, pattern, value)
            if ((was_us != out.unchanged_us) & (out.durations_us != was_us)).any() and TWICE not in out.notes:
                out.notes.append(TWICE)
    else:
        raise TraceError(f"{text!r} is not a change", hint=_HINT)


TWICE = "several changes match the same work: their factors multiply"


def refuse_combination(text: str) -> None:
    """Raise TraceError if commas combine a change of the whole step with another change."""
    parts = [part.strip() for part in text.split(",")]
    whole = next((part for part in parts if _WHOLE.fullmatch(part)), "")
    is_list = whole.startswith("fuse ")
    others = [part for part in parts if part != whole and ("=" in part or not is_list)]
    if not whole or not others:
        return
    raise TraceError(
        f"{whole!r} cannot be combined with {', '.join(map(repr, others))} by commas: commas join only "
        "PATTERN=VALUE changes, and this one changes the whole step",
        hint="Repeat the option instead, which also shows all changes together: "
        + " ".join(f"--what-if {shlex.quote(part)}" for part in (whole, *others)),
    )


def scalings(text: str) -> list[tuple[str, str]]:
    """Return the (pattern, value) pairs of a change like "aten::mm=0.5x,nccl*=0". Raises TraceError for other text."""
    pairs: list[tuple[str, str]] = []
    for part in text.split(","):
        pattern, equals, value = part.strip().rpartition("=")
        if not equals or not pattern:
            raise TraceError(f"{part.strip()!r} is not a change", hint=_HINT)
        pairs.append((pattern.strip(), value.strip()))
    return pairs


def _unmatched(names: Names, graph: StepGraph, text: str, notes: Sequence[str]) -> Unmatched:
    """Return an error that says why a change matches nothing."""
    if "=" not in text:
        word = text.partition(" ")[0].lower()
        hint = f"{notes[0]}." if word == "fuse" and notes else _why_nothing(names, graph, word)
        return Unmatched("changes nothing in this step", hint=hint)
    if notes:
        return Unmatched("changes nothing in this step", hint=". ".join(notes))
    if _class_meant(names, text.partition("=")[0].strip()) is not None:
        listed = ", ".join(_classes(names, graph))
        return Unmatched("matches nothing in this step", hint=f"Classes of work here: {listed}.")
    heaviest = ", ".join(map(repr, heaviest_names(names, graph)))
    near = ", ".join(map(repr, nearest_names(names, graph, text)))
    near = f"the closest names in this step: {near}; " if near else ""
    accepted = (
        "Patterns match names of ops and kernels, and classes of work such as gemm; they do not match labels "
        "(record_function), modules or Python functions"
    )
    hint = f"{accepted}; {near}the names with the most time: {heaviest}."
    return Unmatched("matches nothing in this step", hint=hint)


def _why_nothing(names: Names, graph: StepGraph, word: str) -> str:
    """Return why `fuse`, `dtype`, `overlap` or `graph` changes nothing in this step, and what would change it."""
    if word == "fuse" and not graph.on_device:
        return (
            "Only device tasks are fused, and this step has none: fuse them on a simulated device (--soc 910b3), or "
            f"change host time: 'PATTERN=0.5x' with one of {', '.join(map(repr, heaviest_names(names, graph)))}."
        )
    if word == "fuse" and (pairs := _followers(names, graph)):
        return (
            "No tasks of these ops follow each other on one stream. The pairs with the most time that do: "
            f"{', '.join(pairs)}."
        )
    return {
        "fuse": "No tasks of these ops follow each other on one stream of a device.",
        "dtype": "No op whose kernels are known takes a wider floating-point dtype.",
        "overlap": "The step has no collectives.",
    }.get(word, "No launch of device work is recorded in the step, so there is nothing to capture.")


def _followers(names: Names, graph: StepGraph, count: int = 3) -> list[str]:
    """Return pairs of ops with consecutive kernels on a stream, as arguments of `fuse`; most time first."""
    nodes, edges = graph.nodes, graph.edges
    spent: defaultdict[str, float] = defaultdict(float)
    for edge in np.flatnonzero(edges.kind == STREAM).tolist():
        pair = [int(edges.source[edge]), int(edges.target[edge])]
        if any(nodes.kind[node] != KERNEL or nodes.owner[node] < 0 for node in pair):
            continue
        first, second = (names.op(int(nodes.owner[node])) for node in pair)
        if first != second:
            spent[f"'fuse {first},{second}'"] += float(nodes.dur_us[pair].sum())
    return sorted(spent, key=lambda pair: -spent[pair])[:count]


def heaviest_names(names: Names, graph: StepGraph, count: int = 6) -> list[str]:
    """Return the names with the most time in a step: of device tasks if there are any, otherwise of host ops."""
    spent: defaultdict[str, float] = defaultdict(float)
    tasks = np.flatnonzero(graph.nodes.name >= 0)
    for node in tasks.tolist():
        spent[names.task(node)] += float(graph.nodes.dur_us[node])
    if not graph.on_device:
        ops = graph.slices.op
        of_op = np.bincount(ops[ops >= 0], weights=graph.slices.dur_us[ops >= 0])
        for row in np.flatnonzero(of_op).tolist():
            spent[names.op(row)] += float(of_op[row])
    return [name[:60] for name in sorted(spent, key=lambda name: -spent[name])[:count]]


def nearest_names(names: Names, graph: StepGraph, change: str, count: int = 3) -> list[str]:
    """Return the step's op, kernel and work class names that are most similar to a change's patterns."""
    rows = graph.slices.op[graph.slices.op >= 0]
    tasks = np.flatnonzero(graph.nodes.name >= 0).tolist()
    there = {names.op(row) for row in distinct(rows).tolist()}
    there |= {names.task(node) for node in tasks} | {names.kernel(node) for node in tasks}
    plain = {name.rpartition("::")[2].lower()[:60]: name[:60] for name in sorted(there)}
    plain |= {name: name for name in _classes(names, graph)}
    near: list[str] = []
    for part in change.removeprefix("fuse ").split(","):
        word = part.partition("=")[0].strip(" *?").rpartition("::")[2].lower()
        near += [plain[word_near] for word_near in get_close_matches(word, list(plain), count, 0.5)] if word else []
    return list(dict.fromkeys(near))[:count]


def parsed_value(value: str) -> tuple[float, bool]:
    """Return (number, whether it is a factor such as "0.5x"). A time such as "120us" is returned in µs. A plain 0 is a
    time.
    """
    match = _FACTOR.match(value)
    if not match or (match[2] is None and float(match[1]) != 0.0):
        raise TraceError(f"{value!r} is neither a factor such as 0.5x nor a time such as 120us", hint=_HINT)
    if match[2] == "x":
        return float(match[1]), True
    return float(match[1]) * _UNIT_US.get(match[2] or "us", 1.0), False


def _scale(names: Names, out: Edited, pattern: str, value: str) -> None:
    """Set the time of device tasks with a matching op or kernel. If there are none, set the time of matching
    host ops.
    """
    number, factor = parsed_value(value)
    nodes = out.graph.nodes
    device = np.flatnonzero(nodes.name >= 0)
    kind = _class_meant(names, pattern)
    ops, hit = (
        _of_pattern(names, out.graph, device, pattern) if kind is None else _of_class(names, out.graph, device, kind)
    )
    chosen = device[hit]
    out.durations_us[chosen] = out.durations_us[chosen] * number if factor else number
    out.matched += len(chosen)
    if out.offloaded:
        ops = _scale_inside(names, out, device[~hit], ops, pattern, number, factor)
    if len(chosen):
        return  # a label or a view of a matching name is no work of what is meant
    before = out.matched
    launching = np.zeros(len(ops), bool)
    if len(device) and len(ops):
        launching[nodes.owner[device][nodes.owner[device] >= 0]] = True
        launching = _or_above(names, launching)
    _scale_host(names, out, ops & ~launching, number, factor)
    if out.matched > before and out.graph.on_device and not out.offloaded:
        out.notes.append(f"{pattern} launches no device work here, so its host time is changed")


def _of_pattern(names: Names, graph: StepGraph, device: Ints, pattern: str) -> tuple[Bools, Bools]:
    """Return masks of the op rows and of the device tasks whose names match a pattern."""
    nodes, ops = graph.nodes, matching_ops(names, pattern)
    kernels = np.array([matches_kernel(name, pattern) for name in names.trace.kernel_names], bool)
    hit, owner = kernels[nodes.name[device]], nodes.owner[device]
    hit[owner >= 0] |= ops[owner[owner >= 0]]
    return ops, hit


def _of_class(names: Names, graph: StepGraph, device: Ints, kind: str) -> tuple[Bools, Bools]:
    """Return masks of the op rows and of the device tasks in a class of work, classified as in `inspect`."""
    nodes, (classes, of_op) = graph.nodes, classes_on_host(names.trace)
    ops = of_op == classes.index(kind) if kind in classes else np.zeros(len(names.trace.ops), bool)
    rows, of_kernel = nodes.row[device], np.append(classes_of_launches(names.trace), CLASSES.index("communication"))
    return ops, of_kernel[rows] == CLASSES.index(kind)  # row -1 is an NPU's whole collective


def _class_meant(names: Names, pattern: str) -> str | None:
    """Return the class of work that a pattern names; None if it is the name of an op or kernel in the trace."""
    is_name = pattern in names.trace.kernel_names or any(s.name == pattern for s in names.trace.signatures)
    return None if is_name else class_named(pattern)


def _classes(names: Names, graph: StepGraph) -> list[str]:
    """Return the classes of work in a step: of its device tasks if there are any, otherwise of its host ops."""
    classes, index = list(CLASSES), classes_of_launches(names.trace)[graph.nodes.row[graph.nodes.row >= 0]]
    if not len(index):
        classes, of_op = classes_on_host(names.trace)
        index = of_op[graph.slices.op[graph.slices.op >= 0]]
    there: list[int] = distinct(index).tolist()
    return [classes[place].lower() for place in there]


def _scale_inside(
    names: Names, out: Edited, tasks: Ints, ops: Bools, pattern: str, number: float, factor: bool
) -> Bools:
    """Scale the tasks of offloaded ops that contain matching ops. Return a mask of the matching ops elsewhere.

    Offloaded ops ran on the host and are device tasks now. Only part of such a task is scaled: the share that matching
    ops have in the recorded time of its op.
    """
    if not len(tasks) or not ops.any():
        return ops
    graph, slices = out.graph, out.graph.slices
    off_host = np.zeros(len(ops), bool)
    off_host[graph.nodes.owner[graph.nodes.owner >= 0]] = True
    inside = _covered(names, off_host)
    rows = np.flatnonzero((slices.op >= 0) & inside[np.maximum(slices.op, 0)])
    top = outermost(names, off_host)[slices.op[rows]]
    whole = np.bincount(top, weights=out.inside_us[rows], minlength=len(ops))
    part = np.bincount(top, weights=out.inside_us[rows] * ops[slices.op[rows]], minlength=len(ops))
    share = (part / np.maximum(whole, 1e-9))[graph.nodes.owner[tasks]]
    chosen, share = tasks[share > 0.0], share[share > 0.0]
    if len(chosen):
        around = sorted({names.task(node) for node in chosen.tolist()})
        where = f"{pattern} runs inside {', '.join(around[:3])}{' and others' if around[3:] else ''}"
        if factor or number == 0.0:
            out.durations_us[chosen] *= 1.0 + share * (number - 1.0)
            out.inside_us[rows[ops[slices.op[rows]]]] *= number
            out.matched += len(chosen)
            out.notes.append(
                f"{where}, and is not predicted separately: its share of the recorded time of these ops, "
                f"{100 * (share.min()):.0f} % to {100 * (share.max()):.0f} %, is assumed for the device work, too"
            )
        else:
            out.notes.append(f"{where}, and is not predicted separately: give a factor instead of a time")
    return ops & ~inside


def _labels(names: Names) -> Bools:
    """Return a mask of op rows that are only labels, which a framework or autograd puts around ops."""
    return np.array([is_label(signature) for signature in names.trace.signatures])[names.trace.ops.signature]


def _or_above(names: Names, marked: Bools) -> Bools:
    """Return a mask of ops that are marked or that contain a marked op."""
    return among_or_around(op_parents(names.trace), marked)


def _scale_host(names: Names, out: Edited, ops: Bools, number: float, factor: bool) -> None:
    """Scale the host slices of the ops by a factor, or set them to an absolute time.

    An absolute time applies to each call of an outermost op. The slices of the call keep their proportions.
    """
    graph, slices = out.graph, out.graph.slices
    base = out.slices_us
    if not len(slices.dur_us) or not ops.any():
        return
    inside = (slices.op >= 0) & ops[np.maximum(slices.op, 0)]
    if not inside.any():
        return
    unlabelled = inside & ~_labels(names)[np.maximum(slices.op, 0)]
    if unlabelled.any():  # Python inside a label is no work of the ops that are meant
        inside = unlabelled
    scaled = base.copy()
    if factor:
        scaled[inside] *= number
    else:
        top = outermost(names, ops)
        rows = np.flatnonzero(inside)
        of = top[slices.op[rows]]
        spent = np.bincount(of, weights=base[rows], minlength=len(ops))
        scaled[rows] *= number / np.maximum(spent[of], 1e-9)
    if number == 0.0:
        calls = np.flatnonzero(inside & ~np.append(False, inside[:-1])) - 1
        calls = calls[(calls >= 0) & (slices.op[calls] == NO_OP) & ~out.left_out[calls]]
        call_us = _call_us(graph)
        scaled[calls] = np.maximum(0.0, scaled[calls] - call_us)
        inside[calls] = out.left_out[calls] = True
        if len(calls) and call_us:
            out.notes.append(
                f"each removed call also saves its Python time: {call_us:.2g} µs, about the shortest before an op"
            )
    changed = np.flatnonzero(host_durations(graph, inside.astype(np.float64)) > 0.0)
    take_slices(out, scaled)
    out.matched += len(changed)


def take_slices(out: Edited, slices_us: Floats) -> None:
    """Set the host time of all slices, and change the durations of their nodes by the difference, but not below 0."""
    gained = host_durations(out.graph, out.slices_us - slices_us)
    out.durations_us = np.maximum(0.0, out.durations_us - gained)
    out.slices_us = slices_us


def _call_us(graph: StepGraph) -> float:
    """Return the overhead of Python and the profiler per op call. It is a low quantile of the gaps before ops.

    If there are too few gaps, it is 0.
    """
    ops = graph.slices.op
    gaps = graph.slices.dur_us[np.flatnonzero((ops[:-1] == NO_OP) & (ops[1:] != NO_OP))]
    return min(MOST_CALL_US, float(np.quantile(gaps, LEAST_GAPS))) if len(gaps) >= FEW_GAPS else 0.0


def outermost(names: Names, ops: Bools) -> Ints:
    """Return, for each op, the outermost op of the mask that is this op or contains it. If there is none, return the op
    itself.
    """
    top = outermost_of(op_parents(names.trace), ops)
    return np.where(top >= 0, top, np.arange(len(ops)))


def host_durations(graph: StepGraph, slice_us: Floats) -> Floats:
    """Return, for each node, the total time of its slices; 0 for device nodes."""
    total = np.concatenate([[0.0], np.cumsum(slice_us)])
    return total[graph.nodes.first_slice + graph.nodes.slices] - total[graph.nodes.first_slice]


def matching_ops(names: Names, pattern: str) -> Bools:
    """Return a mask of ops whose own name, or the name of an enclosing op, matches a shell pattern."""
    hits = np.array([fnmatchcase(s.name, pattern) for s in names.trace.signatures] or [False])
    if not len(names.trace.ops) or not hits.any():
        return np.zeros(len(names.trace.ops), bool)
    return among_or_inside(op_parents(names.trace), hits[names.trace.ops.signature])


AS_LONG_AS_LONGEST = "a fused kernel takes as long as its longest part; the host still launches every part"


def fused_patterns(listed: str) -> list[str]:
    """Return the name patterns after "fuse". Raises TraceError for fewer than two."""
    patterns = [part.strip() for part in listed.split(",") if part.strip()]
    if len(patterns) < 2:
        raise TraceError("a fusion needs at least two ops", hint="Write 'fuse aten::add,aten::mul'.")
    return patterns


def remove_tasks(names: Names, out: Edited, tasks: Bools, *, waits: bool) -> None:
    """Remove device tasks, their launches, and the host time of ops that launch nothing else.

    With `waits`, also remove the time that the host waited for these tasks.
    """
    edges = out.graph.edges
    out.durations_us[tasks] = 0.0
    launched = (edges.kind == LAUNCH) & tasks[edges.target]
    out.lags_us[launched & (edges.unknown_us <= 0.0)] = NEVER
    if waits:
        out.lags_us[(edges.kind == SYNC) & tasks[edges.source]] = NEVER
    order = launched | (edges.kind == STREAM) & tasks[edges.target]
    out.lags_us[order] = np.minimum(out.lags_us[order], edges.unknown_us[order])
    _scale_host(names, out, ops_of_tasks(names, out.graph, tasks), 0.0, factor=True)
    out.matched += int(tasks.sum())


def _fuse_elementwise(names: Names, out: Edited) -> None:
    """Merge each sequence of elementwise kernels into its first kernel, which then takes as long as the longest."""
    first = elementwise_runs(names, out.graph)
    merged = np.flatnonzero((first >= 0) & (first != np.arange(len(first))))
    if not len(merged):
        return
    np.maximum.at(out.durations_us, first[merged], out.durations_us[merged].copy())
    tasks = np.zeros(len(first), bool)
    tasks[merged] = True
    remove_tasks(names, out, tasks, waits=False)
    out.notes.append(
        f"{len(distinct(first[merged])):,} groups of consecutive elementwise kernels become one kernel each, as "
        "long as its longest part, with the host time of one op; the trace does not record which of them depend on "
        "each other"
    )


def _fuse(names: Names, out: Edited, listed: str) -> None:
    """Merge consecutive matching tasks on a stream. The merged task takes as long as the longest task."""
    if listed.strip() == "elementwise":
        _fuse_elementwise(names, out)
        return
    patterns = fused_patterns(listed)
    nodes, edges = out.graph.nodes, out.graph.edges
    hit = np.zeros(len(nodes), bool)
    for pattern in patterns:
        ops = matching_ops(names, pattern)
        owned = nodes.owner >= 0
        hit[owned] |= ops[nodes.owner[owned]] if len(ops) else False
    hit &= nodes.kind == KERNEL
    order = np.flatnonzero(edges.kind == STREAM)
    groups: dict[int, list[int]] = {}
    reached_by: dict[int, set[int]] = {}
    inside: list[int] = []
    apart = 0
    for edge in order[np.argsort(edges.target[order], kind="stable")].tolist():
        first, second = int(edges.source[edge]), int(edges.target[edge])
        if not (hit[first] and hit[second]) or names.task(first) == names.task(second):
            continue
        parts = groups.get(first, [first])
        reached = reached_by.pop(first, {first})
        if _reaches(out, reached, first, second):
            apart += 1
            continue
        groups.pop(first, None)
        parts.append(second)
        reached.add(second)
        groups[second], reached_by[second] = parts, reached
        inside.append(edge)
    later_us = np.zeros(len(nodes))
    for parts in groups.values():
        longest = float(out.durations_us[parts].max())
        out.durations_us[parts] = 0.0
        out.durations_us[parts[-1]] = longest
        later_us[parts[:-1]] = longest
    out.lags_us += later_us[edges.source]  # what waits for a part waits for the whole kernel
    out.lags_us[inside] = 0.0
    out.matched += len(inside)
    if apart:
        out.notes.append(
            f"{apart:,} pairs of consecutive kernels stay apart: the second waits for work that waits for the first"
        )
    if inside:
        out.notes.append(AS_LONG_AS_LONGEST)


def _reaches(out: Edited, reached: set[int], part: int, last: int) -> bool:
    """Check whether a task waits for parts of a fused kernel through other work, not only because it follows the last
    `part` on its stream.

    `reached` has the nodes up to the last part that wait for a part; those after it are added.
    """
    edges = out.graph.edges
    begin, end = np.searchsorted(edges.target, [part + 1, last + 1]).tolist()
    for edge in range(begin, end):
        source, target = int(edges.source[edge]), int(edges.target[edge])
        direct = edges.kind[edge] == STREAM and source == part
        if source in reached and not direct and out.lags_us[edge] > NEVER / 2:
            if target == last:
                return True
            reached.add(target)
    return False


def _dtype(names: Names, out: Edited, wanted: str) -> None:
    """Shorten tasks of ops that have floating-point inputs wider than `wanted`, in proportion to the bytes moved."""
    wanted = wanted.strip().lower()
    if wanted not in _WIDTHS:
        raise TraceError(f"{wanted!r} is not a dtype", hint=f"Use one of {', '.join(_WIDTHS)}.")
    graph, nodes = out.graph, out.graph.nodes
    factors = np.ones(len(names.trace.signatures) or 1)
    for index, signature in enumerate(names.trace.signatures):
        widths = [_RECORDED_WIDTHS[t] for t in signature.types or () if t in _RECORDED_WIDTHS]
        if widths:
            factors[index] = min(1.0, _WIDTHS[wanted] / min(max(widths), out.width or max(widths)))
    if len(names.trace.ops):
        of_op = factors[names.trace.ops.signature]
        rows = np.flatnonzero((nodes.owner >= 0) & (nodes.name >= 0))
        scale = of_op[nodes.owner[rows]]
        out.durations_us[rows] *= scale
        out.matched += int((scale < 1.0).sum())
        if not len(rows):
            slices = graph.slices
            inside = slices.op >= 0
            scale = np.where(inside, of_op[np.maximum(slices.op, 0)], 1.0)
            narrowed = inside & (scale < 1.0) & (slices.dur_us > 0.0)
            out.matched += int((host_durations(graph, narrowed.astype(np.float64)) > 0.0).sum())
            take_slices(out, out.slices_us * scale)
    out.width = min(_WIDTHS[wanted], out.width or _WIDTHS[wanted])
    out.notes.append(
        f"the time of work on wider dtypes shrinks with the bytes of {wanted}, even if it is compute-bound"
    )


_RULES = {"fuse": _fuse, "dtype": _dtype}


def _captured(names: Names, out: Edited) -> None:
    """Replay the work between launches as captured graphs.

    This work then takes no host time, and only the first kernel of each graph has launch latency. Work that no graph
    can contain keeps its host time, and waits for the device remain.
    """
    graph, edges, nodes = out.graph, out.graph.edges, out.graph.nodes
    launches = np.flatnonzero(edges.kind == LAUNCH)
    if not len(launches):
        return
    sources = distinct(edges.source[launches])
    stretches = stretches_of(names.trace, graph)
    host = stretches.of_node >= 0
    kept = host.copy()
    kept[host] = stretches.outside_graphs[stretches.of_node[host]]
    # Until the first launch, and from the last one on, the host is outside of all graphs.
    between = np.zeros(len(nodes), bool)
    between[int(sources[0]) + 1 : int(sources[-1]) + 1] = True
    removed = host & between & ~kept
    out.durations_us[removed] = 0.0
    bounds = np.zeros(len(out.slices_us) + 1, np.int64)
    np.add.at(bounds, nodes.first_slice[removed], 1)
    np.add.at(bounds, (nodes.first_slice + nodes.slices)[removed], -1)
    out.slices_us[np.cumsum(bounds)[:-1] > 0] = 0.0
    replayed = launches[removed[edges.source[launches]]]
    out.lags_us[replayed] = np.minimum(out.lags_us[replayed], edges.unknown_us[replayed])
    order = edges.kind == STREAM
    out.lags_us[order] = np.minimum(out.lags_us[order], graph.stream_gap_us + edges.unknown_us[order])
    if not graph.stream_gap_us:  # no task had another one waiting behind it
        out.lags_us[order] = np.where(out.lags_us[order] < 0.0, out.lags_us[order], GRAPH_GAP_US)
    out.matched = len(launches)
    kept_us = float(out.durations_us[kept & between].sum())
    out.notes.append(
        "work between launches is replayed as captured graphs, without host time; "
        f"{kept_us / 1e3:,.2f} ms stay on the host: no graph contains copies from and to it, waits for the device, or "
        "long intervals without a launch"
    )


def _overlapped(graph: StepGraph, durations: Floats, lags: Floats) -> Schedule:
    """Return the schedule with collectives on a separate stream. Only the end of the step waits for them.

    This schedule can be longer than the schedule without overlap, because the host no longer runs ahead of a busy
    device. But fewer waits cannot lengthen a step, so the schedule without overlap is returned then.
    """
    talking = np.flatnonzero(graph.nodes.kind == COLLECTIVE)
    alone = durations.copy()
    alone[talking] = 0.0
    schedule = slowed_schedule(graph, alone, lags, apart=True)
    start, end, free = schedule.start_us.copy(), schedule.end_us.copy(), 0.0
    for node in talking[np.argsort(start[talking], kind="stable")].tolist():
        start[node] = max(start[node], free)
        end[node] = free = start[node] + durations[node]
    step_us = step_length(graph, start, end, schedule.begin_us)
    as_it_is = slowed_schedule(graph, durations, lags)
    return (
        as_it_is
        if as_it_is.step_us < step_us
        else msgspec.structs.replace(schedule, start_us=start, end_us=end, step_us=step_us)
    )


def with_op_times(names: Names, graph: StepGraph, us_by_row: Floats) -> tuple[Floats, int]:
    """Return (durations of all nodes, number of changed calls) after setting host times of ops.

    `us_by_row` has the time of each op row. NaN keeps an op unchanged. If nested ops have times, the time of the
    outermost op counts. The slices of an op keep their proportions.
    """
    scaled, calls = slices_with_op_times(names, graph, us_by_row)
    if not calls:
        return graph.nodes.dur_us.copy(), 0
    before, after = host_durations(graph, graph.slices.dur_us), host_durations(graph, scaled)
    return np.maximum(0.0, graph.nodes.dur_us + after - before), calls


def slices_with_op_times(names: Names, graph: StepGraph, us_by_row: Floats) -> tuple[Floats, int]:
    """Return (host time of all slices, number of calls changed) for host times given by op row; see `with_op_times`."""
    slices = graph.slices
    known = ~np.isnan(us_by_row)
    if not known.any():
        return slices.dur_us.copy(), 0
    inside = np.flatnonzero((slices.op >= 0) & _covered(names, known)[np.maximum(slices.op, 0)])
    if not len(inside):
        return slices.dur_us.copy(), 0
    top = outermost(names, known)[slices.op[inside]]
    spent = np.bincount(top, weights=slices.dur_us[inside], minlength=len(us_by_row))
    scaled = slices.dur_us.copy()
    scaled[inside] *= us_by_row[top] / np.maximum(spent[top], 1e-9)
    return scaled, len(distinct(top))


def _covered(names: Names, marked: Bools) -> Bools:
    """Return a mask of ops that are marked or inside a marked op."""
    return among_or_inside(op_parents(names.trace), marked)
