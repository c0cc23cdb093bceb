# pyright: strict
"""Predicts a whole step on a simulated device: its total with a band, and where the time goes.

Only adds up the predictions of ops; contains no cost formulas.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from opreplay.replay.ascend.cost.cells import Cell, band_of, work_of
from opreplay.replay.ascend.cost.predict import BANDS_OF_THEIR_OWN, BOUNDS, UNKNOWN
from opreplay.replay.ascend.cost.predictor import Predictor
from opreplay.replay.ascend.cost.residency import Held
from opreplay.replay.ascend.custom.estimators import CustomOpError
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.coverage import measured_shares, share_of_confidence
from opreplay.replay.ascend.simulate.op import is_predicted, simulate_by_family
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ops.work.contents import Contents
from opreplay.replay.results.records import L2State, Simulated
from opreplay.traces.sums import summed


class OpStep(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one op in a step."""

    id: str
    simulated: Simulated
    """Prediction for one call."""
    families_us: dict[str, float]
    """Kernel family → microseconds of one call."""
    count: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """All simulated ops of a plan on one device. Times are in microseconds, summed over all calls."""

    device: str
    device_version: str
    total_us: float
    low_us: float
    high_us: float
    """Upper end of the 80 % band."""
    by_bound: dict[str, float]
    """Bound → time, largest first; "custom" for users' own estimates."""
    by_family: dict[str, float]
    uncalibrated_share: float
    """Share of the predicted time in ops with a kernel family that was not measured on any SoC.

    It is 1 if nothing is predicted (also in timelines). `coverage` computes another share: the part of the recorded
    time that predictions cover.
    """
    ops: tuple[OpStep, ...]
    measured: dict[str, float] = {}
    """Shares of the predicted time based on the user's own measurements, by key of `coverage.MEASURED`."""
    l2: L2State = "sequence"
    """Cache state assumed at the start of each op."""
    peaks: tuple[float, ...] = ()
    """Resources by which devices are compared.

    A device with at least as much of each as another should be at least as fast. They are, in this order: cube cores
    times clock, vector cores times clock, L2, HBM, the cube's rate for each of `COMPARED_DTYPES`, and the cube's output
    buffer.
    """
    hbm_bytes: float | None = None
    """Memory size of the device in bytes."""
    failed: dict[str, str] = {}
    """Reasons why ops have no prediction, by op id: a user's function failed, or the cost cannot be determined."""
    pass_us: float = 0.0
    """Time of one pass through the recorded or captured step; 0 without such a step. (`total_us` covers all calls.)"""
    pass_bytes: int = 0
    """Bytes of distinct tensors that one pass through the step reads in full but does not create
    (`step_residency.outside_bytes`).
    """

    @property
    def beyond_hbm(self) -> float | None:
        """Return the bytes/s that HBM would have to deliver to reach the predicted time, if this exceeds the HBM peak.

        A prediction with such a rate is too short. Returns None if the peak is not exceeded.
        """
        l2_bytes, hbm_bytes_per_s = self.peaks[2:4] or (0.0, 0.0)
        streamed = self.pass_bytes - l2_bytes
        return streamed / self.pass_us * 1e6 if streamed * 1e6 > hbm_bytes_per_s * self.pass_us else None


class Inversion(NamedTuple):
    """Ops that are predicted to be faster on one device than on another one with at least as much of every resource."""

    smaller: str
    larger: str
    ops: int
    compared: int
    most: float
    """Largest factor by which an op is predicted to be faster on the smaller device."""

    def __str__(self) -> str:
        return (
            f"{self.smaller} is predicted up to {self.most:.2f} times as fast as {self.larger} for {self.ops:,} of "
            f"{self.compared:,} ops, although {self.larger} is at least equal in every specification: differences of "
            f"up to that factor between the two devices mean nothing"
        )


def inversions(steps: Sequence[Step]) -> list[Inversion]:
    """Return pairs of devices for which some ops are predicted to be faster on the smaller device, by more than
    `NOTABLE`.

    The cause is calibration. Launches and kernels were measured on one of the devices. For the other, they were copied
    or not measured.
    """
    inverted: list[Inversion] = []
    for small, large in itertools.permutations(steps, 2):
        if small.peaks == large.peaks or not all(a <= b for a, b in zip(small.peaks, large.peaks, strict=True)):
            continue
        others = {op.id: op.simulated.time_us for op in large.ops}
        pairs = [(op.simulated.time_us, others[op.id]) for op in small.ops if others.get(op.id)]
        ratios = [b / a for a, b in pairs if a * (1 + NOTABLE) < b]
        if ratios:
            inverted.append(Inversion(small.device, large.device, len(ratios), len(pairs), max(ratios)))
    return inverted


COMPARED_DTYPES = ("float16", "bfloat16", "int8", "float32", "hf32")
"""Dtypes whose product rates are compared to decide whether a device is at least as large as another one."""
NOTABLE = 0.03
"""Minimum relative difference between two times that is reported."""


