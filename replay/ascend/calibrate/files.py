# pyright: strict
"""What calibration writes: the file of a user's own device, the table of those that ship; owns headers and sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from opreplay.replay.ascend.calibrate.calibrate import Group, kernels_of, with_measured_types
from opreplay.replay.ascend.calibrate.recalibrate import Recalibration
from opreplay.replay.ascend.devices.text import device_text, fitted_text
from opreplay.replay.ascend.lowering import lower
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


def with_evidence(
    devices: Mapping[str, DeviceProfile], groups: Sequence[Group], calls: Sequence[MeasuredCall]
) -> dict[str, DeviceProfile]:
    """Return the devices with just the kernel types that were measured on each: in networks, or as single calls."""
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
    """Return the table of what was fitted of all shipped devices together to public measurements; measured `calls` only
    say which kernel types were measured."""
    counts = Counter(group.soc for group in groups)
    what = ", ".join(f"{n} of the {soc}" for soc, n in sorted(counts.items()))
    fitted = with_evidence(fitted, groups, calls)
    return fitted_text(fitted, source=f"fitted to {what}", version=version)
