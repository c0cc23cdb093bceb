"""How faithful a replayed call was: kernels, child ops and times beside those of the trace; profiles nothing itself."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from opreplay.replay.executors.base import Profile
from opreplay.replay.ir import ReplayOp

Agreement = Literal["match", "differ", "not recorded", "other device"]
"""Other device: the trace has kernels of an accelerator, and the op was replayed on one without, or the other way."""

LISTED = 8
"""Names kept of those that are in one profile only."""


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """One op: what ran here against what the trace recorded."""

    kernels: Agreement
    """Names of the device's kernels and how many of each a call launches."""
    children: Agreement
    """Names of the ops right below, in order."""
    missing: tuple[str, ...] = ()
    """Kernels, or where those cannot be compared child ops, that were recorded and did not run here."""
    extra: tuple[str, ...] = ()
    """Those that ran here and were not recorded."""
    time_ratio: float | None = None
    """Time here by the time recorded: of the kernels where both have them, of the host where neither has."""
    note: str = ""
    """Why there is no profile."""


def compared(op: ReplayOp, profile: Profile, measured_us: float) -> Fidelity:
    """Hold one profiled call against what was recorded of `op`; `measured_us` is the replay's own median."""
    kernels, lost, new = _kernels(op, profile)
    children: Agreement = "not recorded"
    if op.recorded.children is not None:
        children = "match" if op.recorded.children == profile.children else "differ"
        if kernels in ("not recorded", "other device"):
            lost, new = _difference(Counter(op.recorded.children), Counter(profile.children))
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
