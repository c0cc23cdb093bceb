# pyright: strict
"""Predict a recorded step on a simulated device, with an error band.

Kernel times are predicted, latencies are those of the device, and host time is recorded. This module decides which
prediction a task gets, and handles tasks without a prediction. `ascend` computes the predictions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from opreplay.replay.ascend.cost.collective import missing_dies
from opreplay.replay.ascend.cost.predict import HOST_COPY, MOST_BY_BYTES, UNKNOWN, family_of
from opreplay.replay.ascend.cost.predictor import Predictor
from opreplay.replay.ascend.cost.residency import Held, codes_kept, resident_of, reuse_distances
from opreplay.replay.ascend.custom.registrations import CustomOpError
from opreplay.replay.ascend.measured.kernel_shapes import complete_outputs
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.coverage import measured_shares, measured_text, share_of_confidence
from opreplay.replay.ascend.simulate.op import simulate_by_family
from opreplay.replay.ascend.simulate.step import total_band
from opreplay.replay.collectives.model import Collective as CollectiveOp
from opreplay.replay.ir.kernel import Confidence, KernelCall
from opreplay.replay.ir.labels import is_collective
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ops.costs.collectives import kernel_of
from opreplay.replay.ops.work.contents import ContentsOf
from opreplay.replay.plan.collectives.records import Records, collective_of, of_record
from opreplay.replay.results.records import Simulated
from opreplay.replay.results.suspects import LARGE_SHARE, suspicions
from opreplay.replay.timeline.categories import Categories, categories
from opreplay.replay.timeline.contention import Contention, contended
from opreplay.replay.timeline.dispatch import copies_of
from opreplay.replay.timeline.graph.model import COLLECTIVE, COPY, HOST, LAUNCH, STREAM, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule, paced
from opreplay.replay.timeline.names import Names
from opreplay.replay.timeline.offload import DISPATCH_BAND, DISPATCH_US
from opreplay.replay.timeline.paths import PathPart, path_parts
from opreplay.replay.timeline.step import HOST_BOUND_SHARE
from opreplay.traces import Trace, innermost_parent
from opreplay.traces.activity import Collective
from opreplay.traces.arrays import Bools, Floats, Ints
from opreplay.traces.errors import NothingRan

LAUNCH_LATENCY_US = 44.0
"""Time in µs from the launch by torch_npu's dequeuing thread to the start of the task on an idle stream.

The value is the median of the public AlexNet profile on a 910B2 (MindStudio Insight test data). NPU traces keep their
recorded latencies.
"""
TASK_GAP_US = 1.0
"""Gap, in µs, between two tasks of a stream if the second was already launched.

`Wait Time` of the public Qwen profiles on a 910B4 is 0.1 µs at the first quartile and 1.1 µs at the median.
"""
ASSUMED = "launch latency"
"""First words of the note on `LAUNCH_LATENCY_US` and `TASK_GAP_US`. This note is the same for every step."""
OF_GRAPHS = "launches of whole graphs have the launch latency of single kernels, because no public NPU profile has any"
"""Note on recordings with such launches. The only public ones (vLLM on an MI300) waited behind other work: they show
that the host takes 38 µs for one, which is kept, but not how late one starts.
"""
UNPREDICTED_BAND = 3.0
"""Assumed factor of the 80 % band for tasks without a prediction. Their recorded time is scaled by the same factor as
the predicted tasks.
"""
MIN_BAND_SHARE = 0.01
"""Minimum relative error of a step's predicted time, even if its graph reproduces the recording."""
LEAST_PREDICTED = 0.5
"""Minimum share of computing time that must be predicted for the step to have an error band."""
LATENCY_BAND = 2.0
"""Assumed factor of the 80 % band for launch latencies and gaps between tasks that do not come from the recording."""
MOST_FAMILIES = 16
"""Maximum number of kernel families with errors that are propagated through the graph separately. The rest are
combined.
"""


class SocStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step on one simulated device; times in µs."""

    device: str
    device_version: str
    step_us: float
    low_us: float | None
    high_us: float | None
    """Upper end of the 80 % band; None if less than half of the computing time is predicted.

    Errors within a kernel family are treated as correlated, errors of different families as independent. The band is at
    least as wide as the error of the step time that the graph gives for the recording.
    """
    categories_us: Categories
    critical_path: tuple[PathPart, ...]
    by_family_us: dict[str, float]
    """Time of predicted tasks by kernel family, largest first. The times do not add up to the step time."""
    predicted_share: float
    """Share of the recorded device time in tasks that have a prediction."""
    computing_predicted_share: float
    """Like `predicted_share`, without collectives and copies between host and device."""
    uncalibrated_share: float
    """Share of the predicted time in kernel families that were not checked on any SoC."""
    invented_share: float
    """Share of the recorded device time that was predicted with assumed sizes.

    A size is assumed if no argument gives it, or if the recorded time contradicts it.
    """
    scaled_us: float
    """Time of tasks without a prediction: their recorded time, scaled by the ratio of predicted to recorded time of the
    predicted tasks.
    """
    kept_us: float
    """Time of tasks that keep their recorded time: copies to and from the host, collectives of unknown size."""
    host_scale: float
    host_bound: bool
    """Whether the device waits for the host for more than 30 % of the step."""
    notes: tuple[str, ...] = ()


class Predicted(msgspec.Struct):
    """Durations of a step's nodes on one device."""

    durations_us: Floats
    lags_us: Floats
    families: dict[str, Floats] = msgspec.field(default_factory=dict[str, Floats])
    """Time of each node, in µs, by kernel family. The duration of a predicted node is the sum over the families."""
    longer_us: dict[str, Floats] = msgspec.field(default_factory=dict[str, Floats])
    shorter_us: dict[str, Floats] = msgspec.field(default_factory=dict[str, Floats])
    """Time, in µs, by which each node is shorter at the lower end of the 80 % band, by kernel family.

    `longer_us` does the same for the upper end.
    """
    confidences: list[tuple[Confidence, float]] = msgspec.field(default_factory=list[tuple[Confidence, float]])
    """(confidence, predicted time in µs) of each prediction."""
    measured: list[tuple[str, float]] = msgspec.field(default_factory=list[tuple[str, float]])
    """The user's measurement that each prediction uses (see `Simulated.measured`), with the predicted time in µs."""
    invented_recorded_us: float = 0.0
    predicted_recorded_us: float = 0.0
    recorded_us: float = 0.0
    scaled_us: float = 0.0
    scaled_recorded_us: float = 0.0
    """Recorded time of the tasks without a prediction. These tasks are scaled."""
    kept_us: float = 0.0
    contention: Contention | None = None
    """Demand of tasks for HBM and links. It determines how much concurrent collectives slow tasks."""
    latencies_assumed: bool = False
    """Whether launch latencies and gaps are assumed instead of recorded."""
    dispatch_us: Floats | None = None
    """Host time of each node for dispatching ops that the recording ran on the CPU. None if they ran on a device."""
    slices_us: Floats | None = None
    """Host time of each slice of the step; None for the recorded times."""
    collectives_us: tuple[float, float] = (0.0, 0.0)
    """Total time of collectives that have a prediction: (recorded time, which includes waiting; predicted time)."""
    notes: list[str] = msgspec.field(default_factory=list[str])


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Host times of a step predicted on a device. Where an attribute is None, the recorded times apply."""

    scale: float = 1.0
    """Factor on all host times."""
    nodes_us: Floats | None = None
    """Host time of each node of the graph."""
    dispatch_us: Floats | None = None
    """Part of `nodes_us` for the dispatch of ops that ran on the CPU in the recording."""
    slices_us: Floats | None = None
    """Host time of each slice of the step."""


AS_RECORDED = Host()


def predict(
    trace: Trace,
    graph: StepGraph,
    device: DeviceProfile,
    ops: Mapping[str, ReplayOp],
    *,
    contents: ContentsOf | None = None,
    resident: Mapping[str, Sequence[Held]] | None = None,
    host: Host = AS_RECORDED,
    world_size: int | None = None,
) -> Predicted:
    """Return the durations of all nodes on `device`. Raises NothingRan for a step without device work.

    `ops` maps ids to the plan's ops. `resident` has the data that the caches hold when each op starts.
    """
    nodes = graph.nodes
    tasks = np.flatnonzero(nodes.name >= 0)
    if not len(tasks):
        raise NothingRan(
            "this step cannot be predicted on a simulated device: it has no device work, and no ops "
            "with known arguments",
            hint="`opreplay simulate` predicts its ops one by one.",
        )
    out = Predicted((nodes.dur_us if host.nodes_us is None else host.nodes_us).copy(), graph.edges.lag_us.copy())
    out.dispatch_us = None if host.dispatch_us is None else host.dispatch_us * host.scale
    out.slices_us = (graph.slices.dur_us if host.slices_us is None else host.slices_us) * host.scale
    out.recorded_us = float(nodes.dur_us[tasks].sum())
    out.durations_us[nodes.kind == HOST] *= host.scale
    done = np.zeros(len(nodes), bool)
    predictor = Predictor(device)
    out.contention = Contention.of(len(nodes), device)
    _collectives(trace, graph, predictor, world_size or trace.info.world_size, out, done)
    _recorded_kernels(trace, graph, predictor, out, done)
    _lowered_ops(trace, graph, predictor, ops, contents, resident, out, done)
    _rest(trace, graph, tasks, out, done)
    _latencies(trace, graph, out)
    return out


def _collectives_note(recorded_us: float, predicted_us: float) -> Iterator[str]:
    if recorded_us > 0.0:
        yield (
            f"collectives take {predicted_us / 1e3:,.2f} ms by the link model, {recorded_us / 1e3:,.2f} ms as "
            "recorded: the prediction leaves out waiting for other ranks, which is unknown here; `timeline --ranks` "
            "predicts it from traces of several ranks"
        )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def step_on(
    trace: Trace,
    graph: StepGraph,
    names: Names,
    device: DeviceProfile,
    on: Predicted,
    *,
    structure_error: float,
    host_scale: float = 1.0,
) -> tuple[SocStep, Schedule]:
    """Return the step with the durations from `predict`, and its schedule.

    `structure_error` is the relative error of the step time that the graph gives for the recording.
    """
    slowed = contended(graph, on.durations_us, on.contention, lambda us: paced(graph, us, on.lags_us))
    if slowed is not None:
        on.notes.append(slowed.note)
        on.durations_us = slowed.durations_us
    schedule = paced(graph, on.durations_us, on.lags_us)
    low = high = None
    computing = on.predicted_recorded_us - on.collectives_us[0]
    share = computing / every if (every := computing + on.scaled_recorded_us) > 0.0 else float(bool(on.families))
    if share >= LEAST_PREDICTED:
        low, high = _band(graph, on, schedule.step_us)
        error = max(abs(structure_error), MIN_BAND_SHARE)
        low, high = min(low, schedule.step_us / (1.0 + error)), max(high, schedule.step_us * (1.0 + error))
    times = categories(graph, schedule)
    parts, _ = path_parts(names, graph, schedule)
    by_family = {name: float(us.sum()) for name, us in on.families.items()}
    idle_host = times.idle_for_host
    host_bound = schedule.step_us > 0 and idle_host > HOST_BOUND_SHARE * schedule.step_us
    notes = [*on.notes, *_collectives_note(*on.collectives_us)]
    if measured := measured_text(measured_shares(on.measured)):
        notes.append(measured)
    if host_bound:
        notes.append(
            f"host-bound: the device idles {times.host_idle_text(schedule.step_us)}, with "
            f"{'the recorded host time' if host_scale == 1.0 else f'{host_scale:g} times the recorded host time'}"
        )
    return (
        SocStep(
            device=device.name,
            device_version=device.version,
            step_us=schedule.step_us,
            low_us=low,
            high_us=high,
            categories_us=times,
            critical_path=tuple(parts),
            by_family_us=dict(sorted(by_family.items(), key=lambda item: -item[1])),
            predicted_share=_share(on.predicted_recorded_us, on.recorded_us),
            computing_predicted_share=share,
            uncalibrated_share=share_of_confidence(on.confidences),
            invented_share=_share(on.invented_recorded_us, on.recorded_us),
            scaled_us=on.scaled_us,
            kept_us=on.kept_us,
            host_scale=host_scale,
            host_bound=host_bound,
            notes=tuple(notes),
        ),
        schedule,
    )


def _add(out: Predicted, nodes: Sequence[int], family: str, band: float, us: Floats | float) -> None:
    """Add time of one kernel family to nodes, with an error of the factor `band` in both directions.

    For the family UNKNOWN, the upward factor is at least MOST_BY_BYTES.
    """
    _put(out.families, out, nodes, family, us)
    _doubt(out, nodes, family, (band, max(band, MOST_BY_BYTES if family == UNKNOWN else 1.0)), us)


def _doubt(out: Predicted, nodes: Sequence[int], family: str, factors: tuple[float, float], us: Floats | float) -> None:
    """Add the error of these nodes' time to the errors of a kernel family. `factors` are (down, up)."""
    down, up = factors
    _put(out.shorter_us, out, nodes, family, us * (1.0 - 1.0 / down))
    _put(out.longer_us, out, nodes, family, us * (up - 1.0))


