# pyright: strict
"""Time of a collective by latency and bandwidth (alpha-beta), per algorithm and network level.

A2 servers are a full mesh of HCCS links between 8 dies, with RoCE between servers. On A3, two dies share a package
(SIO), and packages are connected by switches (UB). A link has the latency and bandwidth of its transport
(`devices.transports`) if that was measured.

The fastest of HCCL's algorithms is used. Within a server and then between servers, these are direct (every die to every
other at once), ring, or halving and doubling. Another one is a single ring around all dies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import ceil, log2, prod
from typing import NamedTuple

from opreplay.replay.ascend.cost.sizes import total_bytes
from opreplay.replay.ascend.devices.transports import Work, transports, work_of
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost, Link
from opreplay.replay.ir.kernel import Evidence, KernelCall
from opreplay.traces.names import plural

DEFAULT_WORLD = 8
"""Group size assumed if a call does not give it: the number of dies in one A2 server."""
MEASURED_SERVERS = 2
"""Servers of the largest job with public transfer measurements; larger jobs are extrapolated."""
MEASURED_BYTES = 1e9
"""Approximate size in bytes of the largest message with public transfer measurements."""


class Level(NamedTuple):
    """The dies connected by one level of the network."""

    dies: int
    link: Link
    direct: bool
    """Whether every die reaches every other die in one step (full mesh or switch)."""
    transport: str = "link"
    peer: Link | None = None
    """Link used to send to one die only. None means that it is as fast as the link to all dies together."""


class Choice(NamedTuple):
    """The algorithm chosen for a collective, with its time."""

    us: float
    algorithm: str
    """Algorithm and transport for each level, innermost first: "direct over HCCS, then ring over RDMA"."""


def levels_of(world: int, device: DeviceProfile, work: Work = "copy", ranks: tuple[int, ...] = ()) -> list[Level]:
    """Return the network levels that connect `world` dies, innermost first; empty for one die.

    If the device describes a cluster, `ranks` lists the die of each rank, server by server. If not, servers are filled
    one after another, and there are as many servers as needed.
    """
    cluster = device.cluster
    per_server = device.server_dies if cluster is None else cluster.dies
    if cluster is not None:
        world = min(world, cluster.dies * cluster.servers)
    if world <= 1:
        return []
    inner, servers = min(world, per_server), ceil(world / per_server)
    if cluster is not None and len(ranks) == world and max(ranks) < cluster.dies * cluster.servers:
        placed = Counter(rank // per_server for rank in ranks)
        inner, servers = max(placed.values()), len(placed)
    out = [_inner(inner, device, work)] if inner > 1 else []
    if servers > 1:
        out.append(_outer(servers, device, work))
    return out


def _inner(dies: int, device: DeviceProfile, work: Work) -> Level:
    described = None if device.cluster is None else device.cluster.inside
    if described is not None:
        together = described.bytes_per_s * (dies - 1 if described.mesh else 1)
        peer = Link(bytes_per_s=described.bytes_per_s, latency_us=described.latency_us)
        return Level(dies, Link(bytes_per_s=together, latency_us=described.latency_us), True, described.transport, peer)
    if dies == 2 and device.pair_link is not None:
        return Level(dies, device.pair_link, True, "SIO")
    if device.peer_bytes_per_s is None:
        return Level(dies, device.link, True, "UB")
    # In a mesh a die has one link to each peer: few peers, little bandwidth.
    hccs = transports()["HCCS"]
    rate = min(device.peer_bytes_per_s, hccs.rate(work, device.shipped_name).value)
    start = max(device.link.latency_us, hccs.latency.value)
    together = min(device.link.bytes_per_s, (dies - 1) * rate)
    return Level(
        dies,
        Link(bytes_per_s=together, latency_us=start),
        True,
        "HCCS",
        Link(bytes_per_s=min(rate, together), latency_us=start),
    )


def _outer(servers: int, device: DeviceProfile, work: Work) -> Level:
    described = None if device.cluster is None else device.cluster.between
    if described is not None:
        link = Link(bytes_per_s=described.bytes_per_s, latency_us=described.latency_us)
        return Level(servers, link, False, described.transport)
    far = device.far_link
    if far is None:
        return Level(servers, device.link, False, "link")
    if device.peer_bytes_per_s is None:
        return Level(servers, far, False, "UB")
    rdma = transports()["RDMA"]
    link = Link(
        bytes_per_s=min(far.bytes_per_s, rdma.rate(work, device.name).value),
        latency_us=max(far.latency_us, rdma.latency.value),
    )
    return Level(servers, link, False, "RDMA")


def phase_choice(size: float, level: Level) -> Choice:
    """Return the fastest algorithm for moving `size` bytes within one network level of n dies, with its time.

    A direct exchange takes one step. A ring takes n - 1 steps, each to one peer. Halving and doubling takes log2(n)
    steps and moves 1.5 times the bytes if n is not a power of two.
    """
    n, link = level.dies, level.link
    moved = size * (n - 1) / n / link.bytes_per_s * 1e6
    steps = ceil(log2(n))
    if level.direct:
        choices = [Choice(link.latency_us + moved, "direct")]
        if level.peer is not None:
            around = size * (n - 1) / n / level.peer.bytes_per_s * 1e6
            choices.append(Choice((n - 1) * level.peer.latency_us + around, "ring"))
    else:
        halved = moved * (1.0 if n == 1 << steps else 1.5)
        choices = [
            Choice((n - 1) * link.latency_us + moved, "ring"),
            Choice(steps * link.latency_us + halved, "halving-doubling"),
        ]
    best = min(choices, key=lambda choice: choice.us)
    return Choice(best.us, f"{best.algorithm} over {level.transport}")


def _together(parts: list[Choice]) -> Choice:
    return Choice(sum(part.us for part in parts), ", then ".join(part.algorithm for part in parts))


def _reduced(size: float, levels: list[Level]) -> Choice:
    # Down and up again: each level works on what the level inside left to each die.
    parts: list[Choice] = []
    shard_bytes = size
    for level in levels:
        parts.append(phase_choice(shard_bytes, level))
        shard_bytes /= level.dies
    by_levels = _together(parts)
    if len(levels) < 2:
        return by_levels
    # One ring around all dies: the slowest link on the way decides, and every step starts there.
    n = levels[0].dies * levels[1].dies
    slowest = min((level.peer or level.link for level in levels), key=lambda link: link.bytes_per_s)
    around = Choice(
        (n - 1) * slowest.latency_us + size * (n - 1) / n / slowest.bytes_per_s * 1e6,
        f"one ring over {' and '.join(level.transport for level in levels)}",
    )
    return min(by_levels, around, key=lambda choice: choice.us)


def _all_reduce(size: float, levels: list[Level], gathering: list[Level]) -> Choice:
    """Return the cost of an all-reduce as a reduce-scatter followed by an all-gather.

    The two have separate levels, because their links may have different rates.
    """
    first, second = _reduced(size, levels), _reduced(size, gathering)
    return Choice(first.us + second.us, f"reduce-scatter and all-gather: {first.algorithm}")


def _exchanged(size: float, levels: list[Level], uneven: float = 1.0) -> Choice:
    """Return the cost of an all-to-all, in which every die sends to all other dies at once.

    `uneven` is the largest part sent to a die, divided by the mean part.
    """
    world = prod(level.dies for level in levels)
    times: list[float] = []
    reached = 1
    for level in levels:
        outside = (level.dies * reached - reached) / world
        # In a mesh the largest part has a link to itself; a switch or a network card carries the sum.
        factor = uneven if level.peer is not None and level.dies > 2 else 1.0
        times.append(
            level.link.latency_us * (1 if level.direct else level.dies - 1)
            + factor * size * outside / level.link.bytes_per_s * 1e6
        )
        reached *= level.dies
    names = " beside ".join(level.transport for level in levels)
    return Choice(max(times, default=0.0), f"pairwise over {names}")


def _tree_start_us(levels: list[Level]) -> float:
    return sum(level.link.latency_us * ceil(log2(max(2, level.dies))) for level in levels)


def _once(size: float, levels: list[Level]) -> Choice:
    # Through every level once, in pieces that follow each other: the slowest link counts.
    start = _tree_start_us(levels)
    tree = max((size / level.link.bytes_per_s * 1e6 for level in levels), default=0.0)
    choices = [Choice(start + tree, "tree over " + " and ".join(level.transport for level in levels))]
    if len(levels) == 1 and levels[0].peer is not None:
        level = levels[0]
        peer = level.peer or level.link
        choices.append(Choice(peer.latency_us + size / peer.bytes_per_s * 1e6, f"direct over {level.transport}"))
    return min(choices, key=lambda choice: choice.us)


def _synchronised(size: float, levels: list[Level]) -> Choice:
    return Choice(2 * _tree_start_us(levels), "tree over " + " and ".join(level.transport for level in levels))


def _sent(size: float, levels: list[Level]) -> Choice:
    if not levels:
        return Choice(0.0, "")
    last = levels[-1]
    link = last.peer or last.link
    return Choice(link.latency_us + size / link.bytes_per_s * 1e6, f"direct over {last.transport}")


MOE_START_US = {"dispatch": 71.0, "combine": 37.0}
"""Start time in microseconds of the low-latency kernels that send tokens to experts (dispatch) and back (combine).

