# pyright: strict
"""Calibrates one device to a user's own profile by a cautious refit that starts from its current constants.

Limits how far constants may move, computes the errors before and after, and writes the device file's text. `calibrate`
distributes kernels over folds and computes bands; `fit` does the optimisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod

import msgspec

from opreplay.replay.ascend.calibrate.calibrate import (
    Group,
    HeldOut,
    cross_validate,
    fitted_to,
    kernels_of,
    with_measured_types,
)
from opreplay.replay.ascend.cost.predict import family_of
from opreplay.replay.ascend.cost.sizes import first
from opreplay.replay.ascend.cost.slow_paths import path_of
from opreplay.replay.ascend.devices.text import device_text
from opreplay.replay.ascend.measured.accuracy import Compared, compare_group
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost, SlowPath
from opreplay.replay.ir.kernel import KernelCall, State
from opreplay.traces.errors import Malformed
from opreplay.traces.names import plural

CAUTION = (0.5, 0.15)
"""Values of `prior_width` to try. They are below 1, because the constants are already fitted."""


class Recalibration(msgspec.Struct, frozen=True, kw_only=True):
    """A device before and after recalibration, with its errors against the measurements."""

    before: DeviceProfile
    after: DeviceProfile
    compared_before: tuple[Compared, ...]
    compared_held_out: tuple[Compared, ...]
    """Prediction of each kernel by a fit that excluded this kernel; empty if there are too few kernels."""
    compared_after: tuple[Compared, ...]
    """Prediction of each kernel by a fit that used all kernels."""
    caution: float
    """Value of `prior_width` that predicted held-out kernels best; 0 if the unchanged constants predicted them best."""


def _error(compared: Sequence[Compared]) -> float:
    """Return the mean |log error|. Each error is clipped to 1, so that one outlier kernel does not dominate."""
    return sum(min(1.0, abs(math.log(c.predicted_us / c.measured_us))) for c in compared) / len(compared)


def _best_caution(
    groups: Sequence[Group], device: DeviceProfile, error: float, folds: int, tell: Callable[[str], None]
) -> tuple[float, list[HeldOut]]:
    """Return the `prior_width` with which held-out kernels are predicted best, and these predictions.

    Returns 0 and an empty list if no width gives an error below `error`.
    """
    best: tuple[float, list[HeldOut]] = (0.0, [])
    for caution in CAUTION:
        tell(f"cross-validating with priors {caution} times as wide")
        held_out = cross_validate(groups, {device.name: device}, folds=folds, prior_width=caution)
        unseen_error = _error([h.compared for h in held_out])
        if unseen_error < error:
            error, best = unseen_error, (caution, held_out)
    return best


def recalibrate(
    groups: Sequence[Group], device: DeviceProfile, *, folds: int = 5, on_step: Callable[[str], None] | None = None
) -> Recalibration:
    """Fit `device` to kernels measured on it.

    Cross-validation compares the prior widths in `CAUTION`. The device stays unchanged if no width predicts held-out
    kernels better than its current constants do. Raises Malformed if there are no kernels to fit to.
    """
    tell: Callable[[str], None] = on_step or (lambda step: None)
    usable = [g for g in groups if compare_group(g.launches, device).predicted_us > 0]
    if not usable:
        raise Malformed(
            "no measured kernels to calibrate with",
            hint="Each row needs a duration and shapes; rows of collectives are not used.",
        )
    before = [compare_group(g.launches, device) for g in usable]
    # Too few to try anything out: what they say is weighed against narrow priors.
    caution, held_out = CAUTION[-1], list[HeldOut]()
    if len(usable) >= 4:
        caution, held_out = _best_caution(usable, device, _error(before), min(folds, len(usable)), tell)
    after = device
    if caution:
        after = fitted_to(usable, {device.name: device}, prior_width=caution)[device.name]
    after = _with_counts(_with_slow_paths(after, usable), usable)
    return Recalibration(
        before=device,
        after=after,
        compared_before=tuple(before),
        compared_held_out=tuple(h.compared for h in held_out),
        compared_after=tuple(compare_group(g.launches, after) for g in usable),
        caution=caution,
    )


SLOW = 2.5
"""Minimum ratio of measured to predicted time for a kernel to count as a slow path. The predicted time is the one after
all constants were fitted.
"""
ALIKE = 4.0
"""Range of sizes to which a slow path applies: kernels with up to this many times more or fewer elements than the
measured slow kernel. The value is assumed.
"""


def _with_slow_paths(device: DeviceProfile, groups: Sequence[Group]) -> DeviceProfile:
    """Return the device with slow paths added for kernels that are measured much slower than predicted.

    One slow path is added for each kernel type, dtype and size whose measured time is at least `SLOW` times the
    prediction.
    """
    slow_paths: list[SlowPath] = []
    for group in groups:
        row, call = compare_group(group.launches, device), group.launches[0].parts[0].call
        ratio = row.measured_us / row.predicted_us
        if len(group.launches[0].parts) > 1 or ratio < SLOW or path_of(call, device.slow_paths.get(call.type, ())):
            continue
        main = first(call.inputs)
        if main is None or not (elements := prod(main.shape)):
            continue
        source = f"{describe_sizes(call)}: {row.measured_us:.4g} us measured, {row.predicted_us:.4g} us predicted"
        slow_paths.append(
            SlowPath(
                name=f"{call.type} measured slow",
                types=(call.type,),
                when="like",
                how="factor",
                factor=ratio,
                dtype=main.dtype,
                elements=(elements / ALIKE, elements * ALIKE),
                source=source,
                confidence="measured",
            )
        )
    if not slow_paths:
        return device
    own_slow_paths = (*slow_paths, *device.own_slow_paths)
    by_type = dict(device.slow_paths)
    for path in reversed(slow_paths):
        by_type[path.types[0]] = (path, *by_type.get(path.types[0], ()))
    return msgspec.structs.replace(device, own_slow_paths=own_slow_paths, slow_paths=by_type)


def describe_sizes(call: KernelCall) -> str:
    """Return the sizes of a call's inputs as text: "1024 x 4096; 4096"."""
    return "; ".join(" x ".join(map(str, spec.shape)) or "1" for spec in call.inputs if spec is not None)


