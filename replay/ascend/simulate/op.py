# pyright: strict
"""Predicts a whole op on a simulated device and explains the prediction; pure functions of the lowered kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from opreplay.replay.ascend.cost.cells import CONFIDENCE, RANK, Cell, band_of, weakest
from opreplay.replay.ascend.cost.correction import Correction, Learned, Traits, octaves, shipped_correction
from opreplay.replay.ascend.cost.cube import gemm_of
from opreplay.replay.ascend.cost.predict import (
    BOUNDS,
    CUBE_FORMS,
    MOVES_ALL,
    MOVING,
    NO_INSTRUCTIONS,
    UNLIKE_CORES,
    family_of,
    least_us,
    only_moves,
    widen_band,
)
from opreplay.replay.ascend.cost.predictor import Predictor
from opreplay.replay.ascend.cost.residency import Held, resident_of, touches_in, written_back
from opreplay.replay.ascend.cost.sizes import tally_of
from opreplay.replay.ascend.cost.vector_work import operations_of
from opreplay.replay.ascend.custom.estimators import estimate, property_terms
from opreplay.replay.ascend.custom.programs import program_cost
from opreplay.replay.ascend.devices.file import REFERENCE, alone, load_device
from opreplay.replay.ascend.lowering import OPAQUE, Lowering, lower
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.measured import adjust, estimate_of
from opreplay.replay.ir.kernel import Confidence, Evidence, KernelCall, State, WorkKind
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.sizes import is_impossible, tensors_of
from opreplay.replay.ops.work.contents import Contents
from opreplay.replay.results.records import By, L2State, Simulated
from opreplay.traces.collectives.names import is_wait
from opreplay.traces.errors import OpReplayError, internal_error
from opreplay.traces.model import MOST_ELEMENTS, tensor_text
from opreplay.traces.sums import summed

Parts = list[tuple[KernelCall, Simulated]]
"""The kernels of an op with their predictions."""


class KernelExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel of an explained op."""

    type: str
    family: str
    inputs: tuple[str, ...]
    """Input tensors as text, e.g. "bfloat16[4096,1024] ND"."""
    outputs: tuple[str, ...]
    attrs: dict[str, object]
    count: int
    prediction: Simulated
    samples: int
    """Number of unique kernels of this family that the device was calibrated with."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of an op's predicted time."""

    op: str
    device: str
    device_version: str
    simulated: Simulated
    kernels: tuple[KernelExplanation, ...]
    notes: tuple[str, ...]


BY_USER = ("user estimator", "user properties", "tile program", "user rule")
"""Prediction methods (`Simulated.by`) that users registered."""


def is_predicted(op: ReplayOp, simulated: Simulated) -> bool:
    """Check whether a prediction covers the op's work.

    It does not for labels that are costed by bytes, for ops without arguments, and for a call that no device can run.
    """
    if is_impossible(op) or simulated.by == "nothing":
        return False
    if simulated.by in BY_USER or is_wait(op.name):
        return True
    if simulated.by == "bytes":
        return simulated.time_us > 0 and (op.reason is None or op.reason.kind not in OPAQUE)
    return op.reason is None or simulated.time_us > 0


def _combine(parts: Parts, lowering: Lowering, l2: L2State, device: DeviceProfile) -> Simulated:
    terms = summed(
        (name, us * call.count) for call, cost in parts for name, us in _terms_of(call, cost, device).items()
    )
    total = sum((cost.time_us * call.count for call, cost in parts), 0.0)
    low_us, high_us = _band(parts, lowering, total)
    evidence = _weakest(parts, total)
    by_bound = summed((str(BOUNDS[name]), us) for name, us in terms.items())
    return Simulated(
        time_us=total,
        bound=NO_ELEMENTS if lowering.fills_nothing else _bound(by_bound, parts, total),
        terms_us=terms,
        kernels=tuple(call.type for call, _ in parts),
        l2=l2,
        extrapolated=any(cost.extrapolated and cost.time_us > EXTRAPOLATED_SHARE * total for _, cost in parts),
        algorithm=next((cost.algorithm for _, cost in parts if cost.algorithm), ""),
        confidence=_confidence(evidence, lowering),
        low_us=low_us,
        high_us=high_us,
        evidence=evidence,
        work=work_of_parts(parts),
        by=_by(lowering),
        source=lowering.source or lowering.unbounded,
    )


