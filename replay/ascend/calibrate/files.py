# pyright: strict
"""The device files that calibration writes: a user's own device, and those that ship; owns headers and sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from opreplay.replay.ascend.calibrate.calibrate import Group
from opreplay.replay.ascend.calibrate.recalibrate import Recalibration
from opreplay.replay.ascend.devices.file import SCHEMA_VERSION, DeviceFile, datasheet_only
from opreplay.replay.ascend.devices.text import device_text
from opreplay.replay.ascend.profile import DeviceProfile

SHIPPED_COMMAND = "opreplay calibrate --shipped"


def _file(device: DeviceProfile) -> DeviceFile:
    return DeviceFile(
        schema_version=SCHEMA_VERSION,
        name=device.name,
        title=device.title,
        version=device.version,
        aliases=device.aliases,
        datasheet=device.datasheet,
    )


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
    return device_text(_file(device), device, header=header, source=source, model=datasheet_only(device))


def shipped_texts(groups: Sequence[Group], fitted: dict[str, DeviceProfile], *, version: str) -> dict[str, str]:
    """The TOML text of every shipped device by name, fitted together to public measurements."""
    counts = Counter(group.soc for group in groups)
    what = ", ".join(f"{n} of the {soc}" for soc, n in sorted(counts.items()))
    out: dict[str, str] = {}
    for name, device in fitted.items():
        header = (
            f"{device.title}: datasheet values, and constants fitted to public kernel measurements\n"
            f"({what}) by `{SHIPPED_COMMAND}`. Do not edit by hand."
        )
        dated = msgspec.structs.replace(device, version=version)
        out[name] = device_text(
            _file(dated), dated, header=header, source=f"fitted to {what}", model=datasheet_only(device)
        )
    return out
