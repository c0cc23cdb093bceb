# pyright: strict
"""Recommend optimisations of a step.

Each usual change is made in the step's graph, which is then rescheduled. The changes are ranked by gain. A candidate is
an edit of the graph, as `--what-if` makes it. It can have further edits for a worse and a better outcome of the same
change. Each gain is that of one change alone. Gains overlap, so they are never added up.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from opreplay.replay.ir.advice import Advice, AdviceKind, AdviceList, Certainty
from opreplay.replay.ir.notation import recorded_call_text, tensor_text
from opreplay.replay.ir.step import StepReport
from opreplay.replay.ops.recorded.sizes import CallWork, work_of
from opreplay.replay.timeline.changes import Edited, Unmatched, apply_change, remove_tasks
from opreplay.replay.timeline.dispatch import copies_of, elementwise_runs, stretches_of
from opreplay.replay.timeline.graph.model import COLLECTIVE, HOST, KERNEL, LAUNCH, NEVER, SYNC, StepGraph
from opreplay.replay.timeline.graph.slowed import with_losses
from opreplay.replay.timeline.host_functions import HostWork, host_work, without_work
from opreplay.replay.timeline.names import Names
from opreplay.replay.timeline.places import Places
from opreplay.replay.timeline.timeline import Study, gains_of
from opreplay.traces.arrays import Bools, Floats, Ints, distinct
from opreplay.traces.dtypes import torch_dtype_name
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import OpSignature, TensorMeta
from opreplay.traces.names import plural
from opreplay.traces.times.doubts import Doubts
from opreplay.traces.times.kernel_classes import class_of_work, may_multiply
from opreplay.traces.times.peaks import TF32, Peak, is_exact_float32, is_tf32, peak_of, roof_us

LEAST_GAIN = 0.01
"""Minimum gain of a listed change, as a share of the step."""
GOOD, LOW, BEST = 0.8, 0.6, 1.0
"""Assumed shares of roofline performance of an optimised op: GOOD for the gain, LOW and BEST for its range."""
LEAST_KERNEL_US = 5.0
"""Minimum time, in µs, of a call after optimisation. The roofline does not limit shorter kernels."""
MOST_OPS = 8
"""Maximum number of op shapes to try. Those with the most time above their roofline limit come first."""
MOST_TENSORS = 3
"""Maximum number of tensors that the text about a call lists. The call's `opreplay op` command contains all of them."""
FEW_CALLS, MOST_SLOW, SLOW, EVEN = 4, 0.2, 3.0, 1.5
"""Conditions for trying to speed up a kernel's slow calls.

The kernel must have at least FEW_CALLS calls, and at most the share MOST_SLOW of them may be slow. A call is slow if it
takes more than SLOW times the median, which counts as at least LEAST_KERNEL_US. All calls except the share MOST_SLOW
must take at most EVEN times the median.
"""
WIDE = 0.5
"""A gain is less certain if its range is wider than this share of the gain."""
LEAST_ERROR = 0.01
"""Minimum relative error assumed for a predicted step time. The error widens the range of a gain."""
LARGE_ERROR = 0.05
"""If the relative error of the graph's step time is larger than this, every gain is less certain."""
_LEVELS: tuple[Certainty, ...] = ("high", "medium", "low")
_PRODUCTS = frozenset({"GEMM", "convolution", "attention"})


