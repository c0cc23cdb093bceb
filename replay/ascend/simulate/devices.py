# pyright: strict
"""One op, or a whole plan, on several simulated devices side by side; what one device takes is `op` and `step`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from opreplay.replay.ascend.cost.collective import lacking
from opreplay.replay.ascend.custom.estimators import CustomOpError
from opreplay.replay.ascend.devices.cluster import devices_on
from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.simulate.op import is_predicted, simulate_op
from opreplay.replay.ascend.simulate.step import Step, simulate_step
from opreplay.replay.ascend.simulate.step_residency import StepKernels, held_in_caches, outside_bytes, step_kernels
from opreplay.traces.errors import InternalError, UsageError

if TYPE_CHECKING:
    from opreplay.replay.ascend.profile import DeviceProfile
    from opreplay.replay.ir.model import ReplayOp, ReplayPlan
    from opreplay.replay.ops.work.contents import Contents
    from opreplay.replay.results.records import L2State, Simulated


def load_socs(names: Sequence[str], cluster: str | None = None) -> dict[str, DeviceProfile]:
    """Simulated devices by name, in the order given; with `cluster` its own first, and all as dies of it.

    Raises UsageError for unknown devices, two of one name, and registrations for a device that is none.
    """
    from opreplay.replay.ascend.custom.estimators import refuse_unknown_devices

    devices: dict[str, DeviceProfile] = {}
    if cluster is not None:
        devices = {device.name: device for device in devices_on(tuple(names), cluster)}
    for text in names if cluster is None else ():
        device = load_device(text)
        if device.name in devices:
            raise UsageError(f"two simulated devices are called {device.name}", hint="Name each --soc once.")
        devices[device.name] = device
    refuse_unknown_devices()
    return devices


class Failed(dict[str, list[str]]):
    """Op id → why it has no prediction, where a user's function failed, or one of opreplay's own."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, InternalError] = {}
        """Op id → the first fault of opreplay's own."""

    def conclude(self) -> None:
        """Raise InternalError for what `faults` holds, once all that could be done is done."""
        if self.faults:
            first = next(iter(self.faults.values()))
            more = f"; and {len(self.faults) - 1} more ops" if len(self.faults) > 1 else ""
            raise InternalError(f"{first}{more}", hint=first.hint)


def ranks_without_dies(ops: Iterable[ReplayOp], devices: Iterable[DeviceProfile]) -> str | None:
    """A line on collectives whose groups are larger than the cluster that they are predicted on; None where none is."""
    groups = [op.collective.group_size for op in ops if op.collective is not None and op.collective.group_size]
    largest = max(groups, default=0)
    for device in devices:
        if text := lacking(largest, device):
            some = sum(bool(lacking(size, device)) for size in groups)
            return (
                f"opreplay: warning: the cluster is smaller than the groups of {some} of {len(groups)} collectives (up "
                f"to {text}): predicted among the dies that there are, where less is moved; describe a larger --cluster"
            )
    return None


def simulate_on(
    op: ReplayOp,
    devices: Mapping[str, DeviceProfile],
    contents: Callable[[ReplayOp], Contents | None] | None = None,
    l2: L2State = "sequence",
    failed: Failed | None = None,
) -> dict[str, Simulated]:
    """Predictions for one op on every device; none for a label or an op without arguments, which is not for free.

    `contents` says what the values of its arguments amount to. Where a user's function fails there is none either, or
    one of opreplay's own, and `failed` is told why. Raises CustomOpError and InternalError without it.
    """
    predictions: dict[str, Simulated] = {}
    for name, device in devices.items():
        try:
            simulated = simulate_op(op, device, None if contents is None else contents(op), l2)
        except (CustomOpError, InternalError) as error:
            if failed is None:
                raise
            if isinstance(error, InternalError):
                failed.faults.setdefault(op.id, error)
            failed.setdefault(op.id, []).append(f"no prediction for {name}: {error}")
        else:
            if is_predicted(op, simulated):
                predictions[name] = simulated
            elif simulated.by == "nothing" and simulated.source and failed is not None:
                failed.setdefault(op.id, []).append(f"not predicted for {name}: {simulated.source}")
    return predictions


def simulate_plan(
    plan: ReplayPlan,
    devices: Sequence[DeviceProfile],
    contents: Callable[[ReplayOp], Contents | None],
    l2: L2State = "sequence",
) -> list[Step]:
    """All ops of a plan on each device, in the order given; what lies in L2 follows from its sequence, or is `l2`."""
    if plan.sequence is None or l2 == "warm":
        return [simulate_step(plan.ops, device, contents, None, l2) for device in devices]
    kernels = step_kernels(plan.ops, plan.sequence, contents)
    caches = held_in_caches(kernels, devices) if l2 == "sequence" else [None] * len(devices)
    return [
        _streamed(simulate_step(plan.ops, device, contents, cached, l2), device, kernels)
        for device, cached in zip(devices, caches, strict=True)
    ]


def _streamed(step: Step, device: DeviceProfile, kernels: StepKernels) -> Step:
    """The step with how long one pass of it is predicted to take, and what it streams at least in that time."""
    times = {op.id: op.simulated.time_us for op in step.ops}
    return msgspec.structs.replace(
        step,
        pass_us=sum(times.get(kernels.ops[index].id, 0.0) for index in kernels.calls),
        pass_bytes=outside_bytes(kernels, device, times.keys()),
    )