def _terms_of(call: KernelCall, cost: Simulated, device: DeviceProfile) -> dict[str, float]:
    """Return the microseconds of one call by term; "vector" becomes `MOVING` if the kernel only moves data."""
    terms = cost.terms_us
    if "vector" not in terms or not only_moves(family_of(call, device)):
        return terms
    return {MOVING if name == "vector" else name: us for name, us in terms.items()}


def _band(parts: Parts, lowering: Lowering, total_us: float) -> tuple[float, float]:
    floor = LEAST_ASSUMED if lowering.assumed and total_us > 0 else 1.0
    sure = [(cost, cost.time_us * call.count) for call, cost in parts if cost.time_us and cost.low_us]
    up = _deviation([(cost.high_us / cost.time_us, us) for cost, us in sure], total_us)
    down = _deviation([(cost.time_us / cost.low_us, us) for cost, us in sure], total_us)
    return total_us / max(floor, down), total_us * max(floor, up)


def _deviation(ratios: list[tuple[float, float]], total_us: float) -> float:
    """Return the error factor of a sum of times. Each time is given as (error factor, microseconds).

    Errors of an op's kernels are assumed to be independent, so the squares of their deviations are added.
    """
    squares = sum((math.log(max(1.0, ratio)) * us) ** 2 for ratio, us in ratios)
    return math.exp(math.sqrt(squares) / total_us) if total_us > 0 else 1.0


def _weakest(parts: Parts, total_us: float) -> Evidence:
    """Return the weakest evidence among kernels with a significant share of the time."""
    least_us = EXTRAPOLATED_SHARE * total_us
    return weakest(cost.evidence for call, cost in parts if cost.evidence and cost.time_us * call.count > least_us)


def work_of_parts(parts: Parts) -> WorkKind:
    """Return the kind of work of the kernel that takes longest."""
    longest = max(parts, key=lambda part: part[1].time_us * part[0].count, default=None)
    return (longest[1].work if longest is not None else None) or "streaming"


def _confidence(evidence: Evidence, lowering: Lowering) -> Confidence:
    return "uncalibrated" if lowering.assumed or not lowering.known else CONFIDENCE[evidence]


def _by(lowering: Lowering) -> By:
    if lowering.unbounded:
        return "nothing"
    if not lowering.known:
        return "bytes"
    if lowering.source:
        return "user rule"
    return "invented sizes" if lowering.invented else "rule"


def _bound(by_bound: Mapping[str, float], parts: Parts, total: float) -> str:
    """Return the bound with the most time; "slow path" if kernels on slow paths take more than half of the total."""
    slow = sum(cost.time_us * call.count for call, cost in parts if cost.bound == "slow path")
    if slow > 0.5 * total:
        return "slow path"
    return max(by_bound, key=by_bound.__getitem__) if by_bound else "none"


NO_ELEMENTS = "no elements"
"""Bound of an op that launches nothing because its results have no elements."""
LEAST_ASSUMED = 3.0
"""Minimum band factor of an op with assumed sizes. It is this large because weights may be half or twice as large, or
have another precision.
"""
EXTRAPOLATED_SHARE = 0.1
"""Minimum share of an op's time that a kernel must exceed to affect how the op is judged. Such a kernel can make the op
extrapolated or decide its evidence.
"""


def state_of(l2: L2State) -> State:
    """Return the cache state in which kernels are predicted. It is the same for loops and cold caches; `_corrected`
    distinguishes these.
    """
    return "network" if l2 == "sequence" else "cold" if l2 == "loop" else l2


def simulate_op(
    op: ReplayOp,
    device: DeviceProfile,
    contents: Contents | None = None,
    l2: L2State = "sequence",
    learned: Learned | None = None,
) -> Simulated:
    """Predict one call of `op` on `device`: microseconds, bottleneck and an 80 % band.

    The methods, in order of precedence, are: a user's estimator (bound "custom"); a user's properties; a tile program
    registered for the op; the lowering to kernels; the op's bytes (marked "uncalibrated"). `by` says which was used.
    Views cost nothing and have the bound "none".

    `contents` describes the values of the arguments; by default, they are derived from the batch that the op ran in.
    `l2` is the cache state at the start. An isolated call is corrected by measured calls: those in `learned` or, by
    default, the shipped ones. Raises CustomOpError if a user's function fails, InternalError for an error in opreplay.
    """
    return simulate_by_family(op, device, contents=contents, l2=l2, learned=learned)[0]


