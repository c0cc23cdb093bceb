# pyright: strict
"""Predicts a whole plan on several simulated devices; `op` and `step` predict for one device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from opreplay.replay.ascend.cost.collective import missing_dies
from opreplay.replay.ascend.devices.cluster import devices_on
from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.simulate.step import Step, simulate_step
from opreplay.replay.ascend.simulate.step_residency import PlannedStep, StepKernels, outside_bytes
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.ascend.profile import DeviceProfile
    from opreplay.replay.ir.model import ReplayOp
    from opreplay.replay.results.records import L2State


def load_socs(names: Sequence[str], cluster: str | None = None) -> dict[str, DeviceProfile]:
    """Load simulated devices by name, in the given order.

    If `cluster` is given, its SoC comes first, and all devices are dies of the cluster. Raises UsageError for unknown
    devices, for duplicate names, and for custom-op registrations that name an unknown device.
    """
    from opreplay.replay.ascend.custom.estimators import refuse_unknown_devices

    devices: dict[str, DeviceProfile] = {}
    if cluster is not None:
        devices = {device.name: device for device in devices_on(tuple(names), cluster)}
    for text in names if cluster is None else ():
        device = load_device(text)
        if device.name in devices:
            hint = f"Change `name` in {text}." if text.endswith(".toml") else "Give each --soc only once."
            raise UsageError(f"two simulated devices have the name {device.name}", hint=hint)
        devices[device.name] = device
    refuse_unknown_devices()
    return devices


def ranks_without_dies(ops: Iterable[ReplayOp], devices: Iterable[DeviceProfile]) -> str | None:
    """Return a warning if groups of collectives are larger than the cluster for which they are predicted; otherwise
    None.
    """
    groups = [op.collective.group_size for op in ops if op.collective is not None and op.collective.group_size]
    largest = max(groups, default=0)
    for device in devices:
        if text := missing_dies(largest, device):
            some = sum(bool(missing_dies(size, device)) for size in groups)
            return (
                f"{some} of {len(groups)} collectives have more ranks than the cluster has dies (up to {text}): they "
                f"are predicted for these dies only, so less data moves; describe a larger --cluster"
            )
    return None


def simulate_plan(
    step: PlannedStep,
    devices: Sequence[DeviceProfile],
    l2: L2State = "sequence",
) -> list[Step]:
    """Predict all ops of a plan on each device, in the given order.

    `l2` is the L2 state at the start of each op; "sequence" derives it from the sequence of ops.
    """
    ops, contents = step.plan.ops, step.contents
    if l2 == "warm" or step.kernels is None:
        return [simulate_step(ops, device, contents, None, l2) for device in devices]
    caches = step.held(devices) if l2 == "sequence" else [None] * len(devices)
    return [
        _streamed(simulate_step(ops, device, contents, cached, l2), device, step.kernels)
        for device, cached in zip(devices, caches, strict=True)
    ]


def _streamed(step: Step, device: DeviceProfile, kernels: StepKernels) -> Step:
    """Return the step with the predicted time of one pass and the minimum bytes that the pass must stream from HBM."""
    times = {op.id: op.simulated.time_us for op in step.ops}
    return msgspec.structs.replace(
        step,
        pass_us=sum(times.get(kernels.ops[index].id, 0.0) for index in kernels.calls),
        pass_bytes=outside_bytes(kernels, device, times.keys()),
    )