def _summed_us(parts: Iterable[OpStep]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the time of all calls by bound, and by kernel family."""
    terms = [(name, us * part.count) for part in parts for name, us in part.simulated.terms_us.items()]
    by_bound = summed((BOUNDS.get(name, name), us) for name, us in terms)
    return by_bound, summed((name, us * part.count) for part in parts for name, us in part.families_us.items())


def simulate_step(
    ops: Iterable[ReplayOp],
    device: DeviceProfile,
    contents: Callable[[ReplayOp], Contents | None] | None = None,
    cached: Mapping[str, Sequence[Held]] | None = None,
    l2: L2State = "sequence",
) -> Step:
    """Predict the time of every op that can be predicted, and sum up.

    Labels and ops without arguments are left out, because their time is unknown, not 0. `contents` describes the values
    of an op's arguments, if they affect its time. `cached` gives the cache state of each op's kernels, by op id (see
    `step_residency`). `l2` sets one cache state for every op instead.

    For the band, errors of kernels in one family are assumed to be correlated and add up. Errors of different families
    are assumed to be independent.
    """
    parts: list[OpStep] = []
    failed: dict[str, str] = {}
    predict = Predictor(device)
    for op in ops:
        of_kernels = cached.get(op.id, ()) if cached is not None else ()
        amounts = contents(op) if contents is not None else None
        try:
            simulated, families = simulate_by_family(op, device, predict, amounts, of_kernels, l2)
        except CustomOpError as error:
            failed[op.id] = f"no prediction for {device.name}: {error.problem}"
            continue
        if simulated.by == "nothing" and simulated.source:
            failed[op.id] = f"not predicted: {simulated.source}"
        elif is_predicted(op, simulated):
            parts.append(OpStep(id=op.id, simulated=simulated, families_us=families, count=op.count))
    total = sum(part.simulated.time_us * part.count for part in parts)
    by_bound, by_family = _summed_us(parts)
    below, above_us = _deviations(parts)
    return Step(
        device=device.name,
        device_version=device.version,
        total_us=total,
        low_us=total * math.exp(-below / total) if total > 0 else 0.0,
        high_us=total + above_us,
        by_bound=_largest_first(by_bound),
        by_family=_largest_first(by_family),
        uncalibrated_share=share_of_confidence((p.simulated.confidence, p.simulated.time_us * p.count) for p in parts),
        ops=tuple(parts),
        measured=measured_shares((p.simulated.measured, p.simulated.time_us * p.count) for p in parts),
        l2=l2,
        failed=failed,
        hbm_bytes=device.hbm_bytes,
        peaks=(
            device.aic_cores * device.freq_hz,
            device.aiv_cores * device.freq_hz * device.vector_width,
            device.l2_bytes,
            device.hbm_bytes_per_s,
            *(device.macs_per_cycle.get(dtype, 0.0) * device.aic_cores * device.freq_hz for dtype in COMPARED_DTYPES),
            device.l0c_bytes,
        ),
    )


def _deviations(parts: Sequence[OpStep]) -> tuple[float, float]:
    """Return the 80 % deviations of the total: downward in log microseconds, upward in microseconds.

    Each op has the band of its own prediction. Errors of ops in one kernel family add up. Errors of different families
    are independent. Upward deviations are not added as logarithms, because an op that may take eight times as long
    would then contribute too little.
    """
    below, above = dict[str, float](), dict[str, float]()
    for part in parts:
        call, us = part.simulated, part.simulated.time_us * part.count
        if us > 0 and call.low_us > 0:
            family = max(part.families_us, key=part.families_us.__getitem__, default=call.bound)
            below[family] = below.get(family, 0.0) + us * math.log(max(1.0, call.time_us / call.low_us))
            above[family] = above.get(family, 0.0) + us * max(0.0, call.high_us / call.time_us - 1.0)
    return math.hypot(*below.values()), math.hypot(*above.values())


def total_band(device: DeviceProfile, name: str) -> float:
    """Return the factor of the 80 % band for the total time of a kernel family in a network."""
    family = device.families[name if name in device.families else UNKNOWN]
    if family.name in BANDS_OF_THEIR_OWN:
        return family.band
    evidence = "this SoC" if family.measured_here else "another SoC" if family.measured_elsewhere else "its form"
    return band_of(Cell(evidence, work_of(family)))


def _largest_first(times: dict[str, float]) -> dict[str, float]:
    return dict(sorted(((k, v) for k, v in times.items() if v > 0), key=lambda item: -item[1]))


def losing(step: Step, ops: Sequence[ReplayOp], number: int) -> list[tuple[ReplayOp, OpStep, float]]:
    """Return the `number` ops that lose the most time compared with the recorded device, worst first.

    The loss is the predicted time minus the recorded time, in microseconds over all calls. Ops without recorded device
    time are left out, because there is nothing to compare with.
    """
    known = {op.id: op for op in ops}
    lost = [
        (known[part.id], part, part.simulated.time_us * part.count - known[part.id].recorded.device_us_total)
        for part in step.ops
        if known[part.id].recorded.device_us_total > 0
    ]
    return sorted((part for part in lost if part[2] > 0), key=lambda item: -item[2])[:number]