def simulate_in_turn(
    ops: Sequence[ReplayOp],
    device: DeviceProfile,
    l2: L2State,
    contents: Callable[[ReplayOp], Contents | None] | None = None,
    learned: Learned | None = None,
) -> list[Simulated]:
    """Predict consecutive calls that were timed together.

    The first call starts in state `l2`. Each further call starts on warm caches: it finds the data of the previous call
    in L2 if they fit.
    """
    return [
        simulate_op(op, device, contents(op) if contents is not None else None, "warm" if number else l2, learned)
        for number, op in enumerate(ops)
    ]


def simulate_kernels(op: ReplayOp, device: DeviceProfile, l2: L2State = "sequence") -> Simulated:
    """Predict an op as `simulate_op` does, but only from the lowered kernels. User registrations are ignored."""
    return _by_kernels(op, device, Predictor(device), None, (), l2)[0]


def simulate_by_family(
    op: ReplayOp,
    device: DeviceProfile,
    predict: Predictor | None = None,
    contents: Contents | None = None,
    cached: Sequence[Held] = (),
    l2: L2State = "sequence",
    learned: Learned | None = None,
) -> tuple[Simulated, dict[str, float]]:
    """Predict an op as `simulate_op` does.

    Also return the microseconds of one call by kernel family; a user's estimate has the family "custom". `predict`
    caches the predictions of kernels that several ops have in common. `cached` gives the cache state of each kernel, if
    known. Raises CustomOpError if a user's function fails, InternalError for an error in opreplay.
    """
    own_us = estimate(op, device)
    if own_us is not None:
        simulated = _by_user({"custom": own_us.value}, device, "user estimator", own_us.source)
        return msgspec.structs.replace(simulated, l2=l2, taken_for=own_us.assumed), {"custom": own_us.value}
    terms = property_terms(op, device, state_of(l2))
    if terms is not None:
        simulated = _by_user(terms.value, device, "user properties", terms.source)
        return msgspec.structs.replace(simulated, l2=l2, taken_for=terms.assumed), {"custom": sum(terms.value.values())}
    program = program_cost(op, device, state_of(l2))
    if program is not None:
        return msgspec.structs.replace(program, l2=l2), {"custom": program.time_us}
    try:
        return _by_kernels(op, device, predict or Predictor(device), contents, cached, l2, learned)
    except OpReplayError:
        raise
    except Exception as error:
        raise internal_error(f"cost of {op.name} ({op.id}) on {device.name}", error) from error


def _by_kernels(
    op: ReplayOp,
    device: DeviceProfile,
    predict: Predictor,
    contents: Contents | None,
    cached: Sequence[Held],
    l2: L2State,
    learned: Learned | None = None,
) -> tuple[Simulated, dict[str, float]]:
    """Predict an op from its lowered kernels; also return the microseconds of one call by kernel family."""
    if op.reason is not None and op.reason.kind == "layout not recorded":
        return msgspec.structs.replace(_NOTHING, source=str(op.reason)), {}
    lowering = lower(op, contents)
    if any(_is_absurd_kernel(call) for call in lowering.kernels):
        return _NOTHING, {}
    parts, simulated = _together(op, lowering, device, predict, cached, l2, learned)
    families = summed((family_of(call, device).name, cost.time_us * call.count) for call, cost in parts)
    taken_for = _taken_for(lowering, device) if lowering.source else lowering.near
    simulated = msgspec.structs.replace(simulated, taken_for=taken_for)
    if op.refuted and simulated.by in ("rule", "invented sizes", "bytes"):
        return msgspec.structs.replace(_NOTHING, source=op.assumptions[-1].what), {}
    return _marked(simulated, missing_path(op, lowering, device)), families


def _together(
    op: ReplayOp,
    lowering: Lowering,
    device: DeviceProfile,
    predict: Predictor,
    cached: Sequence[Held],
    l2: L2State,
    learned: Learned | None = None,
) -> tuple[Parts, Simulated]:
    """Return an op's kernels with their predictions, and the op's prediction.

    Both are adjusted to the user's measurements on the device.
    """
    parts, simulated = _shipped(op, lowering, device, predict, cached, l2, learned)
    if not device.measured or simulated.time_us <= 0 or op.collective is not None:
        return parts, simulated
    families = summed((family_of(call, device).name, cost.time_us * call.count) for call, cost in parts)
    factor, simulated = adjust(simulated, estimate_of(op, families, simulated), device)
    return [(call, cost.times(factor)) for call, cost in parts], simulated