class _Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the step to try."""

    kind: AdviceKind
    what: str
    why: str
    basis: str
    certainty: Certainty
    edit: Edited
    others: tuple[Edited, ...] = ()
    """Edits for worse or better outcomes of the change. They give the range of the gain."""
    changed: Bools | None = None
    """Mask of the device tasks whose source locations are reported."""
    function: str = ""
    change: str = ""
    command: str = ""
    lost_us: float = 0.0
    """Time, in µs, by which the change slows other work."""
    least_step_us: float = 0.0
    """Minimum length of the step after the change, in µs."""

    def bounded(self, step_us: float, gain_us: float) -> float:
        """Return the gain minus the time by which other work slows down (`lost_us`).

        The gain is limited to what shortens the step to `least_step_us`.
        """
        return min(gain_us - self.lost_us, step_us - self.least_step_us)


def advise(study: Study) -> AdviceList:
    """Try usual changes of a step and return those that gain at least 1 % of it, largest gain first.

    The list is empty if the step's times are not real timings.
    """
    names, before, step = study.names, study.schedule, study.timeline.step
    if step.is_untimed:
        return AdviceList(step_us=before.step_us, marked=step.marked, tried=0, items=(), doubts=step.doubts)
    graph = with_losses(names.trace, study.graph)
    step_us = before.step_us
    least_us = LEAST_GAIN * step_us
    places = Places(names, graph)
    tried = 0
    found: list[Advice] = []
    for candidate in _candidates(names, graph, step, least_us):
        if _most_us(graph, candidate) < least_us:
            continue
        tried += 1
        after = candidate.edit.schedule()
        gain_us = candidate.bounded(before.step_us, before.step_us - after.step_us)
        if gain_us < least_us:
            continue
        gains = [candidate.bounded(step_us, gain) for gain in gains_of(graph, candidate.edit, before, after)]
        gains += [before.step_us - other.schedule().step_us for other in candidate.others]
        error_us = max(LEAST_ERROR, _error(study)) * (step_us - gain_us)
        low_us, high_us = max(0.0, min(gains) - error_us), min(step_us, max(gains) + error_us)
        module, function = ("", candidate.function)
        if candidate.changed is not None:
            module, function = places.of_tasks(candidate.changed)
        found.append(
            Advice(
                kind=candidate.kind,
                what=candidate.what,
                why=candidate.why,
                gain_us=gain_us,
                low_us=low_us,
                high_us=high_us,
                share=gain_us / step_us,
                certainty=_certainty(study, candidate.certainty, high_us - low_us > WIDE * gain_us),
                basis=candidate.basis,
                module=module,
                function=candidate.function or function,
                change=candidate.change,
                command=candidate.command,
            )
        )
    ranked = _ranked(found, least_us)
    return AdviceList(
        step_us=step_us, marked=step.marked, tried=tried, items=tuple(ranked), on_host=not graph.on_device
    )


def _ranked(found: Sequence[Advice], alike_us: float) -> list[Advice]:
    """Sort by gain, largest first; among similar gains, the more certain one comes first."""
    rest = sorted(found, key=lambda item: (-item.gain_us, item.what))
    ranked: list[Advice] = []
    while rest:
        alike = [item for item in rest if item.gain_us >= rest[0].gain_us - alike_us]
        ranked.append(min(alike, key=lambda item: _LEVELS.index(item.certainty)))
        rest.remove(ranked[-1])
    return ranked


def _most_us(graph: StepGraph, candidate: _Candidate) -> float:
    """Return an upper bound of the gain: the sum of the durations and latencies that the change removes.

    The bound is infinite if the change removes waits of the host.
    """
    before, after = graph.edges.lag_us, candidate.edit.lags_us
    cut = (after <= NEVER / 2) & (before > NEVER / 2)
    if (cut & (graph.edges.kind != LAUNCH)).any():
        return np.inf
    durations = np.maximum(0.0, graph.nodes.dur_us - candidate.edit.durations_us).sum()
    return float(durations + np.maximum(0.0, np.maximum(before, 0.0) - np.maximum(after, 0.0)).sum())


def _error(study: Study) -> float:
    """Return the relative error of the step time that the graph gives.

    It is the larger of the error on this step and the median error on other steps. If no other steps were tested, the
    error of this step with median latencies (`structure_error_typical`) replaces the latter.
    """
    other = study.timeline.other_steps
    own = max(abs(study.timeline.structure_error), abs(study.timeline.structure_error_typical))
    return own if other is None else max(abs(study.timeline.structure_error), other.median_error)


def _certainty(study: Study, best: Certainty, wide: bool) -> Certainty:
    """Return the certainty of a gain: `best`, or lower if the gain's range is wide or the trace is doubtful."""
    step = study.timeline.step
    lower = wide + (not step.marked or step.doubts != Doubts() or _error(study) > LARGE_ERROR)
    return _LEVELS[min(len(_LEVELS) - 1, _LEVELS.index(best) + lower)]


