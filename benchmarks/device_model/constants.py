# pyright: strict
"""Fits all shipped devices together: what is held out, the fitted devices, and the text of the file that ships."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from opreplay.replay.ascend.calibrate.calibrate import (
    Group,
    HeldOut,
    cross_validate,
    fitted_to,
    held_out,
    kernels_of,
    with_measured_types,
)
from opreplay.replay.ascend.cost.nearby import largest
from opreplay.replay.ascend.cost.predict import family_of
from opreplay.replay.ascend.devices.file import datasheet_only
from opreplay.replay.ascend.devices.fitted import COLUMNS, Row
from opreplay.replay.ascend.devices.text import (
    MEASURED,
    Constant,
    constant_text,
    fitted_constants,
    fitted_rates,
    neighbours,
)
from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ascend.measured.call_tables import MeasuredCall
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost
from opreplay.replay.ir.kernel import State


def hold_out(
    groups: Sequence[Group],
    devices: dict[str, DeviceProfile],
    *,
    folds: int = 5,
    on_step: Callable[[str], None] = lambda step: None,
) -> dict[str, list[HeldOut]]:
    """Predict kernels by fits that excluded them; the keys name what was excluded: "folds", "unseen_table",
    "unseen_soc".

    Near-duplicates of a kernel are mostly in its own table, so unseen tables are the harder test for known SoCs. With
    only one table, or only one SoC, that test is left out.
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
                sets[name] += held_out(test, fitted_to(train, devices))
    return sets


def _extents(groups: Sequence[Group], devices: dict[str, DeviceProfile]) -> dict[str, dict[str, Any]]:
    """Return the sizes and dtypes measured for each family on any SoC."""
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
    """Fit all devices to the groups; devices without data get the shared constants.

    Returns the devices with sample counts filled in, and the held-out kernels as `hold_out` returns them.
    """
    left_out = hold_out(groups, devices, folds=folds, on_step=on_step)
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
    return out, left_out


def with_evidence(
    devices: Mapping[str, DeviceProfile], groups: Sequence[Group], calls: Sequence[MeasuredCall]
) -> dict[str, DeviceProfile]:
    """Return the devices with only the kernel types measured on each of them, in networks or as single calls."""
    single = [(kernel, call.soc) for call in calls if len(call.ops) == 1 for kernel in lower(call.ops[0]).kernels]
    bare = {soc: msgspec.structs.replace(device, families=_unmeasured(device)) for soc, device in devices.items()}
    return with_measured_types(bare, [*kernels_of(groups), *single])


def _unmeasured(device: DeviceProfile) -> dict[str, FamilyCost]:
    return {
        name: msgspec.structs.replace(family, measured_here=(), measured_elsewhere=())
        for name, family in device.families.items()
    }


def shipped_table(
    groups: Sequence[Group], fitted: dict[str, DeviceProfile], calls: Sequence[MeasuredCall] = (), *, version: str
) -> str:
    """Return the table of constants fitted jointly for all shipped devices to public measurements.

    The measured `calls` are used only to mark which kernel types were measured.
    """
    counts = Counter(group.soc for group in groups)
    what = ", ".join(f"{n} of the {soc}" for soc, n in sorted(counts.items()))
    fitted = with_evidence(fitted, groups, calls)
    return fitted_text(fitted, source=f"fitted to {what}", version=version)


def fitted_text(devices: Mapping[str, DeviceProfile], *, source: str, version: str) -> str:
    """Return the table of all fitted constants of shipped devices, by name: the common values once, and rows for
    deviations.
    """
    bare = {soc: datasheet_only(device) for soc, device in devices.items()}
    first = next(iter(devices.values()))
    rows: list[Row] = [("", "", "version", "", version), ("", "", "source", "", source)]
    of = {soc: device.generation for soc, device in devices.items()}
    rows += _rows("", {s: fitted_rates(d.rates, bare[s].rates) for s, d in devices.items()}, bare[first.name].rates, of)
    for name in first.families:
        constants = {s: fitted_constants(d.families[name], bare[s].families[name]) for s, d in devices.items()}
        for of_device in constants.values():
            del of_device["samples_elsewhere"]
            for measured in MEASURED:
                of_device.pop(measured, None)
        rows += _rows(name, constants, bare[first.name].families[name], of)
        for soc, device in devices.items():
            if here := device.families[name].measured_here:
                rows.append((name, soc, "measured", "", " ".join(here)))
        of_generation = {device.generation: device.families[name] for device in devices.values()}
        for generation, family in of_generation.items():
            for kind, sizes, pull in neighbours(family):
                rows.append((name, generation, kind, " ".join(map(str, sizes)), pull))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    return text.getvalue()


def _rows(
    family: str,
    by_soc: Mapping[str, Mapping[str, Constant]],
    default: object,
    generations: Mapping[str, str],
) -> Iterator[Row]:
    """Yield the fewest rows for a constant: the value of most generations, unless it is the shared model's; for each
    other generation the value of most of its devices; and a row for each other device.
    """
    for constant in dict.fromkeys(name for constants in by_soc.values() for name in constants):
        before = constant_text(constant, getattr(default, constant))
        values = {s: constant_text(constant, v[constant]) if constant in v else before for s, v in by_soc.items()}
        by_generation = {
            generation: _usual([values[soc] for soc in values if generations[soc] == generation], before)
            for generation in dict.fromkeys(generations.values())
        }
        usual = _usual(list(by_generation.values()), before)
        if usual != before:
            yield family, "", constant, "", usual
        for generation, value in by_generation.items():
            if value != usual:
                yield family, generation, constant, "", value
        for soc, value in values.items():
            if value != by_generation[generations[soc]]:
                yield family, soc, constant, "", value


def _usual(values: Sequence[str], before: str) -> str:
    """Return the most frequent value; `before` if it is among them."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value == before))