It excludes the time for bytes and for the steps in `MOE_STEP_US`. It was derived from the times for 128 tokens of size
7168 and 8 experts over 8 dies of A3: 132 us (dispatch) and 126 us (combine), from sgl-kernel-npu's readme.
"""
MOE_STEP_US = 10.0
"""Time in microseconds that each doubling of the number of ranks adds to the MoE kernels.

Measured: combine takes 126 us on 8 ranks and 135 us on 16. Dispatch takes 132 us on 8 and 153 us on 32.
"""
MOE_RATE_8 = 125e9
"""Bytes per second that a die combines for large batches over 8 dies of A3 (sgl-kernel-npu's readme)."""
MOE_FALL = 0.153
"""Exponent e of the bulk rate on n ranks, which is `MOE_RATE_8` * (8 / n)^e. It gives 91 GB/s on 64 ranks."""


def _experts(size: float, levels: list[Level], way: str) -> Choice:
    """Return the cost of sending tokens to the ranks of their experts ("dispatch") or back ("combine").

    The cost is the longer of two times. The first is the sum of start, steps and bytes; it is longer for few tokens.
    The second is the time to move the bytes at the bulk rate; it is longer for many tokens.
    """
    world = prod(level.dies for level in levels)
    if world < 2:
        return Choice(0.0, "")
    even = _exchanged(size, levels)
    few = MOE_START_US[way] + MOE_STEP_US * log2(world) + even.us
    many = size / (MOE_RATE_8 * (8 / world) ** MOE_FALL) * 1e6
    # Rates are those of A3: where links are slower, as much slower.
    slower = max(1.0, 218e9 / levels[0].link.bytes_per_s)
    return max(Choice(few, f"low latency, {even.algorithm}"), Choice(many * slower, even.algorithm))


KINDS: dict[str, Callable[[float, list[Level]], Choice]] = {
    "allgather": _reduced,
    "reducescatter": _reduced,
    "alltoall": _exchanged,
    "moedistributedispatch": lambda size, levels: _experts(size, levels, "dispatch"),
    "moedistributecombine": lambda size, levels: _experts(size, levels, "combine"),
    "broadcast": _once,
    "reduce": _once,
    "gather": _reduced,
    "scatter": _reduced,
    "barrier": _synchronised,
    "send": _sent,
    "receive": _sent,
    "batchsendrecv": _sent,
}
"""Functions that return a collective's time on the links, by the prefix of its name.

The first matching prefix is used. If none matches, all data are assumed to be sent once.
"""


def missing_dies(world: object, device: DeviceProfile) -> str:
    """Return a text such as "16 ranks on 8 dies" if a group is larger than the described cluster; otherwise ""."""
    if device.cluster is None or not isinstance(world, int):
        return ""
    dies = device.cluster.dies * device.cluster.servers
    return f"{world:,} ranks on {plural(dies, 'die')}" if world > dies else ""


def choose_algorithm(call: KernelCall, device: DeviceProfile) -> Choice:
    """Return the algorithm of a collective on a device's network, and its time without the launch.

    If a described cluster has fewer dies than the group, the algorithm's text says so, and the time is for the dies
    that exist.
    """
    choice, lacks = _choose_for_existing_dies(call, device), missing_dies(call.attrs.get("world_size"), device)
    return choice._replace(algorithm=f"{choice.algorithm or 'no link'}, {lacks}") if lacks else choice


def _choose_for_existing_dies(call: KernelCall, device: DeviceProfile) -> Choice:
    """Return the algorithm of a collective on a device's network, and its time without the launch.

    If its group is larger than the described cluster, only the existing dies take part. `attrs["world_size"]` is the
    number of participating dies, and `attrs["ranks"]` lists them. For an all-to-all, `attrs["uneven"]` is its largest
    part divided by the mean part. Waiting for other ranks is not a cost of the operation and is not predicted.
    """
    ranks, uneven = call.attrs.get("ranks"), call.attrs.get("uneven")
    size = float(max(total_bytes(call.inputs), total_bytes(call.outputs)))
    name = call.type.lower().replace("hcom_", "").replace("_", "")
    members = ranks if isinstance(ranks, tuple) else ()
    world = _world_size(call)
    levels = levels_of(world, device, work_of(name), members)
    if not levels:
        return Choice(0.0, "")
    if "allreduce" in name:
        return _all_reduce(size, levels, levels_of(world, device, "copy", members))
    if name.startswith("alltoall") and isinstance(uneven, float):
        return _exchanged(size, levels, uneven)
    time_of = next((time for start, time in KINDS.items() if name.startswith(start)), _once)
    return time_of(size, levels)


def _world_size(call: KernelCall) -> int:
    recorded = call.attrs.get("world_size")
    return recorded if isinstance(recorded, int) and recorded > 0 else DEFAULT_WORLD


def is_beyond(call: KernelCall, device: DeviceProfile) -> bool:
    """Check whether a collective is outside what public profiles cover.

    It is if it uses more servers, larger messages or unmeasured links, or if it has more ranks than there are dies.
    """
    levels = levels_of(_world_size(call), device)
    servers = next((level.dies for level in levels if not level.direct), 1)
    known = {"HCCS", "RDMA", "SIO", "UB"}
    return (
        servers > MEASURED_SERVERS
        or bool(missing_dies(call.attrs.get("world_size"), device))
        or max(total_bytes(call.inputs), total_bytes(call.outputs)) > MEASURED_BYTES
        or any(level.transport not in known for level in levels)
    )


def link_evidence(device: DeviceProfile) -> Evidence:
    """Return where links like those between this device's dies were measured, e.g. "another SoC"."""
    hccs = transports()["HCCS"]
    if device.cluster is not None and device.cluster.inside is not None:
        return "its form"
    if device.shipped_name in hccs.socs:
        return "this SoC"
    return "its form" if device.peer_bytes_per_s is None else "another SoC"


def collective_terms(
    call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None = None
) -> dict[str, float]:
    """Return the cost terms of a collective in microseconds: launch (host and notification) and link."""
    return {"launch": family.fixed_us, "link": choose_algorithm(call, device).us}