def _put(into: dict[str, Floats], out: Predicted, nodes: Sequence[int], family: str, us: Floats | float) -> None:
    if family not in into:
        into[family] = np.zeros(len(out.durations_us))
    into[family][nodes] += us


def _finish(graph: StepGraph, out: Predicted, done: Bools, nodes: Sequence[int], us: Floats | float) -> None:
    out.durations_us[nodes] = us
    out.predicted_recorded_us += float(graph.nodes.dur_us[nodes].sum())
    done[nodes] = True


def _collectives(
    trace: Trace, graph: StepGraph, predictor: Predictor, world: int | None, out: Predicted, done: Bools
) -> None:
    """Predict collectives of known size with the link model.

    Recorded times include waiting for other ranks. The predictions do not.
    """
    assert trace.activity is not None
    nodes, device = graph.nodes, predictor.device
    unknown = assumed = 0
    small: list[str] = []
    recorded_us = made_us = 0.0
    parents = innermost_parent(trace.ops)
    for node in np.flatnonzero((nodes.kind == COLLECTIVE) & (nodes.name >= 0)).tolist():
        recorded = trace.activity.collectives[int(nodes.collective[node])] if nodes.collective[node] >= 0 else None
        call = None if recorded is None else collective_call(recorded, world)
        group = None if recorded is None else recorded.group_size
        if call is None and nodes.owner[node] >= 0:
            by_ops = _collective_from_ops(trace, int(nodes.owner[node]), parents, world)
            call = None if by_ops is None else kernel_of(by_ops)
            group = None if by_ops is None else by_ops.group_size
        if call is None:
            out.kept_us += float(nodes.dur_us[node])
            unknown += 1
            done[node] = True
            continue
        assumed += group is None and world is None
        result = predictor(call)
        small += filter(None, [missing_dies(call.attrs.get("world_size"), device)])
        recorded_us, made_us = recorded_us + float(nodes.dur_us[node]), made_us + result.time_us
        family = family_of(call, device)
        _add(out, [node], family.name, total_band(device, family.name), result.time_us)
        _finish(graph, out, done, [node], result.time_us)
        out.confidences.append((result.confidence, result.time_us))
        assert out.contention is not None
        out.contention.draws(node, call, result.time_us, result.algorithm)
    out.collectives_us = recorded_us, made_us
    if unknown:
        out.notes.append(
            f"{unknown} collectives of unknown size take their recorded time, including waiting for other ranks"
        )
    if small:
        out.notes.append(
            f"{len(small)} collectives have more ranks than the cluster has dies ({max(small, key=len)}): "
            "they are predicted for these dies only, so less data moves"
        )
    if assumed:
        out.notes.append(
            f"{assumed} collectives have an unknown group: they are assumed to span the 8 dies of a server"
        )