def _candidates(names: Names, graph: StepGraph, step: StepReport, least_us: float) -> Iterator[_Candidate]:
    """Yield the changes to try.

    A change of host work alone is never assumed to make the step shorter than the device's busy time. The recording
    does not show whether the device's streams would then overlap more across steps.
    """
    device = "the device" if step.accelerator == "device" else f"the {step.accelerator}"
    for candidate in _of_host_work(names, graph, device, least_us):
        yield msgspec.structs.replace(candidate, least_step_us=step.busy_us) if graph.on_device else candidate
    if not graph.on_device:
        return
    for candidate in _of_cudagraph(names, graph, device, "aclgraph" if step.accelerator == "NPU" else "cudagraph"):
        yield msgspec.structs.replace(candidate, least_step_us=step.busy_us)
    yield from _of_overlap(names, graph)
    yield from _of_fusion(names, graph)
    yield from _of_copies(names, graph)
    yield from _of_slow_calls(names, graph)
    peak = peak_of(names.trace.info.device_names)
    if peak is not None and len(names.trace.ops):
        calls = _calls_of(names, graph, peak)
        yield from _of_ops(graph, calls, peak)
        yield from _of_types(graph, calls, peak)


def _tried(names: Names, graph: StepGraph, change: str) -> Edited | None:
    try:
        return apply_change(names, graph, change)
    except Unmatched:
        return None


def _of_host_work(names: Names, graph: StepGraph, device: str, least_us: float) -> Iterator[_Candidate]:
    for work in host_work(names, graph, stretches_of(names.trace, graph), least_us):
        waits = (
            f"{device} waits for this work" if graph.on_device else f"no {'other ' * work.is_loader}op runs meanwhile"
        )
        yield _Candidate(
            kind="python",
            what=_work_text(work),
            why=f"this work takes {work.us / 1e3:,.2f} ms of host time and launches nothing; {waits}",
            basis=(
                "this work can run before the step, or at the same time in other processes"
                if work.name
                else "Python work, not a wait for another thread; record with_stack=True to see the function's name"
            ),
            certainty="high" if work.name else "medium",
            edit=without_work(graph, work),
            function=work.name,
        )


def _work_text(work: HostWork) -> str:
    if not work.name:
        return f"moving the Python {work.within} out of the step"
    if not work.is_loader:
        return f"moving {work.name} out of the step"
    return f"prefetching in the data loader ({work.name})"


def _of_cudagraph(names: Names, graph: StepGraph, device: str, change: str) -> Iterator[_Candidate]:
    edit = _tried(names, graph, change)
    if edit is not None:
        yield _Candidate(
            kind="cudagraph",
            what=change,
            why=f"{device} waits for the host",
            basis="shapes and control flow are the same in every step; host work that a graph cannot contain remains",
            certainty="high",
            edit=edit,
            change=change,
        )


def _of_overlap(names: Names, graph: StepGraph) -> Iterator[_Candidate]:
    """Yield the change that overlaps all collectives with computing.

    The step then still takes at least the collectives' time. The worse outcome is the what-if `overlap comm`, in which
    collectives begin at their recorded times.
    """
    where_they_are = _tried(names, graph, "overlap comm")
    if where_they_are is None:
        return
    nodes = graph.nodes
    talking = nodes.kind == COLLECTIVE
    edit = Edited.unchanged(graph)
    edit.durations_us[talking] = 0.0
    of_lane = np.bincount(nodes.lane[talking], weights=nodes.dur_us[talking])
    total_us = float(of_lane.max(initial=0.0))
    yield _Candidate(
        kind="overlap",
        what="overlapping communication with compute",
        why=f"compute kernels wait for collectives, {float(of_lane.sum()) / 1e3:,.2f} ms in total",
        basis=(
            "collectives are split and begin early enough to end during compute; the low end of the gain does not "
            "assume this; waiting for late ranks counts as collective time"
        ),
        certainty="medium",
        edit=edit,
        others=(where_they_are,),
        changed=talking,
        change="overlap comm",
        lost_us=graph.lost_during_collectives * total_us,
        least_step_us=total_us,
    )


