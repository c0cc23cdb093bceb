"""Computes errors of predictions against measurements, by kernel type and overall. Does not read files or print."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from opreplay.replay.ascend.cost.predict import predict_kernel
from opreplay.replay.ascend.cost.residency import (
    Touch,
    codes_kept,
    resident_of,
    reuse_distances,
    touches_in,
    written_back,
)
from opreplay.replay.ascend.measured.kernel_tables import KernelRow, KernelTable, call_key
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import KernelCall, State

MOST_WEIGHT = 0.1
"""Maximum share of the total time that one kernel may have in `capped_wape`."""


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of predicted times relative to measured times, as fractions."""

    n: int
    """Number of unique kernels."""
    mape: float
    """Mean of |predicted - measured| / measured over unique kernels. Both times of a kernel are medians over its
    launches.
    """
    median_ape: float
    p90_ape: float
    wape: float
    """Sum of |predicted - measured| over all launches, divided by the sum of measured. It is the relative error
    weighted by time.
    """
    total_error: float
    """(sum of predicted - sum of measured) / sum of measured, over all launches. Positive and negative errors
    cancel.
    """
    in_band: float
    """Share of unique kernels whose measured time is within their 80 % band."""
    within_10: float = float("nan")
    """Share of unique kernels predicted within 10 % of the measured time."""
    within_25: float = float("nan")
    capped_wape: float = float("nan")
    """`wape` with the weight of each kernel capped at MOST_WEIGHT of the total weight. The cap prevents one huge kernel
    from dominating.
    """


class Part(NamedTuple):
    """One kernel of a measured op, with what is known about the caches before it."""

    call: KernelCall
    touches: tuple[Touch, ...] = ()
    loaded: bool = False
    """Whether the kernel's code is in the instruction caches."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One measured row, with what is known about the caches before it."""

    row: KernelRow
    touches: tuple[Touch, ...] = ()
    loaded: bool = False
    """Whether the kernel's code is in the instruction caches, derived from the launch order."""
    duration_us: float
    state: State = "network"
    several: tuple[Part, ...] = ()
    """The kernels of a measured op; empty if the row is a single kernel."""
    soc: str = ""
    """Device named in the row; empty if it names none."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The kernels that the measured time covers, in launch order."""
        return self.several or (Part(self.row.call, self.touches, self.loaded),)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One unique kernel with its measured and predicted times."""

    call: KernelCall
    measured_us: float
    """Measured time, median over launches."""
    predicted_us: float
    """Predicted time, median over launches."""
    low_us: float
    high_us: float
    count: int
    """Number of launches."""
    total_us: float
    absolute_us: float
    """Sum over launches of |predicted - measured|."""
    signed_us: float
    """Sum over launches of predicted - measured."""
    held_out: bool = False
    extrapolated: bool = False
    """Whether the kernel is far from all measurements of its family."""
    shipped_us: float | None = None
    """Time that `op` predicts, which uses all measurements.

    It is set only if `predicted_us` was computed without the measurements of this kernel's own source; otherwise None.
    """

    @property
    def ape(self) -> float:
        """Return |predicted - measured| / measured."""
        return abs(self.predicted_us - self.measured_us) / self.measured_us


def launches(table: KernelTable) -> list[Launch]:
    """Return the measured rows of a table.

    If the table lists launches in order, they include the reuse distances of their tensors. Rows without a duration are
    not returned. They still count for the reuse distances, because they use memory, too.
    """
    known = [row.call if row.has_shapes else None for row in table.rows]
    touches = reuse_distances(known) if table.is_sequence else [()] * len(known)
    code_cached = codes_kept(row.call for row in table.rows) if table.is_sequence else [False] * len(known)
    return [
        Launch(row=row, touches=touch, loaded=loaded, duration_us=row.duration_us)
        for row, touch, loaded in zip(table.rows, touches, code_cached, strict=True)
        if row.duration_us is not None
    ]


def alone(launch: Launch, state: State) -> Launch:
    """Return a kernel's launch as an isolated one: "cold" (none of its inputs in L2) or "warm" (as in a loop)."""
    (touches,) = touches_in([launch.row.call], state)
    return msgspec.structs.replace(launch, touches=written_back(launch.row.call, touches), loaded=False, state=state)


