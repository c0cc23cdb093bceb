# pyright: strict
"""Time of a collective by latency and bandwidth (alpha-beta), per algorithm and level of the network; no contention.

A2 servers are a full mesh of HCCS links between 8 dies, with RoCE between servers; on A3 two dies share a package (SIO)
and packages are switched (UB). A collective over several servers runs in levels: within each server, then between them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2
from typing import NamedTuple

from opreplay.replay.ascend.cost.sizes import total_bytes
from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost, Link

DEFAULT_WORLD = 8
"""Dies of one A2 server; taken when the call does not say how many take part."""


class Level(NamedTuple):
    """Dies that one level of the network connects."""

    dies: int
    link: Link
    direct: bool
    """Every die reaches every other in one step: a full mesh or a switch."""


def levels_of(world: int, device: DeviceProfile) -> list[Level]:
    """The levels that `world` dies span, innermost first; empty for one die."""
    if world <= 1:
        return []
    inner = min(world, device.server_dies)
    link = device.link
    if inner == 2 and device.pair_link is not None:
        link = device.pair_link
    elif device.peer_bytes_per_s is not None:
        # In a mesh a die has one link to each peer: few peers, little bandwidth.
        link = Link(
            bytes_per_s=min(link.bytes_per_s, (inner - 1) * device.peer_bytes_per_s), latency_us=link.latency_us
        )
    out = [Level(inner, link, True)]
    if world > inner:
        out.append(Level(ceil(world / inner), device.far_link or link, False))
    return out


def phase_us(size: float, level: Level) -> float:
    """One phase (reduce-scatter or all-gather) over buffers of `size` bytes, by the quickest algorithm of the level.

    Direct: one step. Ring: n - 1 steps. Halving and doubling: log2(n) steps, and half the bytes again where n is no
    power of two.
    """
    n, link = level.dies, level.link
    moved = size * (n - 1) / n / link.bytes_per_s * 1e6
    if level.direct:
        return link.latency_us + moved
    steps = ceil(log2(n))
    ring = (n - 1) * link.latency_us + moved
    halving = steps * link.latency_us + moved * (1.0 if n == 1 << steps else 1.5)
    return min(ring, halving)


def _reduced(size: float, levels: list[Level]) -> float:
    # Down and up again: each level works on what the level inside left to each die.
    total, left = 0.0, size
    for level in levels:
        total += phase_us(left, level)
        left /= level.dies
    return total


def _all_reduce(size: float, levels: list[Level]) -> float:
    return 2 * _reduced(size, levels)


def _exchanged(size: float, levels: list[Level]) -> float:
    world = 1
    for level in levels:
        world *= level.dies
    times: list[float] = []
    reached = 1
    for level in levels:
        outside = (level.dies * reached - reached) / world
        times.append(
            level.link.latency_us * (1 if level.direct else level.dies - 1)
            + size * outside / level.link.bytes_per_s * 1e6
        )
        reached *= level.dies
    return max(times, default=0.0)


def _once(size: float, levels: list[Level]) -> float:
    # Through every level once, in pieces that follow each other: the slowest link counts.
    return sum(one.link.latency_us * ceil(log2(max(2, one.dies))) for one in levels) + max(
        (size / one.link.bytes_per_s * 1e6 for one in levels), default=0.0
    )


def _synchronised(size: float, levels: list[Level]) -> float:
    return 2 * sum(one.link.latency_us * ceil(log2(max(2, one.dies))) for one in levels)


def _sent(size: float, levels: list[Level]) -> float:
    return max((one.link.latency_us + size / one.link.bytes_per_s * 1e6 for one in levels[-1:]), default=0.0)


KINDS: dict[str, Callable[[float, list[Level]], float]] = {
    "allreduce": _all_reduce,
    "matmulallreduce": _all_reduce,
    "allgather": _reduced,
    "reducescatter": _reduced,
    "alltoall": _exchanged,
    "moedistribute": _exchanged,
    "broadcast": _once,
    "reduce": _once,
    "gather": _reduced,
    "scatter": _reduced,
    "barrier": _synchronised,
    "send": _sent,
    "receive": _sent,
    "batchsendrecv": _sent,
}
"""Start of the operation's name → microseconds on the links; the first that fits counts, others go through once."""


def collective_terms(
    call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None = None
) -> dict[str, float]:
    """Terms of a collective in microseconds: launch (host and notification) and link.

    `attrs["world_size"]` says how many dies take part. Time spent waiting for other ranks is no cost of the operation
    and is not predicted.
    """
    given = call.attrs.get("world_size")
    world = given if isinstance(given, int) and given > 0 else DEFAULT_WORLD
    size = float(max(total_bytes(call.inputs), total_bytes(call.outputs)))
    name = call.type.lower().replace("hcom_", "").replace("_", "")
    time_of = next((time for start, time in KINDS.items() if name.startswith(start)), _once)
    return {"launch": family.fixed_us, "link": time_of(size, levels_of(world, device))}