def _collective_from_ops(trace: Trace, owner: int, parents: Ints, world: int | None) -> CollectiveOp | None:
    """Return the collective that a task runs, from the arguments of the task's op and of the `c10d` op around it."""
    around = [trace.signatures[int(trace.ops.signature[owner])]]
    if (above := int(parents[owner])) >= 0:
        around.insert(0, trace.signatures[int(trace.ops.signature[above])])
    around = [s for s in around if is_collective(s)]
    return collective_of(Records(names=[s.name for s in around], signatures=around), world)[0] if around else None


def collective_call(recorded: Collective, world: int | None) -> KernelCall | None:
    """Return the kernel of a recorded collective; None if the collective's size or kind is unknown."""
    known = of_record(recorded, world)
    return None if known is None else kernel_of(known)


def _recorded_kernels(trace: Trace, graph: StepGraph, predictor: Predictor, out: Predicted, done: Bools) -> None:
    """Predict an NPU's tasks that the kernel table describes.

    They are predicted in launch order, because the order determines the L2 contents.
    """
    details, nodes = trace.details, graph.nodes
    if details is None:
        return
    rows = np.flatnonzero((nodes.row >= 0) & ~done)
    rows = rows[details.kind[nodes.row[rows]] >= 0]
    calls: list[KernelCall | None] = []
    by_kind: dict[int, KernelCall | None] = {}
    for node in rows.tolist():
        kind = int(details.kind[nodes.row[node]])
        if kind not in by_kind:
            by_kind[kind] = _call_of(trace, kind)
        calls.append(by_kind[kind])
    loads = codes_kept(calls)
    for node, call, touches, loaded in zip(rows.tolist(), calls, reuse_distances(calls), loads, strict=True):
        if call is None:
            continue
        result = predictor(call, resident_of(touches, predictor.device), loaded=loaded)
        if out.contention is not None:
            out.contention.needs([node], result.terms_us, result.time_us)
        family = family_of(call, predictor.device)
        _add(out, [node], family.name, total_band(predictor.device, family.name), result.time_us)
        _finish(graph, out, done, [node], result.time_us)
        out.confidences.append((result.confidence, result.time_us))