def grouped(measured: Iterable[Launch]) -> list[list[Launch]]:
    """Group launches of the same type, shapes, dtypes and formats, in order of first appearance."""
    groups: dict[tuple[object, ...], list[Launch]] = {}
    for launch in measured:
        groups.setdefault(call_key(launch.row.call), []).append(launch)
    return list(groups.values())


def compare_group(group: Sequence[Launch], device: DeviceProfile) -> Compared:
    """Predict the launches of one unique kernel or op and compare the prediction with the measured times."""
    predicted: dict[object, tuple[float, float, bool]] = {}
    predictions = []
    for launch in group:
        shares = tuple(resident_of(part.touches, device) for part in launch.parts)
        key = shares, launch.state, launch.loaded
        if key not in predicted:
            predicted[key] = _together(launch, shares, device)
        predictions.append(predicted[key])
    pairs = [(p[0], launch.duration_us, launch.row.count) for p, launch in zip(predictions, group, strict=True)]
    middle, band = median(p[0] for p in predictions), predictions[0][1]
    return Compared(
        call=group[0].row.call,
        extrapolated=predictions[0][2],
        measured_us=median(launch.duration_us for launch in group),
        predicted_us=middle,
        low_us=middle / band,
        high_us=middle * band,
        count=sum(n for _, _, n in pairs),
        total_us=sum(m * n for _, m, n in pairs),
        absolute_us=sum(abs(p - m) * n for p, m, n in pairs),
        signed_us=sum((p - m) * n for p, m, n in pairs),
        held_out=any(launch.row.held_out for launch in group),
    )


def _together(launch: Launch, shares: Sequence[float | None], device: DeviceProfile) -> tuple[float, float, bool]:
    """Return (time in microseconds, band factor, whether extrapolated) for all kernels of a launch together.

    The band factor assumes that the kernels' errors are independent.
    """
    total = square = 0.0
    far = False
    for part, share in zip(launch.parts, shares, strict=True):
        prediction = predict_kernel(part.call, device, share, launch.state, part.loaded)
        total += prediction.time_us * part.call.count
        if prediction.time_us > 0:
            square += (math.log(prediction.high_us / prediction.time_us) * prediction.time_us * part.call.count) ** 2
        far = far or prediction.extrapolated
    return total, math.exp(math.sqrt(square) / total) if total else 1.0, far


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which the fraction `share` of `values` lies, by linear interpolation; NaN if empty."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def errors_of(compared: Sequence[Compared]) -> Errors:
    """Return the errors of predictions: `mape`, `median_ape` and `p90_ape` over unique kernels, the others over all
    launches.

    All are NaN if there are no kernels.
    """
    if not compared:
        nan = float("nan")
        return Errors(n=0, mape=nan, median_ape=nan, p90_ape=nan, wape=nan, total_error=nan, in_band=nan)
    apes = [c.ape for c in compared]
    measured = sum(c.total_us for c in compared)
    return Errors(
        n=len(apes),
        mape=fmean(apes),
        median_ape=median(apes),
        p90_ape=percentile(apes, 0.9),
        wape=sum(c.absolute_us for c in compared) / measured,
        total_error=sum(c.signed_us for c in compared) / measured,
        in_band=fmean(c.low_us <= c.measured_us <= c.high_us for c in compared),
        within_10=fmean(ape <= 0.10 for ape in apes),
        within_25=fmean(ape <= 0.25 for ape in apes),
        capped_wape=_capped(compared),
    )


def _capped(compared: Sequence[Compared]) -> float:
    """Return the WAPE (error weighted by time) with each kernel's weight capped at MOST_WEIGHT of the total weight.

    If there are too few kernels for this cap, it is raised.
    """
    share = max(MOST_WEIGHT, 1 / len(compared))
    weights = [c.total_us for c in compared]
    for _ in range(20):
        cap = share * sum(weights)
        weights = [min(w, cap) for w in weights]
    errors = (c.absolute_us / c.total_us * w for c, w in zip(compared, weights, strict=True))
    return sum(errors) / sum(weights)


def errors_by_type(compared: Iterable[Compared]) -> dict[str, Errors]:
    """Return errors by kernel type; types with the most measured time come first."""
    groups: dict[str, list[Compared]] = {}
    for kernel in compared:
        groups.setdefault(kernel.call.type, []).append(kernel)
    ordered = sorted(groups.items(), key=lambda item: -sum(c.total_us for c in item[1]))
    return {kernel_type: errors_of(group) for kernel_type, group in ordered}
