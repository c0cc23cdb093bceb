# pyright: strict
"""Run one op from preparation to outcome. If the op raises an exception, the outcome's reason describes it.

If requested, an op that exceeds its memory budget is retried in a smaller size. Time limits are set elsewhere.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from time import perf_counter

import msgspec

from opreplay.replay.arguments.float32 import without_kernel
from opreplay.replay.arguments.shrink.choose import Fitted, shrink_to_limit
from opreplay.replay.arguments.shrink.flops import bearable_flops
from opreplay.replay.execute.executors.base import Executor, Prepared, Profile
from opreplay.replay.execute.measure import scale_to_whole_op
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.threads import measure_on_idle
from opreplay.replay.execute.visits import Visits
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable, reason_for
from opreplay.replay.plan.step.recency import Recency
from opreplay.replay.results.measurement import Measurement
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.replay.results.records import Agreement, Fidelity
from opreplay.traces.errors import InternalError, OpReplayError, PolicyError

LISTED = 8
"""Maximum number of kernel names to list that are in only one of the two profiles (recording, replay)."""


def attempt(
    executor: Executor,
    op: ReplayOp,
    *,
    seed: int,
    options: MeasureOptions,
    shrink_to: int | None = None,
    recency: Recency | None = None,
    visits: Visits | None = None,
) -> Outcome:
    """Prepare and measure one op. Raises only exceptions that end the run (KeyboardInterrupt, SystemExit).

    If the op needs more than `shrink_to` bytes, it is shrunk if possible. `recency` has the reuse distances that are
    needed to restore the step's caches. With `visits`, the measurement covers all rounds so far, including this one.
    """
    begun = perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            part, prepared = _prepare(executor, op, seed, shrink_to)
            started = perf_counter()
            left_s = max(0.0, options.hard_limit_s() - (started - begun))
            within = msgspec.structs.replace(options, limit_s=left_s)
            measured = measure_on_idle(executor, prepared, within, recency=recency, visits=visits)
            measure_s = perf_counter() - started
            measurement = scale_to_whole_op(measured, part.part)
            notes = () if _is_slow(measured, options) else executor.check_results(prepared, part.op)
            values = executor.check_values(prepared, part.op) if options.check_values else None
            fidelity = _fidelity(executor, prepared, op, measurement) if options.check_kernels else None
        except NotReplayable as stopped:
            return unable(stopped.reason)
        except PolicyError as refused:
            return unable(Reason("policy", refused.problem))
        except InternalError as error:
            return unable(reason_for(error))
        except OpReplayError as error:
            return unable(Reason("failed", error.problem))
        except Exception as error:
            again = without_kernel(op, error)
            if again is not None:
                outcome = attempt(
                    executor, again[0], seed=seed, options=options, shrink_to=shrink_to, recency=recency, visits=visits
                )
                return msgspec.structs.replace(outcome, assumptions=(*outcome.assumptions, again[1]))
            reason = _with_hint(reason_for(error), executor.random_numbers(op))
            return msgspec.structs.replace(unable(reason), suspect=True)
    return Outcome(
        status="replayed",
        measurement=measurement,
        initializer=prepared.initializer,
        filling=prepared.filling,
        assumptions=part.assumptions + prepared.assumptions + notes,
        work=prepared.work,
        measure_s=measure_s,
        fidelity=fidelity,
        values=values,
    )


def _is_slow(measured: Measurement, options: MeasureOptions) -> bool:
    """Estimate from the first call's time whether one more call might exceed the op's timeout."""
    return (measured.first_call_us or 0.0) * 1e-6 > options.hard_limit_s() / 8


def _with_hint(reason: Reason, drawn: Sequence[str]) -> Reason:
    """Add a hint to the reason of a failed call if the random integers in the tensors `drawn` may be the cause."""
    if reason.kind != "failed" or not drawn:
        return reason
    hint = f"{', '.join(drawn)}: random integers; if the op needs other values, write an initializer"
    return Reason("failed", f"{reason.detail} ({hint}: docs/initializers.md)")


def _fidelity(executor: Executor, prepared: Prepared, op: ReplayOp, measurement: Measurement) -> Fidelity:
    """Compare one profiled call with the recording. If the profiler fails, return a result without the comparison."""
    try:
        profile = executor.profile(prepared, op)
    except RuntimeError as error:
        why = reason_for(error).detail
        return Fidelity(kernels="not recorded", children="not recorded", note=f"no profile: {why}")
    return compare_kernels(op, profile, measurement.median_us)


def _prepare(executor: Executor, op: ReplayOp, seed: int, shrink_to: int | None) -> tuple[Fitted, Prepared]:
    """Prepare the op in full size, or smaller if it needs more than `shrink_to` bytes of memory."""
    whole = Fitted(op=op)
    if op.reason is not None or shrink_to is None:
        return whole, executor.prepare(op, seed=seed)
    threads = executor.facts().get("threads")
    max_flops = bearable_flops(threads) if executor.device == "cpu" and isinstance(threads, int) else math.inf
    # Half the bytes at the second try: an executor may have to widen 16-bit numbers, which doubles them.
    for limit in (shrink_to, shrink_to // 2):
        part = shrink_to_limit(op, limit, max_flops)
        try:
            return part, executor.prepare(part.op, seed=seed)
        except NotReplayable as stopped:
            if stopped.reason.kind != "budget":
                raise
    return whole, executor.prepare(op, seed=seed)


def compare_kernels(op: ReplayOp, profile: Profile, measured_us: float) -> Fidelity:
    """Compare one profiled call with the recording of `op`. `measured_us` is the median that the replay measured."""
    kernels, lost, new = _kernels(op, profile)
    children: Agreement = "not recorded"
    if op.recorded.children is not None:
        recorded, here = op.recorded.children, profile.children
        if recorded == here and op.recorded.below is not None and profile.below is not None:
            recorded, here = op.recorded.below, profile.below
        children = "match" if recorded == here else "differ"
        if kernels in ("not recorded", "other device"):
            lost, new = _difference(Counter(recorded), Counter(here))
    return Fidelity(
        kernels=kernels, children=children, missing=lost, extra=new, time_ratio=_time_ratio(op, profile, measured_us)
    )


def _kernels(op: ReplayOp, profile: Profile) -> tuple[Agreement, tuple[str, ...], tuple[str, ...]]:
    """Return (verdict on kernels, kernels missing in the replay, kernels that only the replay has)."""
    recorded = Counter({k.name: max(1, round(k.count / op.count)) for k in op.recorded.kernels})
    here = Counter({k.name: k.count for k in profile.kernels})
    if not recorded:
        return "other device" if here else "not recorded", (), ()
    if not profile.has_device:
        return "other device", (), ()
    missing, extra = _difference(recorded, here)
    return ("differ" if missing or extra else "match"), missing, extra


def _difference(recorded: Counter[str], here: Counter[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple((recorded - here).keys())[:LISTED], tuple((here - recorded).keys())[:LISTED]


def _time_ratio(op: ReplayOp, profile: Profile, measured_us: float) -> float | None:
    recorded = op.recorded
    if recorded.kernels and profile.kernels:
        base = recorded.device_us_total / op.count
        return sum(k.total_us for k in profile.kernels) / base if base > 0 else None
    if recorded.kernels or profile.has_device or recorded.host_us_median <= 0:
        return None
    return measured_us / recorded.host_us_median