def _shipped(
    op: ReplayOp,
    lowering: Lowering,
    device: DeviceProfile,
    predict: Predictor,
    cached: Sequence[Held],
    l2: L2State,
    learned: Learned | None,
) -> tuple[Parts, Simulated]:
    """Return an op's kernels with their times, and the op's prediction. Neither uses the user's measurements.

    In a network, the prediction uses the device's fitted constants. For an isolated call, it uses the constants for
    isolated calls and is corrected by measured calls.
    """
    state = state_of(l2)
    if state != "network":
        parts = time_kernels(lowering.kernels, predict, state)
    else:
        cached = cached if len(cached) == len(lowering.kernels) else [Held()] * len(lowering.kernels)
        parts = [
            (call, predict(call, cache.resident, state, cache.loaded))
            for call, cache in zip(lowering.kernels, cached, strict=True)
        ]
    simulated = _combine(parts, lowering, l2, device)
    if simulated.by != "rule" or simulated.time_us <= 0 or device.is_own_fit:
        return parts, simulated
    if state == "network":
        return _at_least_warm(op, lowering, device, parts, simulated, learned or shipped_correction())
    return _corrected(op, lowering, device, l2, learned or shipped_correction()) or (parts, simulated)


MOST_BELOW_WARM = 1.8
"""Maximum factor by which an irregular op may be predicted faster in a network than on warm caches.

It may be faster at all for two reasons. Programs of networks launch kernels faster than loops over one call do.
Networks and loops were measured by different sources.
"""


def _at_least_warm(
    op: ReplayOp, lowering: Lowering, device: DeviceProfile, parts: Parts, simulated: Simulated, learned: Learned
) -> tuple[Parts, Simulated]:
    """Raise the predicted time of an irregular op in a network to at least its time on warm caches divided by
    `MOST_BELOW_WARM`.

    This is done because the constants for networks come from few irregular calls, most of them small. The time on warm
    caches is a limit because no network leaves more data in L2 than an identical call does.
    """
    if simulated.work != "irregular":
        return parts, simulated
    warm = _corrected(op, lowering, device, "warm", learned)
    if warm is None or warm[1].time_us <= MOST_BELOW_WARM * simulated.time_us:
        return parts, simulated
    factor = warm[1].time_us / MOST_BELOW_WARM / simulated.time_us
    return [(call, cost.times(factor)) for call, cost in parts], simulated.times(factor)


def time_kernels(kernels: Sequence[KernelCall], predict: Predictor, state: State) -> Parts:
    """Return the kernels of an isolated op that starts in cache state `state`, with their predictions."""
    touched = touches_in(kernels, state)
    return [
        (call, predict(call, resident_of(written_back(call, touches), predict.device), state))
        for call, touches in zip(kernels, touched, strict=True)
    ]


NOT_CORRECTED = frozenset({"collective", "host", "free", "attention"})
"""Forms whose predictions are not corrected, because measured calls say too little about them. Attention is one of them
because its time depends on contents.
"""


class Uncorrected(msgspec.Struct, frozen=True):
    """Prediction for an isolated call, before it is corrected with the help of measured calls."""

    traits: Traits
    """Properties by which the call is compared with measured calls."""
    simulated: Simulated
    """Prediction by the cost formulas, without measured calls."""
    parts: Parts
    assumed: bool
    """Whether sizes that decide the time were assumed."""


def uncorrected(op: ReplayOp, device: DeviceProfile, l2: L2State) -> Uncorrected | None:
    """Predict an isolated call by the cost formulas alone.

    Returns None if the op is not lowered by a built-in rule, or if measured calls cannot correct it.
    """
    lowering = lower(op)
    return _uncorrected(op, lowering, device, l2) if _by(lowering) == "rule" else None


def _uncorrected(op: ReplayOp, lowering: Lowering, device: DeviceProfile, l2: L2State) -> Uncorrected | None:
    if not lowering.kernels:
        return None
    predict = Predictor(alone(device))
    parts = time_kernels(lowering.kernels, predict, state_of(l2))
    simulated = _combine(parts, lowering, l2, predict.device)
    traits = _traits(op, lowering, device.kind, l2)
    if traits is None or simulated.time_us <= 0:
        return None
    return Uncorrected(traits, simulated, parts, lowering.assumed)


