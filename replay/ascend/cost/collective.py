"""Time of a collective by latency and bandwidth (alpha-beta), for one ring or mesh of equal links; no contention."""

from __future__ import annotations

from math import ceil, log2

from opreplay.replay.ascend.cost.sizes import total_bytes
from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost

DEFAULT_WORLD = 8
"""Dies of one A2 server; taken when the call does not say how many take part."""

_SHARES = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
}
"""Bytes that pass each die's links over the bytes of the larger buffer, ring or mesh algorithms."""


def collective_terms(
    call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None = None
) -> dict[str, float]:
    """Terms of a collective in microseconds: launch (host and notification) and link.

    `attrs["world_size"]` says how many dies take part. Time spent waiting for other ranks is no cost of the operation
    and is not predicted.
    """
    given = call.attrs.get("world_size")
    world = given if isinstance(given, int) and given > 0 else DEFAULT_WORLD
    size = max(total_bytes(call.inputs), total_bytes(call.outputs))
    kind = call.type.lower().replace("hcom_", "").replace("_", "")
    share = next((f(world) for name, f in _SHARES.items() if kind.startswith(name)), 1.0) if world > 1 else 0.0
    steps = ceil(log2(world)) if world > 1 else 0
    link = steps * device.link.latency_us + size * share / device.link.bytes_per_s * 1e6
    return {"launch": family.fixed_us, "link": link}