def _call_of(trace: Trace, kind: int) -> KernelCall | None:
    assert trace.details is not None
    row = trace.details.kinds[kind]
    if not row.inputs and not row.outputs:
        return None
    try:
        outputs = row.outputs if row.outputs or not row.inputs else complete_outputs(row.type, row.inputs)
    except (ValueError, OverflowError):
        return None
    on_host = row.core.upper() in ("AI_CPU", "AICPU")
    return KernelCall(type=row.type, inputs=row.inputs, outputs=outputs, attrs={"core": "AI_CPU"} if on_host else {})


def _lowered_ops(
    trace: Trace,
    graph: StepGraph,
    predictor: Predictor,
    ops: Mapping[str, ReplayOp],
    contents: ContentsOf | None,
    resident: Mapping[str, Sequence[Held]] | None,
    out: Predicted,
    done: Bools,
) -> None:
    """Predict tasks through the op that owns them.

    The op's time is divided among its tasks in proportion to their recorded times.

    If more kernels are predicted for the op than were recorded, the gaps of the additional kernels are added.
    """
    from opreplay.replay.plan.recorded.groups import signature_id

    nodes, device = graph.nodes, predictor.device
    rows = np.flatnonzero((nodes.owner >= 0) & (nodes.name >= 0) & ~done & ~copies_of(trace, graph, "HtoD", "DtoH"))
    # Of an op with tasks that a kernel table describes, the others (fills, copies) are not the whole op again.
    rows = rows[~np.isin(nodes.owner[rows], nodes.owner[done & (nodes.owner >= 0)])]
    by_call: defaultdict[int, list[int]] = defaultdict(list)
    for node in rows.tolist():
        by_call[int(nodes.owner[node])].append(node)
    known: dict[int, _OnDevice | None] = {}
    recorded_us: defaultdict[int, list[float]] = defaultdict(list)
    for owner, of_it in by_call.items():
        signature = int(trace.ops.signature[owner])
        if signature not in known:
            op = ops.get(signature_id(trace.signatures[signature]))
            known[signature] = None if op is None else _on_device(op, predictor, contents, resident or {}, out.notes)
        prediction = known[signature]
        if prediction is None:
            continue
        simulated = prediction.simulated
        if out.contention is not None:
            out.contention.needs(of_it, simulated.terms_us, simulated.time_us)
        recorded = nodes.dur_us[of_it]
        total = float(recorded.sum())
        share = recorded / total if total else np.full(len(of_it), 1.0 / len(of_it))
        more = TASK_GAP_US * max(0, max(1, len(simulated.kernels)) - len(of_it))
        for name, us in prediction.families.items():
            _put(out.families, out, of_it, name, us * share)
        if prediction.families and simulated.time_us > 0.0:
            # As in `simulate`: an op is known as well as its own prediction, and errs with the family of most of it.
            name = max(prediction.families, key=prediction.families.__getitem__)
            band = HOST_COPY.band if name == HOST_COPY.name else total_band(device, name)
            own = simulated.time_us / (simulated.low_us or simulated.time_us), simulated.high_us / simulated.time_us
            _doubt(out, of_it, name, (max(band, own[0]), max(band, own[1])), simulated.time_us * share)
        _finish(graph, out, done, of_it, (simulated.time_us + more) * share)
        recorded_us[signature].append(total)
        out.confidences.append((simulated.confidence, simulated.time_us))
        out.measured.append((simulated.measured, simulated.time_us))
        out.invented_recorded_us += total if simulated.by == "invented sizes" else 0.0
    if out.dispatch_us is None:  # else what was recorded is another kind of work, a host's
        rows = [(on, us) for signature, us in recorded_us.items() if (on := known[signature]) is not None]
        out.notes += _doubtful(rows, device.name, out.recorded_us)