def _traits(op: ReplayOp, lowering: Lowering, generation: str, l2: L2State) -> Traits | None:
    """Return the properties by which a call is compared with measured calls; None if it cannot be compared."""
    state = state_of(l2)
    predict = Predictor(alone(load_device(REFERENCE[generation])))
    parts = time_kernels(lowering.kernels, predict, state)
    simulated = _combine(parts, lowering, "cold", predict.device)
    working = [(cost.time_us * call.count, call) for call, cost in parts if cost.time_us > 0]
    if not working:
        return None
    call = max(working, key=lambda pair: pair[0])[1]
    family, tally = family_of(call, predict.device), tally_of(call)
    if family.form in NOT_CORRECTED:
        return None
    shape = tally.widest.shape if tally.widest is not None else ()
    return Traits(
        op=_work_of(op.name, lowering, call.type),
        family=family.name,
        form=family.form,
        kernel=_way_of(call),
        generation=generation,
        state=l2,
        log_time=octaves(simulated.time_us),
        log_elements=octaves(tally.elements),
        log_row=octaves(shape[-1] if shape else 1),
        launch=simulated.terms_us.get("launch", 0.0) / simulated.time_us,
    )


def _work_of(name: str, lowering: Lowering, longest: str) -> str:
    """Return a key for the work of an op.

    For aten ops, it consists of the kernel types, because several names request the same work. TensorMove, the copy of
    a tensor that is then written in place, is not part of the key, unless it is the `longest` kernel. All programs on
    the control processors have the same kernel type, so the key of an op that runs there is its name.
    """
    kinds = dict.fromkeys(call.type for call in lowering.kernels)
    if len(kinds) > 1 and longest != "TensorMove":
        kinds.pop("TensorMove", None)
    if name.startswith("aten::") and "AiCpu" not in kinds:
        return "+".join(kinds)
    return name.split(".")[0].rstrip("_")


def _way_of(call: KernelCall) -> str:
    """Return a kernel's type, followed by the variant ":grouped" or ":middle" if the kernel has one."""
    inner = call.attrs.get("inner")
    middle = isinstance(inner, int) and inner > 1
    return call.type + (":grouped" if "groups" in call.attrs else ":middle" if middle else "")


def _corrected(
    op: ReplayOp, lowering: Lowering, device: DeviceProfile, l2: L2State, learned: Learned
) -> tuple[Parts, Simulated] | None:
    """Return the prediction of an isolated call, corrected by similar measured calls; None if measured calls cannot
    correct it.
    """
    bare = _uncorrected(op, lowering, device, l2)
    if bare is None:
        return None
    simulated = corrected(bare, learned.ask(bare.traits), device)
    for colder in COLDER.get(l2, ()):
        if (other := _uncorrected(op, lowering, device, colder)) is not None:
            most_us = corrected(other, learned.ask(other.traits), device).time_us
            simulated = simulated.times(min(1.0, most_us / simulated.time_us))
    factor = simulated.time_us / bare.simulated.time_us
    return [(call, cost.times(factor)) for call, cost in bare.parts], simulated


def corrected(bare: Uncorrected, correction: Correction, device: DeviceProfile) -> Simulated:
    """Return the prediction corrected by measured calls.

    The time is at least the lower bound of the op's kernels. The band depends on the evidence and the kind of work.
    """
    simulated, parts = bare.simulated, bare.parts
    time_us = max(simulated.time_us * correction.factor, _least_us(simulated, parts, device))
    evidence = _evidence_of_op(correction, parts, simulated, device)
    extrapolated = simulated.extrapolated and (not correction.is_measured or correction.beyond)
    band = band_of(Cell(evidence, work_of_parts(parts)))
    if extrapolated and RANK[evidence] <= RANK["another SoC"]:
        band = widen_band(band)
    return msgspec.structs.replace(
        simulated.times(time_us / simulated.time_us),
        low_us=time_us / band,
        high_us=time_us * band,
        evidence=evidence,
        confidence="uncalibrated" if bare.assumed else CONFIDENCE[evidence],
        extrapolated=extrapolated,
    )


COLDER: dict[L2State, tuple[L2State, ...]] = {"warm": ("cold", "loop"), "loop": ("cold",)}
"""Colder states of a cache state. A call that starts in the state is predicted to take at most as long as in each of
the colder states.
"""


