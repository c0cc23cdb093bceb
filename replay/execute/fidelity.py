# pyright: strict
"""How faithful a replayed call was: kernels, child ops and times beside those of the trace; profiles nothing itself."""

from __future__ import annotations

from collections import Counter

from opreplay.replay.execute.executors.base import Profile
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.results.records import Agreement, Fidelity

LISTED = 8
"""Names kept of those that are in one profile only."""


def compared(op: ReplayOp, profile: Profile, measured_us: float) -> Fidelity:
    """Hold one profiled call against what was recorded of `op`; `measured_us` is the replay's own median."""
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
    """The verdict on kernels, those missing here and those that are new."""
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