def _with_counts(device: DeviceProfile, groups: Sequence[Group]) -> DeviceProfile:
    """Return the device with each kernel family's sample count and cache states taken from the measurements.

    The measured kernel types are marked as measured on this device.
    """
    states: dict[str, list[State]] = {}
    for group in groups:
        states.setdefault(family_of(group.launches[0].row.call, device).name, []).append(group.launches[0].state)
    families: dict[str, FamilyCost] = dict(device.families)
    for name, of in states.items():
        old = families[name]
        families[name] = msgspec.structs.replace(old, samples=len(of), states=tuple(sorted({*of, *old.states})))
    counted = msgspec.structs.replace(device, families=families)
    return with_measured_types({device.name: counted}, kernels_of(groups))[device.name]


def own_device_text(fit: Recalibration, *, name: str) -> str:
    """Return the TOML text of a user's calibrated device: its data sheet, and the constants that differ from the shared
    model.
    """
    kernels = len(fit.compared_before)
    device = msgspec.structs.replace(
        fit.after, name=name, title=f"{fit.before.title}, calibrated", aliases=(), version="1"
    )
    header = (
        f"{fit.before.title} ({fit.before.name}, version {fit.before.version}), its constants fitted to "
        f"{plural(kernels, 'measured kernel')}.\nWritten by `opreplay calibrate`. Use it by its path: --soc FILE."
    )
    source = f"{fit.before.name} {fit.before.version}, fitted to {plural(kernels, 'kernel')} of a user's profile"
    return device_text(device, header=header, source=source)