def _evidence_of_op(correction: Correction, parts: Parts, simulated: Simulated, device: DeviceProfile) -> Evidence:
    """Return the evidence from measured calls of the op if there are any, otherwise the evidence for its kernels.

    Dtypes without instructions were never measured and have the evidence "its form".
    """
    if any(spec.dtype in NO_INSTRUCTIONS for call, _ in parts for spec in call.inputs if spec is not None):
        return "its form"
    if correction.is_measured:
        return "this SoC" if (device.shipped_name or device.name) in correction.socs else "another SoC"
    return _weakest(parts, simulated.time_us)


def _least_us(simulated: Simulated, parts: Parts, device: DeviceProfile) -> float:
    """Return a lower bound on the time of a call in microseconds.

    It is the larger of two times: `least_us` of its kernels, and the HBM time of the bytes that are not in L2. On cold
    caches, all bytes read come from HBM. In a loop over more data than L2 holds, nothing is found in L2 again, because
    the least recently used data are evicted first. Measured on a 910B2 with 192 MB of L2: a copy of 400 MB runs at 1.27
    of 1.6 TB/s (GroundUpScale), a maximum of 300 MB at 1.59 (hicann/cann-bench).
    """
    bare, calls = alone(device), [call for call, _ in parts]
    floor_us = sum(
        call.count * least_us(family_of(call, bare), bare, tally_of(call), gemm_of(call), operations_of(call))
        for call in calls
        if family_of(call, bare).form not in UNLIKE_CORES
    )
    read, last = _whole_reads(calls, bare), calls[-1]
    written = tally_of(last).write if family_of(last, bare).form in MOVES_ALL else 0.0
    held = min(bare.l2_bytes, max(0.0, 2 * bare.l2_bytes - (read + written)))
    far = read + max(0.0, written - held)
    if simulated.l2 == "warm":
        far = read + written if read + written > bare.l2_bytes else 0.0
    return max(floor_us, far / (MAX_MEASURED_HBM_SHARE * bare.hbm_bytes_per_s) * 1e6)


MAX_MEASURED_HBM_SHARE = 0.94
"""Largest measured share of the HBM peak bandwidth, over 1,200 public measured calls. Gelu of 268 MB on a 910B2 reached
it.
"""
ELEMENTWISE_LOOKUPS = frozenset({"GatherElements", "ScatterElements", "InplaceIndexAdd"})
"""Lookup kernels that read one index per element."""


def _whole_reads(calls: Sequence[KernelCall], device: DeviceProfile) -> float:
    """Return the bytes of the tensors that an op's kernels read in full. Lookup tables do not count.

    Each tensor counts once. Several kernels may have read the same tensor. The result is at least the bytes of the
    kernel that reads most.
    """
    first_bytes, largest_bytes = 0.0, 0.0
    for call, touches in zip(calls, touches_in(calls, "cold"), strict=True):
        reads = touches[: sum(spec is not None for spec in call.inputs)]
        if family_of(call, device).form not in MOVES_ALL:
            reads = reads[1:] if call.type in ELEMENTWISE_LOOKUPS else ()
        first_bytes += sum(size for size, distance in reads if distance is None)
        largest_bytes = max(largest_bytes, sum(size for size, _ in reads))
    return max(first_bytes, largest_bytes)


def _taken_for(lowering: Lowering, device: DeviceProfile) -> str:
    """Return a text that says how each kernel of a user's rule is costed.

    It is costed as a kernel of a family or, if its name is unknown, by its bytes. If the op's arguments have no names,
    the text also says which argument was used for each name that the rule requested.
    """
    families = {call.type: family_of(call, device).name for call in lowering.kernels}
    costed = ", ".join(
        f"{kind} costed by its bytes, because that kernel name is unknown"
        if name == "Unknown"
        else f"{kind} costed as a kernel of family {name}"
        for kind, name in families.items()
    )
    placed = ", ".join(f"{name} = argument {place}" for name, place in lowering.placed)
    return f"{costed}; argument names not checked, because the library is not installed: {placed}" if placed else costed


_NOTHING = Simulated(
    time_us=0.0, bound="none", terms_us={}, kernels=(), confidence="uncalibrated", low_us=0.0, high_us=0.0, by="nothing"
)
"""Result that means "no prediction"; see `is_predicted`."""


