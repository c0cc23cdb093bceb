# pyright: strict
"""Calibration as a whole: samples from kernel tables, the fit, cross-validation, and error bands from held-out kernels.

Owns the procedure; `fit` owns the optimisation, `device_text` the file that results.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from statistics import fmean, median
from typing import Any

import msgspec

from opreplay.replay.ascend.calibrate.fit import Sample, fit
from opreplay.replay.ascend.cost.nearby import Place, drawn, largest, learned, place_of
from opreplay.replay.ascend.cost.predict import AROUND, NEAR, family_of, unsteadiness
from opreplay.replay.ascend.cost.residency import resident_of
from opreplay.replay.ascend.measured.accuracy import Compared, Launch, compare_group, percentile
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost
from opreplay.replay.ir.kernel import State

BAND_PRIOR_WEIGHT = 8
"""Weight, in kernels, of the spread of all families of an SoC in one family's band."""
SOC_PRIOR_WEIGHT = 10
"""Weight, in kernels, of all SoCs' spread in one SoC's."""

MIN_BAND, MAX_BAND = 1.05, 6.0


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
    state: State = "network"
    nearness: str = "far"
    """Distance to the nearest measured kernel of the fit: a name of `WIDTHS`."""


WIDTHS = ("near", "around", "far", "apart")
"""How far the nearest measured kernel is: each has its factor on the logarithm of the band. "apart": nothing of its
family was measured on its SoC in its state."""


def _family_name(group: Group, device: DeviceProfile) -> str:
    return family_of(group.launches[0].parts[0].call, device).name


def _nearness(group: Group, device: DeviceProfile, measured: Set[tuple[str, str, str]]) -> str:
    state, worst = group.launches[0].state, 1.0
    for part in group.launches[0].parts:
        family = family_of(part.call, device)
        worst = min(worst, drawn(part.call, family, None, state)[1] if family.nearby else 0.0)
    if worst > AROUND:
        return "near" if worst > NEAR else "around"
    return "far" if (group.soc, _family_name(group, device), state) in measured else "apart"


class Bands(msgspec.Struct, frozen=True, kw_only=True):
    """80 % bands of short kernels in networks, as factors, and what they are widened by."""

    by_soc: dict[tuple[str, str], float]
    """(SoC, family) → of a family measured there."""
    elsewhere: dict[str, float]
    """Family → of all SoCs that it was measured on."""
    usual: float
    """Of a family without residuals."""
    inside: float
    """Share of the kernels in bands that were made from the others."""
    widths: dict[str, float] = {}
    """By name of `WIDTHS`: factor on the logarithm."""

    def of(self, kernel: HeldOut) -> float:
        """Logarithm of the band of a held-out kernel."""
        band = None if kernel.nearness == "apart" else self.by_soc.get((kernel.soc, kernel.family))
        width = math.log(band or self.elsewhere.get(kernel.family, self.usual)) * _unsteadiness(kernel)
        return width * self.widths.get(kernel.nearness, 1)

    def of_family(self, soc: str, family: str, *, here: int, elsewhere: int) -> float:
        """Band of a family that so many kernels were measured of on its SoC and on others."""
        if here or elsewhere:
            pooled = self.elsewhere.get(family, self.usual)
            return self.by_soc.get((soc, family), pooled) if here else pooled
        # Nobody measured this family: twice the spread of the others.
        return _band(2 * math.log(self.usual))


def with_widths(unwidened: Bands, folds: Sequence[HeldOut], left_out: Sequence[HeldOut]) -> Bands:
    """The bands with the factor on their logarithm by nearness: 80 % of the held-out kernels of each lie within.

    The folds tell those of kernels of measured families; tables and SoCs left out what is apart.
    """
    out: dict[str, float] = {}
    for name in WIDTHS:
        kernels = [*folds, *left_out] if name == "apart" else folds
        ratios = [abs(_log_error(kernel)) / unwidened.of(kernel) for kernel in kernels if kernel.nearness == name]
        # Few kernels: drawn to 1.
        out[name] = percentile([*ratios, *[1.0] * 3], 0.8)
    for less, more in itertools.pairwise(WIDTHS):
        out[more] = max(out[more], out[less])
    return msgspec.structs.replace(unwidened, widths=out)


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
    return with_nearby(fit(samples, devices, prior_width=prior_width)[0], groups)


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