class _OnDevice(NamedTuple):
    """Prediction of an op's call on the device; times in µs."""

    op: ReplayOp
    simulated: Simulated
    families: Mapping[str, float]


def _on_device(
    op: ReplayOp,
    predictor: Predictor,
    contents: ContentsOf | None,
    resident: Mapping[str, Sequence[Held]],
    notes: list[str],
) -> _OnDevice | None:
    """Predict a call of an op on the device; None if there is no prediction.

    If a user's cost function fails, the reason is added to `notes`.
    """
    if op.reason is not None and op.reason.kind == "metadata missing":
        return None
    amounts = contents(op) if contents is not None else None
    try:
        simulated, families = simulate_by_family(op, predictor.device, predictor, amounts, resident.get(op.id, ()))
    except CustomOpError as error:
        notes.append(f"{op.name} is not predicted: {error.problem}")
        return None
    if simulated.time_us > 0.0 or (op.reason is None and simulated.by != "nothing"):
        return _OnDevice(op, simulated, families)
    return None


def _doubtful(rows: Sequence[tuple[_OnDevice, Sequence[float]]], device: str, step_us: float) -> Iterator[str]:
    """Yield notes on ops with a prediction that contradicts their recorded times and takes a large part of the step."""
    every = sum(on.simulated.time_us * len(recorded) for on, recorded in rows)
    for on, recorded in rows:
        share = _share(on.simulated.time_us * len(recorded), every)
        whole = sum(recorded)
        doubts = suspicions(
            on.op,
            share=max(share, _share(whole, step_us)),
            recorded_us=whole / len(recorded),
            measured_us=None,
            simulated=[(device, on.simulated)],
        )
        if doubts and max(share, _share(whole, step_us)) >= LARGE_SHARE:
            yield f"{on.op.name} takes {100 * share:.1f} % of the predicted time: {'; '.join(doubts)}"