def _is_absurd_kernel(call: KernelCall) -> bool:
    """Check whether a kernel has more elements than any memory holds. If so, the op's arguments are invalid."""
    specs = [spec for spec in (*call.inputs, *call.outputs) if spec is not None]
    return any(math.prod(spec.shape) > MOST_ELEMENTS for spec in specs)


_NARROW_FLOATS = ("float8", "float4")


def missing_path(op: ReplayOp, lowering: Lowering, device: DeviceProfile) -> str:
    """Return the operand dtype of a matrix product that no known unit of the device can multiply; "" if there is none.

    Such a product is costed at the rate of another dtype. The real device either rejects it or computes it on its host
    processor.
    """
    products = [call for call in lowering.kernels if family_of(call, device).form in CUBE_FORMS]
    if not products:
        return ""
    known = device.macs_per_cycle
    operands = [spec.dtype for call in products for spec in call.inputs[:1] if spec is not None]
    wide = [dtype for dtype in operands if dtype not in known and dtype not in _PACKED]
    # Lowered to the integers of their size, so that the call itself tells.
    narrow = [t.dtype for t in tensors_of(op) if t.dtype.startswith(_NARROW_FLOATS) and t.dtype not in known]
    return next(iter([*wide, *narrow]), "")


_PACKED = frozenset({"int4", "uint8", "int32"})
"""Dtypes of first inputs that the cube does not multiply directly. They are packed weights, which are unpacked for it,
and indices that a kernel lists first.
"""


def _marked(simulated: Simulated, dtype: str) -> Simulated:
    """Mark the prediction as uncalibrated and extrapolated if no unit of the device multiplies `dtype`."""
    if not dtype or simulated.time_us <= 0:
        return simulated
    factor = max(simulated.high_us / simulated.time_us, LEAST_ASSUMED)
    return msgspec.structs.replace(
        simulated,
        no_path=dtype,
        confidence="uncalibrated",
        extrapolated=True,
        low_us=simulated.time_us / factor,
        high_us=simulated.time_us * factor,
    )


def _by_user(terms: dict[str, float], device: DeviceProfile, by: By, source: str) -> Simulated:
    """Return a prediction from a user's registration. It gets the band of an unknown kernel, because it was not
    calibrated.
    """
    time_us = sum(terms.values())
    band = device.families["Unknown"].band
    by_bound = {BOUNDS.get(name, name): us for name, us in terms.items()}
    return Simulated(
        time_us=time_us,
        bound=max(by_bound, key=by_bound.__getitem__),
        terms_us={name: us for name, us in terms.items() if us > 0},
        kernels=(),
        confidence="uncalibrated",
        low_us=time_us / band,
        high_us=time_us * band,
        by=by,
        source=source,
    )


def explain_op(
    op: ReplayOp, device: DeviceProfile, contents: Contents | None = None, l2: L2State = "sequence"
) -> Explanation:
    """Return an explanation of `op` on `device`: its kernels, each with tensors, terms, bound, confidence and band."""
    simulated = simulate_op(op, device, contents, l2)
    lowering = lower(op, contents)
    parts, _ = _together(op, lowering, device, Predictor(device), (), l2)
    if simulated.taken_for and lowering.source and simulated.by not in ("user estimator", "user properties"):
        note = f"kernels from your rule {simulated.source}: {simulated.taken_for}"
        lowering = msgspec.structs.replace(lowering, notes=(*lowering.notes, note))
    if simulated.by in ("user estimator", "user properties", "tile program"):
        note = f"time from your {simulated.by.removeprefix('user ')} {simulated.source}, not from these kernels"
        note += f"; {simulated.taken_for}" if simulated.taken_for else ""
        lowering = msgspec.structs.replace(lowering, notes=(*lowering.notes, note))
    kernels: list[KernelExplanation] = []
    for call, prediction in parts:
        family = family_of(call, device)
        kernels.append(
            KernelExplanation(
                type=call.type,
                family=family.name,
                inputs=tuple(map(tensor_text, call.inputs)),
                outputs=tuple(map(tensor_text, call.outputs)),
                attrs=dict(call.attrs),
                count=call.count,
                prediction=prediction,
                samples=family.samples,
            )
        )
    return Explanation(
        op=op.name,
        device=device.name,
        device_version=device.version,
        simulated=simulated,
        kernels=tuple(kernels),
        notes=lowering.notes,
    )
