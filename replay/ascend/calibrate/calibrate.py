# pyright: strict
"""Fits device constants to groups of measured kernels and cross-validates the fits; the optimisation is in `fit`."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

import msgspec

from opreplay.replay.ascend.calibrate.fit import Sample, fit
from opreplay.replay.ascend.cost.nearby import Place, learn_neighbours, place_of
from opreplay.replay.ascend.cost.predict import family_of
from opreplay.replay.ascend.cost.residency import resident_of
from opreplay.replay.ascend.measured.accuracy import Compared, Launch, compare_group
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import KernelCall


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """All measured launches of one unique kernel or op on one SoC."""

    soc: str
    launches: tuple[Launch, ...]
    table: str = ""
    """Name of the workload that was measured; several files of one workload share it."""
    weight: float = 1.0
    """Weight of the group in a fit.

    Weights are chosen so that the total weight of a workload grows with the square root of its number of kernels.
    """


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction for a unique kernel, made by a fit that did not use this kernel's measurements."""

    soc: str
    family: str
    compared: Compared
    table: str = ""


def training_samples(group: Group, device: DeviceProfile) -> list[Sample]:
    """Return one training sample for each cache state in which a unique kernel was measured.

    The samples' weights add up to the group's weight.
    """
    states: dict[tuple[str, int | None, bool], list[Launch]] = defaultdict(list)
    for launch in group.launches:
        share = resident_of(launch.touches, device)
        states[launch.state, None if share is None else round(share * 4), launch.loaded].append(launch)
    samples: list[Sample] = []
    for alike in states.values():
        middle = median(launch.duration_us for launch in alike)
        typical = min(alike, key=lambda launch: abs(launch.duration_us - middle))
        samples.append(
            Sample(
                call=typical.row.call,
                soc=group.soc,
                duration_us=middle,
                weight=group.weight * len(alike) / len(group.launches),
                touches=typical.touches,
                loaded=typical.loaded,
                state=typical.state,
                several=typical.several,
            )
        )
    return samples


def fitted_to(
    groups: Sequence[Group], devices: dict[str, DeviceProfile], *, prior_width: float = 1.0
) -> dict[str, DeviceProfile]:
    """Fit the devices' constants to the groups, and store the remaining prediction errors in the devices.

    The stored errors correct predictions for similar kernels. See `fit` for `prior_width`.
    """
    samples = [s for g in groups for s in training_samples(g, devices[g.soc])]
    fitted = with_nearby(fit(samples, devices, prior_width=prior_width)[0], groups)
    return with_measured_types(fitted, kernels_of(groups))


def kernels_of(groups: Sequence[Group]) -> list[tuple[KernelCall, str]]:
    """Return (kernel, SoC) pairs of the measured kernels."""
    return [(part.call, group.soc) for group in groups for part in group.launches[0].parts]


AI_CPU = "AICPU"


def with_measured_types(
    devices: Mapping[str, DeviceProfile], kernels: Iterable[tuple[KernelCall, str]]
) -> dict[str, DeviceProfile]:
    """Record on each device which of these kernel types were measured on its own SoC, and which only on other SoCs."""
    measured: dict[str, dict[str, set[str]]] = {}
    for kernel, soc in kernels:
        family = family_of(kernel, devices[soc]).name
        if family == AI_CPU:
            continue  # all programs of the control processors have this one type
        measured.setdefault(family, {}).setdefault(soc, set()).add(kernel.type)
    out: dict[str, DeviceProfile] = {}
    for soc, device in devices.items():
        families = dict(device.families)
        for name, types in measured.items():
            here = types.get(soc, set()).union(families[name].measured_here)
            everywhere = {kind for of_soc in types.values() for kind in of_soc}
            elsewhere = everywhere.union(families[name].measured_elsewhere) - here
            families[name] = msgspec.structs.replace(
                families[name], measured_here=tuple(sorted(here)), measured_elsewhere=tuple(sorted(elsewhere))
            )
        out[soc] = msgspec.structs.replace(device, families=families)
    return out


def with_nearby(devices: dict[str, DeviceProfile], groups: Sequence[Group]) -> dict[str, DeviceProfile]:
    """Return the devices with the groups' prediction errors added as neighbours.

    Neighbours are kernels whose errors correct predictions for similar kernels. An error is added to all devices of its
    SoC's generation. Existing neighbours are kept.
    """
    errors: dict[tuple[str, str], list[tuple[float, Place, float]]] = defaultdict(list)
    for group in groups:
        device, call = devices[group.soc], group.launches[0].parts[0].call
        if len(group.launches[0].parts) > 1:
            continue
        family = family_of(call, device)
        state = group.launches[0].state
        place, row = place_of(call, family.form, state=state), compare_group(group.launches, device)
        if place is not None and row.predicted_us > 0:
            errors[device.generation, family.name].append(
                (row.total_us, place, math.log(row.measured_us / row.predicted_us))
            )
    out = dict(devices)
    for (generation, name), known in errors.items():
        known.sort(key=lambda item: -item[0])
        measured = learn_neighbours([(place, residual) for _, place, residual in known])
        for soc, device in out.items():
            if device.generation == generation:
                family = device.families[name]
                nearby = family.nearby | {kind: family.nearby.get(kind, ()) + new for kind, new in measured.items()}
                families = {**device.families, name: msgspec.structs.replace(family, nearby=nearby)}
                out[soc] = msgspec.structs.replace(device, families=families)
    return out


def held_out(groups: Sequence[Group], devices: dict[str, DeviceProfile]) -> list[HeldOut]:
    """Return predictions for `groups`, made with `devices` that were fitted without these groups."""
    return [
        HeldOut(
            soc=g.soc,
            family=family_of(g.launches[0].parts[0].call, devices[g.soc]).name,
            compared=compare_group(g.launches, devices[g.soc]),
            table=g.table,
        )
        for g in groups
    ]


def cross_validate(
    groups: Sequence[Group],
    devices: dict[str, DeviceProfile],
    *,
    folds: int = 5,
    seed: int = 0,
    prior_width: float = 1.0,
    on_step: Callable[[str], None] = lambda step: None,
) -> list[HeldOut]:
    """Predict each unique kernel by a fit to the other folds.

    `seed` determines how kernels are distributed over folds. A kernel measured on two SoCs is in one fold, so that it
    is never predicted by a fit that saw it on the other SoC.
    """
    keys = sorted({_name(g) for g in groups})
    random.Random(seed).shuffle(keys)
    fold_of = {key: i % folds for i, key in enumerate(keys)}
    out: list[HeldOut] = []
    for fold in range(folds):
        train = [g for g in groups if fold_of[_name(g)] != fold]
        test = [g for g in groups if fold_of[_name(g)] == fold]
        if train and test:
            out += held_out(test, fitted_to(train, devices, prior_width=prior_width))
        on_step(f"cross-validation: fitted fold {fold + 1} of {folds}")
    return out


def _name(group: Group) -> str:
    call = group.launches[0].row.call
    return f"{call.type}|{call.inputs}|{call.outputs}"
