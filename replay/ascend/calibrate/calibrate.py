# pyright: strict
"""Calibration as a whole: samples from kernel tables, the fit, and cross-validation.

Owns the procedure; `fit` owns the optimisation, `device_text` the file that results.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from opreplay.replay.ascend.calibrate.fit import Sample, fit
from opreplay.replay.ascend.cost.nearby import Place, largest, learned, place_of
from opreplay.replay.ascend.cost.predict import family_of
from opreplay.replay.ascend.cost.residency import resident_of
from opreplay.replay.ascend.measured.accuracy import Compared, Launch, compare_group
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost
from opreplay.replay.ir.kernel import KernelCall, State


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """All measured launches of one unique kernel, or op, on one SoC."""

    soc: str
    launches: tuple[Launch, ...]
    table: str = ""
    """The measurements that it is of: tables of one workload have one name."""
    weight: float = 1.0
    """In a fit: tables count by the root of their size."""


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """A unique kernel predicted by a fit that did not see it."""

    soc: str
    family: str
    compared: Compared
    table: str = ""


def training_samples(group: Group, device: DeviceProfile) -> list[Sample]:
    """What a fit learns from one unique kernel: a sample for each state of the cache, together of weight 1."""
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
    """The devices with constants fitted to the groups, and what those leave over; see `fit` for `prior_width`."""
    samples = [s for g in groups for s in training_samples(g, devices[g.soc])]
    fitted = with_nearby(fit(samples, devices, prior_width=prior_width)[0], groups)
    return with_measured_types(fitted, kernels_of(groups))


def kernels_of(groups: Sequence[Group]) -> list[tuple[KernelCall, str]]:
    """Return the measured kernels with the SoC of each."""
    return [(part.call, group.soc) for group in groups for part in group.launches[0].parts]


AI_CPU = "AICPU"


def with_measured_types(
    devices: Mapping[str, DeviceProfile], kernels: Iterable[tuple[KernelCall, str]]
) -> dict[str, DeviceProfile]:
    """Return the devices with the types of kernels, each given with its SoC, as measured there and elsewhere."""
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
    """The devices with the groups as neighbours of other kernels on their generation; those that it had are kept."""
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
        measured = learned([(place, residual) for _, place, residual in known])
        for soc, device in out.items():
            if device.generation == generation:
                family = device.families[name]
                nearby = family.nearby | {kind: family.nearby.get(kind, ()) + new for kind, new in measured.items()}
                families = {**device.families, name: msgspec.structs.replace(family, nearby=nearby)}
                out[soc] = msgspec.structs.replace(device, families=families)
    return out


def _held_out(groups: Sequence[Group], devices: dict[str, DeviceProfile]) -> list[HeldOut]:
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
    """Each unique kernel predicted by a fit to the other folds; kernels are dealt to folds at random by `seed`.

    A kernel seen on two SoCs goes to one fold, so that no fit has seen it anywhere.
    """
    keys = sorted({_name(g) for g in groups})
    random.Random(seed).shuffle(keys)
    fold_of = {key: i % folds for i, key in enumerate(keys)}
    out: list[HeldOut] = []
    for fold in range(folds):
        train = [g for g in groups if fold_of[_name(g)] != fold]
        test = [g for g in groups if fold_of[_name(g)] == fold]
        if train and test:
            out += _held_out(test, fitted_to(train, devices, prior_width=prior_width))
        on_step(f"fitted fold {fold + 1} of {folds}")
    return out


def _name(group: Group) -> str:
    call = group.launches[0].row.call
    return f"{call.type}|{call.inputs}|{call.outputs}"


def hold_out(
    groups: Sequence[Group],
    devices: dict[str, DeviceProfile],
    *,
    folds: int = 5,
    on_step: Callable[[str], None] = lambda step: None,
) -> dict[str, list[HeldOut]]:
    """Kernels predicted by fits that did not see them, by what was left out: "folds", "unseen_table", "unseen_soc".

    Near-duplicates of a kernel are mostly in its own table, so unseen tables are the harder test of known SoCs. Of one
    table, or one SoC, there is nothing to leave out.
    """
    sets = {"folds": cross_validate(groups, devices, folds=folds, on_step=on_step)}
    for name, what, parts in (
        ("unseen_table", "table", [group.table for group in groups]),
        ("unseen_soc", "SoC", [group.soc for group in groups]),
    ):
        sets[name] = []
        if len(set(parts)) > 1:
            on_step(f"fitting without one {what} at a time")
        for part in sorted(set(parts)):
            train = [group for group, of in zip(groups, parts, strict=True) if of != part]
            test = [group for group, of in zip(groups, parts, strict=True) if of == part]
            if train:
                sets[name] += _held_out(test, fitted_to(train, devices))
    return sets


def _extents(groups: Sequence[Group], devices: dict[str, DeviceProfile]) -> dict[str, dict[str, Any]]:
    """By family: the sizes and dtypes that were measured of it on any SoC."""
    operands: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for group in groups:
        for part in group.launches[0].parts:
            operands[family_of(part.call, devices[group.soc]).name].append(largest(part.call))
    return {
        name: {
            "least_elements": max(1.0, min(n for n, _ in sizes)),
            "most_elements": max(1.0, max(n for n, _ in sizes)),
            "dtypes": tuple(sorted({dtype for _, dtype in sizes if dtype})),
        }
        for name, sizes in operands.items()
    }


def calibrate(
    groups: Sequence[Group],
    devices: dict[str, DeviceProfile],
    *,
    folds: int = 5,
    on_step: Callable[[str], None] = lambda step: None,
) -> tuple[dict[str, DeviceProfile], dict[str, list[HeldOut]]]:
    """Fit all devices to the groups; devices without data get what is shared.

    Returns the devices with sample counts filled in, and the kernels held out as `hold_out` does.
    """
    held_out = hold_out(groups, devices, folds=folds, on_step=on_step)
    states: dict[str, dict[str, list[State]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        for name in {family_of(part.call, devices[group.soc]).name for part in group.launches[0].parts}:
            states[name][group.soc].append(group.launches[0].state)
    measured = _extents(groups, devices)
    out: dict[str, DeviceProfile] = {}
    for soc, device in fitted_to(groups, devices).items():
        families: dict[str, FamilyCost] = {}
        for name, family in device.families.items():
            here = len(states[name][soc])
            elsewhere = sum(map(len, states[name].values())) - here
            families[name] = msgspec.structs.replace(
                family,
                samples=here or family.samples,
                samples_elsewhere=elsewhere or family.samples_elsewhere,
                states=tuple(sorted(set(states[name][soc]))),
                **measured.get(name, {}),
            )
        out[soc] = msgspec.structs.replace(device, families=families)
    return out, held_out