def _rest(trace: Trace, graph: StepGraph, tasks: Ints, out: Predicted, done: Bools) -> None:
    """Set the times of tasks without a prediction.

    Copies keep their recorded times. Other tasks are scaled by the ratio of predicted to recorded time of the predicted
    compute tasks.
    """
    nodes = graph.nodes
    rest = tasks[~done[tasks]]
    copies = rest[nodes.kind[rest] == COPY]
    out.kept_us += float(nodes.dur_us[copies].sum())
    others = rest[nodes.kind[rest] != COPY]
    if not len(others):
        return
    compute = done & (nodes.kind != COLLECTIVE) & (nodes.name >= 0)
    before = float(nodes.dur_us[compute].sum())
    ratio = float(out.durations_us[compute].sum()) / before if before else 1.0
    scaled = nodes.dur_us[others] * ratio
    out.durations_us[others] = scaled
    out.scaled_us = float(scaled.sum())
    out.scaled_recorded_us = float(nodes.dur_us[others].sum())
    _add(out, others.tolist(), "(not predicted)", UNPREDICTED_BAND, scaled)
    share = out.scaled_recorded_us / out.recorded_us if out.recorded_us else 0.0
    why = (
        "scaled like the time of the predicted tasks"
        if before
        else "as recorded, because no compute kernel of this step has a prediction"
    )
    out.notes.append(
        f"{len(others)} tasks ({100 * share:.1f} % of the recorded device time) have no prediction: their time is {why}"
    )


def _latencies(trace: Trace, graph: StepGraph, out: Predicted) -> None:
    """Set launch latencies and gaps to those of the simulated device. A recording of an NPU keeps its own."""
    if trace.info.dialect == "ascend":
        return
    out.latencies_assumed = True
    edges = graph.edges
    launches = edges.kind == LAUNCH
    # Within one launch of many (a captured graph) only the first task has the latency.
    firsts = launches & (edges.lag_us >= 0.5 * graph.launch_latency_us)
    out.lags_us[firsts] = LAUNCH_LATENCY_US
    out.lags_us[edges.kind == STREAM] = TASK_GAP_US
    host = "host time is copied from the recorded machine and framework"
    if out.dispatch_us is not None:
        host = f"{host}, {DISPATCH_US:g} µs for each op moved to the device (from a public torch_npu profile)"
    out.notes.append(
        f"{ASSUMED} {LAUNCH_LATENCY_US:g} µs and {TASK_GAP_US:g} µs between tasks, from public 910B profiles; {host}"
    )
    if trace.graphs is not None and len(trace.graphs):
        out.notes.append(OF_GRAPHS)


def _band(graph: StepGraph, on: Predicted, step_us: float) -> tuple[float, float]:
    """Return the 80 % band (low, high) of the step time.

    The error of each kernel family is propagated through the graph, and so are those of assumed dispatch times and
    latencies. The resulting changes of the step time add in quadrature.
    """
    order = sorted(on.longer_us, key=lambda name: -float(on.longer_us[name].sum()))
    groups = [[name] for name in order[:MOST_FAMILIES]]
    us, lags_us = on.durations_us, on.lags_us
    changes: list[tuple[Floats, Floats, Floats, Floats]] = []  # longer and shorter durations, each with lags
    for group in filter(None, [*groups, order[MOST_FAMILIES:]]):
        more = sum((on.longer_us[name] for name in group), us)
        less = us - sum(on.shorter_us[name] for name in group)
        changes.append((more, lags_us, np.maximum(less, 0.0), lags_us))
    if on.dispatch_us is not None:
        more = us + on.dispatch_us * (DISPATCH_BAND - 1.0)
        less = np.maximum(0.0, us - on.dispatch_us * (1.0 - 1.0 / DISPATCH_BAND))
        changes.append((more, lags_us, less, lags_us))
    if on.latencies_assumed:
        lags = np.isin(graph.edges.kind, (LAUNCH, STREAM))
        more = np.where(lags, np.maximum(lags_us, 0.0) * LATENCY_BAND, lags_us)
        less = np.where(lags, np.maximum(lags_us, 0.0) / LATENCY_BAND, lags_us)
        changes.append((us, more, us, less))
    up = sum(max(0.0, paced(graph, longer, lags).step_us - step_us) ** 2 for longer, lags, _, _ in changes)
    down = sum(max(0.0, step_us - paced(graph, shorter, lags).step_us) ** 2 for _, _, shorter, lags in changes)
    return max(0.0, step_us - math.sqrt(down)), step_us + math.sqrt(up)