def _held_out(groups: Sequence[Group], devices: dict[str, DeviceProfile], train: Sequence[Group]) -> list[HeldOut]:
    measured = {(g.soc, _family_name(g, devices[g.soc]), g.launches[0].state) for g in train}
    return [
        HeldOut(
            soc=g.soc,
            family=_family_name(g, devices[g.soc]),
            compared=compare_group(g.launches, devices[g.soc]),
            table=g.table,
            state=g.launches[0].state,
            nearness=_nearness(g, devices[g.soc], measured),
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
            out += _held_out(test, fitted_to(train, devices, prior_width=prior_width), train)
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
                sets[name] += _held_out(test, fitted_to(train, devices), train)
    return sets


def spread(residuals: Sequence[float], pooled: float, weight: float = BAND_PRIOR_WEIGHT) -> float:
    """Mean of |log error|, drawn to `pooled` as if `weight` of the kernels had it."""
    return (sum(abs(r) for r in residuals) + weight * pooled) / (len(residuals) + weight)


def _unsteadiness(kernel: HeldOut) -> float:
    return unsteadiness(kernel.compared.predicted_us, kernel.state, known=kernel.nearness != "apart")


def bands(held_out: Sequence[HeldOut]) -> Bands:
    """80 % bands by SoC and family, and the share of `held_out` that falls inside.

    A band is exp(k * spread). The factor k is the 80 % quantile of |log error| / spread over all held-out kernels, each
    kernel's own error left out of its spread; so 80 % of kernels that no band has seen fall inside by construction.
    Errors are those of short kernels in networks; others' are scaled to them (see `unsteadiness`). A family's spread on
    an SoC is drawn to that of the SoC, which is drawn to that of all.
    """
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for kernel in held_out:
        groups[kernel.soc, kernel.family].append(_log_error(kernel) / _unsteadiness(kernel))
    families: dict[str, list[float]] = defaultdict(list)
    socs: dict[str, list[float]] = defaultdict(list)
    for (soc, name), group in groups.items():
        families[name] += group
        socs[soc] += group
    everything = [abs(r) for group in groups.values() for r in group]
    pooled = fmean(everything) if everything else math.log(2.0)
    usual = {soc: spread(group, pooled, SOC_PRIOR_WEIGHT) for soc, group in socs.items()}
    ratios: list[float] = []
    for (soc, _), group in groups.items():
        for i, residual in enumerate(group):
            ratios.append(abs(residual) / spread(group[:i] + group[i + 1 :], usual[soc]))
    k = percentile(ratios, 0.8) if ratios else 1.6
    inside = fmean(r <= k for r in ratios) if ratios else math.nan
    return Bands(
        by_soc={key: _band(k * spread(g, usual[key[0]])) for key, g in groups.items()},
        elsewhere={key: _band(k * spread(g, pooled)) for key, g in families.items()},
        usual=_band(k * pooled),
        inside=inside,
    )


def _band(width: float) -> float:
    return min(MAX_BAND, max(MIN_BAND, math.exp(width)))


def _log_error(kernel: HeldOut) -> float:
    return math.log(kernel.compared.predicted_us / kernel.compared.measured_us)


EXTRAPOLATED = 1.5
"""How much wider, in log units, the band is outside of what was measured of a family than on an SoC that none of it was
measured on; assumed."""


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

    Returns the devices with sample counts and bands filled in, and the kernels held out as `hold_out` does.
    """
    held_out = hold_out(groups, devices, folds=folds, on_step=on_step)
    fitted_bands = with_widths(
        bands(held_out["folds"]), held_out["folds"], [*held_out["unseen_table"], *held_out["unseen_soc"]]
    )
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
                band=fitted_bands.of_family(soc, name, here=here, elsewhere=elsewhere),
                states=tuple(sorted(set(states[name][soc]))),
                **measured.get(name, {}),
            )
        rates = msgspec.structs.replace(
            device.rates,
            **{f"band_{nearness}": factor for nearness, factor in fitted_bands.widths.items()},
            band_extrapolated=EXTRAPOLATED * fitted_bands.widths["apart"],
        )
        out[soc] = msgspec.structs.replace(device, families=families, rates=rates)
    return out, held_out
