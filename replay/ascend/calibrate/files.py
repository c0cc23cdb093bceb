# pyright: strict
"""What calibration writes: the file of a user's own device, the table of those that ship; owns headers and sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

import msgspec

from opreplay.replay.ascend.calibrate.calibrate import Group
from opreplay.replay.ascend.calibrate.calls import known_calls
from opreplay.replay.ascend.calibrate.recalibrate import Recalibration
from opreplay.replay.ascend.cost.predict import family_of
from opreplay.replay.ascend.devices.text import device_text, fitted_text
from opreplay.replay.ascend.measured.call_tables import MeasuredCall
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost


def own_device_text(fit: Recalibration, *, name: str) -> str:
    """The TOML text of a user's calibrated device: complete, so that it means the same whatever ships later."""
    kernels = len(fit.compared_before)
    device = msgspec.structs.replace(
        fit.after, name=name, title=f"{fit.before.title}, calibrated", aliases=(), version="1"
    )
    header = (
        f"{fit.before.title} ({fit.before.name}, version {fit.before.version}), its constants fitted to "
        f"{kernels} measured kernels\nby `opreplay calibrate`. Use it by its path: --soc FILE."
    )
    source = f"{fit.before.name} {fit.before.version}, fitted to {kernels} kernels of a user's profile"
    return device_text(device, header=header, source=source)


Origins = Set[tuple[str, str, str]]
"""Who measured what: (family, SoC, table or project)."""


def origins_of(groups: Sequence[Group], calls: Sequence[MeasuredCall], devices: Mapping[str, DeviceProfile]) -> Origins:
    """Who measured the families of kernels in networks and of calls by themselves."""
    kernels = {
        (family_of(part.call, devices[group.soc]).name, group.soc, group.table)
        for group in groups
        for part in group.launches[0].parts
    }
    return kernels | {
        (known.traits.family, known.call.soc, known.call.source.split(":")[0]) for known in known_calls(calls)
    }


def with_checks(devices: Mapping[str, DeviceProfile], origins: Origins) -> dict[str, DeviceProfile]:
    """The devices with what was checked of them: of two origins on an SoC, each checks a fit to the other."""
    out: dict[str, DeviceProfile] = {}
    for soc, device in devices.items():
        families: dict[str, FamilyCost] = {}
        for name, family in device.families.items():
            anywhere = {origin for of, _, origin in origins if of == name}
            here = {origin for of, measured_on, origin in origins if (of, measured_on) == (name, soc)}
            checked = "calibrated" if len(here) > 1 else "other SoC" if len(anywhere) > 1 else "uncalibrated"
            families[name] = msgspec.structs.replace(family, checked=checked)
        out[soc] = msgspec.structs.replace(device, families=families)
    return out


def shipped_table(
    groups: Sequence[Group], fitted: dict[str, DeviceProfile], calls: Sequence[MeasuredCall] = (), *, version: str
) -> str:
    """The table of what was fitted of all shipped devices together, to public measurements; `calls` are no part of the
    fit, but check it."""
    counts = Counter(group.soc for group in groups)
    what = ", ".join(f"{n} of the {soc}" for soc, n in sorted(counts.items()))
    fitted = with_checks(fitted, origins_of(groups, calls, fitted))
    return fitted_text(fitted, source=f"fitted to {what}", version=version)
