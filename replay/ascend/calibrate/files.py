# pyright: strict
"""What calibration writes: the file of a user's own device, the table of those that ship; owns headers and sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from opreplay.replay.ascend.calibrate.calibrate import Group
from opreplay.replay.ascend.calibrate.recalibrate import Recalibration
from opreplay.replay.ascend.devices.text import device_text, fitted_text
from opreplay.replay.ascend.profile import DeviceProfile


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


def shipped_table(groups: Sequence[Group], fitted: dict[str, DeviceProfile], *, version: str) -> str:
    """The table of what was fitted of all shipped devices together, to public measurements."""
    counts = Counter(group.soc for group in groups)
    what = ", ".join(f"{n} of the {soc}" for soc, n in sorted(counts.items()))
    return fitted_text(fitted, source=f"fitted to {what}", version=version)