def _of_fusion(names: Names, graph: StepGraph) -> Iterator[_Candidate]:
    edit = _tried(names, graph, "fuse elementwise")
    if edit is None:
        return
    first = elementwise_runs(names, graph)
    merged = (first >= 0) & (first != np.arange(len(first)))
    kernels, runs = int(merged.sum()), len(distinct(first[merged]))
    sums = np.bincount(first[first >= 0], weights=graph.nodes.dur_us[first >= 0], minlength=len(first))
    worse = msgspec.structs.replace(
        edit, durations_us=np.where(edit.durations_us > 0.0, np.maximum(edit.durations_us, 0.0), 0.0)
    )
    heads = distinct(first[merged])
    worse.durations_us[heads] = np.maximum(edit.durations_us[heads], 0.5 * sums[heads])
    yield _Candidate(
        kind="fusion",
        what="fusing consecutive elementwise kernels (torch.compile)",
        why=f"{kernels + runs:,} consecutive small kernels form {plural(runs, 'group')}",
        basis=(
            "the kernels of a group depend only on each other; at the low end of the gain, each keeps half of its time"
        ),
        certainty="medium",
        edit=edit,
        others=(worse,),
        changed=merged,
        change="fuse elementwise",
    )


def _of_slow_calls(names: Names, graph: StepGraph) -> Iterator[_Candidate]:
    """Yield changes that make few slow kernels as fast as other calls with the same op, shapes and kernel name."""
    nodes, trace = graph.nodes, names.trace
    tasks = np.flatnonzero((nodes.kind == KERNEL) & (nodes.name >= 0))
    signature = np.full(len(tasks), -1, np.int64)
    owned = nodes.owner[tasks] >= 0
    signature[owned] = trace.ops.signature[nodes.owner[tasks[owned]]]
    _, group = np.unique(np.stack([signature, nodes.name[tasks]]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    for rows in np.split(tasks[order], np.flatnonzero(np.diff(group[order])) + 1):
        if len(rows) < FEW_CALLS:
            continue
        us = nodes.dur_us[rows]
        usual = float(np.median(us))
        slow = us > SLOW * max(usual, LEAST_KERNEL_US)
        if not slow.any() or np.quantile(us, 1.0 - MOST_SLOW) > EVEN * usual:
            continue
        changed = np.zeros(len(nodes), bool)
        changed[rows[slow]] = True
        edit = Edited.unchanged(graph)
        edit.durations_us[changed] = usual
        edit.matched = int(slow.sum())
        node, few = int(rows[slow][0]), int(slow.sum())
        has_shapes = nodes.owner[node] >= 0 and bool(trace.signatures[trace.ops.signature[nodes.owner[node]]].dims)
        yield _Candidate(
            kind="op",
            what=f"making the slow calls of {names.task(node)} as fast as the others",
            why=(
                f"{few:,} of {len(rows):,} calls take{'s' if few == 1 else ''} {float(np.median(us[slow])):,.1f} µs, "
                f"the others {usual:,.1f} µs"
            ),
            basis="they do the same work" + ("" if has_shapes else ", though their shapes are not recorded"),
            certainty="medium" if has_shapes else "low",
            edit=edit,
            changed=changed,
            command=_run_command(names, names.task(node)) if nodes.owner[node] >= 0 else "",
        )


_DIRECTIONS = (
    ("HtoD", "copies from the host", "inputs are copied in advance from pinned memory, while kernels run"),
    ("DtoH", "copies to the host", "the host does not need the values during the step"),
    ("DtoD", "copies within the device", "tensors are created where they are needed"),
)


def _of_copies(names: Names, graph: StepGraph) -> Iterator[_Candidate]:
    for direction, text, basis in _DIRECTIONS:
        tasks = copies_of(names.trace, graph, direction)
        if tasks.any():
            yield _without_tasks(names, graph, tasks, f"removing {text}", basis, "medium")
    nodes = graph.nodes
    of_kernels = np.zeros(len(nodes), bool)
    for node in np.flatnonzero((nodes.kind == KERNEL) & (nodes.owner >= 0) & (nodes.name >= 0)).tolist():
        of_kernels[node] = class_of_work(names.task(node), names.kernel(node)) == "copies"
    if of_kernels.any():
        basis = "tensors are created in the dtype and layout that is needed"
        yield _without_tasks(names, graph, of_kernels, "removing casts and layout changes", basis, "low")


def _without_tasks(
    names: Names, graph: StepGraph, tasks: Bools, what: str, basis: str, certainty: Certainty
) -> _Candidate:
    edit = Edited.unchanged(graph)
    remove_tasks(names, edit, tasks, waits=True)
    count, us = int(tasks.sum()), float(graph.nodes.dur_us[tasks].sum())
    waited = bool(((graph.edges.kind == SYNC) & tasks[graph.edges.source]).any())
    return _Candidate(
        kind="copies",
        what=what,
        why=f"{count:,} of them take {us / 1e3:,.2f} ms of device time"
        + (", and the host waits for them" if waited else ""),
        basis=basis,
        certainty=certainty,
        edit=edit,
        changed=tasks,
    )


class _Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one op with one set of shapes; they launch only kernels."""

    text: str
    """Name and shapes: "aten::mm(bf16[4096,1024], bf16[1024,512])"."""
    command: str
    kind: str
    work: CallWork
    may_be_tf32: bool
    """Whether the calls may use TF32: no kernel name shows that float32 is multiplied exactly."""
    roof_us: float
    bound: str
    nodes: Ints
    call_of: Ints
    """Call index of each node."""
    us: Floats
    """Time of each call, in µs."""

    def brought_to(self, target_us: float) -> Floats:
        """Return the factor that shortens each node's call to `target_us`, but not below LEAST_KERNEL_US."""
        return np.minimum(1.0, max(target_us, LEAST_KERNEL_US) / np.maximum(self.us, 1e-9))[self.call_of]

    def brought_to_share(self, share: float) -> Floats:
        """Return the factor that shortens each node's call to this share of its time, but not below LEAST_KERNEL_US."""
        factors = np.maximum(share, np.minimum(1.0, LEAST_KERNEL_US / np.maximum(self.us, 1e-9)))
        return factors[self.call_of]


def _calls_of(names: Names, graph: StepGraph, peak: Peak) -> list[_Calls]:
    """Return the step's calls that have a roofline limit, grouped by op and shapes, most time first."""
    trace, nodes = names.trace, graph.nodes
    owned = np.flatnonzero((nodes.owner >= 0) & (nodes.name >= 0) & (nodes.kind != HOST))
    signature = trace.ops.signature[nodes.owner[owned]]
    found: list[_Calls] = []
    indices: list[int] = distinct(signature).tolist()
    for index in indices:
        mine = owned[signature == index]
        if (nodes.kind[mine] != KERNEL).any():
            continue  # a link bounds copies and collectives, no roof of the device
        recorded = trace.signatures[index]
        work = work_of(recorded)
        kernels = {trace.kernel_names[int(name)] for name in distinct(nodes.name[mine])}
        in_tf32 = work.dtype == "float32" and any(map(is_tf32, kernels))
        kind = class_of_work(recorded.name, names.kernel(int(mine[0])))
        multiplies = may_multiply(kind, recorded.name)
        roof = roof_us(peak, work.flops, work.bytes, TF32 if in_tf32 else work.dtype, multiplies=multiplies)
        if roof is None or roof[0] <= 0.0 or not nodes.dur_us[mine].any():
            continue
        _, call_of = np.unique(nodes.owner[mine], return_inverse=True)
        text = recorded_call_text(recorded)
        found.append(
            _Calls(
                text=_shapes_text(recorded),
                command=f"opreplay op {shlex.quote(text)}" if text else _run_command(names, recorded.name),
                kind=kind,
                work=work,
                may_be_tf32=in_tf32 or not any(map(is_exact_float32, kernels)),
                roof_us=roof[0],
                bound=roof[1],
                nodes=mine,
                call_of=call_of.reshape(-1),
                us=np.bincount(call_of.reshape(-1), weights=nodes.dur_us[mine]).astype(np.float64),
            )
        )
    return sorted(found, key=lambda calls: -float(calls.us.sum()))


def _shapes_text(signature: OpSignature) -> str:
    """Return an op's name with the types and shapes of its tensors. Tensors in lists are left out."""
    tensors: list[str] = []
    for dims, spelled in zip(signature.dims or (), signature.types or (), strict=False):
        dtype = torch_dtype_name(spelled) if spelled else None
        if dtype is not None and is_whole_numbers(dims):
            tensors.append(tensor_text(TensorMeta(shape=dims, dtype=dtype)))
    more = "" if len(tensors) <= MOST_TENSORS else ", …"
    return f"{signature.name}({', '.join(tensors[:MOST_TENSORS])}{more})" if tensors else signature.name


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _run_command(names: Names, op: str) -> str:
    return f"opreplay run {shlex.quote(str(names.trace.info.path))} --op-filter {shlex.quote(op)}"


def _scaled(graph: StepGraph, parts: Sequence[tuple[_Calls, Floats]]) -> Edited:
    """Return an edit in which the durations of these calls' tasks are multiplied by the given factors."""
    out = Edited.unchanged(graph)
    for calls, factors in parts:
        out.durations_us[calls.nodes] *= factors
        out.matched += len(calls.nodes)
    return out


def _of_ops(graph: StepGraph, calls: Sequence[_Calls], peak: Peak) -> Iterator[_Candidate]:
    """Yield changes that bring the op shapes farthest above their roofline limit to a realistic share of it."""

    def excess_us(one: _Calls) -> float:
        return float(np.maximum(0.0, one.us - max(one.roof_us / GOOD, LEAST_KERNEL_US)).sum())

    for one in sorted(calls, key=lambda one: -excess_us(one))[:MOST_OPS]:
        low, told, best = (_scaled(graph, [(one, one.brought_to(one.roof_us / s))]) for s in (LOW, GOOD, BEST))
        changed = np.zeros(len(graph.nodes), bool)
        changed[one.nodes] = True
        reached = one.roof_us * len(one.us) / float(one.us.sum())
        yield _Candidate(
            kind="op",
            what=f"bringing {one.text} to {_percent(GOOD)} of its roofline limit",
            why=(
                f"{plural(len(one.us), 'call')} of {float(np.median(one.us)):,.1f} µs "
                f"reach{'' if len(one.us) > 1 else 'es'} {_percent(reached)} of the {one.bound} peak of {peak.device}"
            ),
            basis=f"each argument is read once; the range is for {_percent(LOW)} to 100 % of the roofline limit",
            certainty="medium",
            edit=told,
            others=(low, best),
            changed=changed,
            command=one.command,
        )


_TYPES: tuple[tuple[str, str, float, str], ...] = (
    (TF32, "TF32 for float32 matrix products", 1.0, "the mantissa has 10 bits instead of 23: check the accuracy"),
    (
        "bfloat16",
        "bfloat16 instead of float32 for matrix products",
        0.5,
        "the mantissa has 7 bits instead of 23: check the accuracy",
    ),
)
"""Types to try for float32 matrix products: (type, description, bytes of an element relative to float32, what to check
before the change).
"""


def _of_types(graph: StepGraph, calls: Sequence[_Calls], peak: Peak) -> Iterator[_Candidate]:
    """Yield changes to narrower types for float32 products, if the device multiplies these types faster."""
    for dtype, what, width, basis in _TYPES:
        wide = [one for one in calls if one.kind in _PRODUCTS and one.work.dtype == "float32" and one.work.flops]
        wide = [one for one in wide if dtype in peak.tflops and not (dtype == TF32 and one.may_be_tf32)]
        told: list[tuple[_Calls, Floats]] = []
        low: list[tuple[_Calls, Floats]] = []
        for one in wide:
            moved = None if one.work.bytes is None else width * one.work.bytes
            is_now = TF32 if one.may_be_tf32 and TF32 in peak.tflops else "float32"
            now = roof_us(peak, one.work.flops, one.work.bytes, is_now)
            then = roof_us(peak, one.work.flops, moved, dtype)
            if now is None or then is None:
                continue
            factor = min(1.0, then[0] / now[0])
            told.append((one, one.brought_to_share(factor)))
            low.append((one, one.brought_to_share(min(1.0, 2.0 * factor))))
        if not told:
            continue
        changed = np.zeros(len(graph.nodes), bool)
        changed[np.concatenate([one.nodes for one in wide])] = True
        total_us = sum(float(one.us.sum()) for one in wide)
        yield _Candidate(
            kind="dtype",
            what=what,
            why=f"{total_us / 1e3:,.2f} ms of matrix products are computed in float32",
            basis=(
                f"{basis}; products reach the same share of the peak as now, or half of it at the low end of the range"
            ),
            certainty="low",
            edit=_scaled(graph, told),
            others=(_scaled(graph, low),),
            changed=changed,
        )
