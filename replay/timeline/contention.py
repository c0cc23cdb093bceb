# pyright: strict
"""Slowdown by concurrent collectives: their HBM traffic slows compute, and shared links slow other collectives.

This module makes neither schedules nor predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from opreplay.replay.ascend.cost.sizes import total_bytes
from opreplay.replay.ascend.cost.vector import CORE_LOAD
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.timeline.graph.model import COLLECTIVE, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule
from opreplay.traces.arrays import Bools, Floats

ROUNDS = 2
"""Number of passes. It is more than one because the slowdown of compute changes which tasks overlap."""
WORTH = 1e-3
"""Minimum slowdown that is reported, as a share of the time."""
TOUCHES = {"hcom_allReduce_": 4.0, "hcom_reduceScatter_": 2.0, "hcom_broadcast_": 1.0, "hcom_send_": 1.0}
"""Bytes that a collective reads from or writes to HBM per byte of its message.

Collectives that are not listed have 2.0: they read once and write once.

An all-reduce reads and writes in each of its two halves.
"""


class Contention(msgspec.Struct):
    """Demand of a step's tasks for HBM and links."""

    bytes_per_s: float
    hbm_share: Floats
    """Share of each task's time in which it moves data to or from HBM."""
    rates: Floats
    """Bytes per second that each collective moves from and to HBM; 0 for other tasks."""
    transports: dict[int, frozenset[str]] = msgspec.field(default_factory=dict[int, frozenset[str]])
    """Node of a collective → kinds of links that it uses ("HCCS", "RDMA")."""

    @classmethod
    def of(cls, count: int, device: DeviceProfile) -> Contention:
        """Return a `Contention` without demand for `count` tasks."""
        return cls(device.hbm_bytes_per_s * device.rates.hbm_efficiency, np.zeros(count), np.zeros(count))

    def needs(self, nodes: Sequence[int], terms_us: Mapping[str, float], time_us: float) -> None:
        """Set `hbm_share` of the given tasks, computed from the terms `terms_us` of their predicted time."""
        far_us = terms_us.get("hbm", 0.0) + terms_us.get(CORE_LOAD, 0.0)
        self.hbm_share[list(nodes)] = min(1.0, far_us / time_us) if time_us > 0 else 0.0

    def draws(self, node: int, call: KernelCall, time_us: float, algorithm: str = "") -> None:
        """Record a collective's HBM traffic and its links. `algorithm` names the links: "direct over HCCS, then ring
        over RDMA".
        """
        self.transports[node] = frozenset(part.split()[0].strip(",") for part in algorithm.split(" over ")[1:])
        size = max(total_bytes(call.inputs), total_bytes(call.outputs))
        if time_us > 0:
            self.rates[node] = TOUCHES.get(call.type, 2.0) * size / time_us * 1e6


class Slowed(msgspec.Struct, frozen=True, kw_only=True):
    """Durations that include the slowdown."""

    durations_us: Floats
    note: str


def contended(
    graph: StepGraph, durations_us: Floats, wants: Contention | None, schedule: Callable[[Floats], Schedule]
) -> Slowed | None:
    """Return the durations of a step in which compute and collectives share HBM bandwidth, and collectives share links.

    Let h be the share of a task's time that is bound by HBM. If collectives use the share r of the bandwidth during the
    share o of the task's time, the task takes 1 + o h r / (1 - r) times as long. Concurrent collectives share links of
    the same kind evenly. Each takes longer by the time for which they overlap. Returns None if there is no significant
    overlap.
    """
    if wants is None or not wants.rates.any():
        return None
    collectives = graph.nodes.kind == COLLECTIVE
    shared = _of_links(schedule(durations_us), durations_us, wants.transports)
    notes: list[str] = []
    total, before = float(shared.sum()), float(durations_us[collectives].sum())
    if total >= WORTH * before > 0:
        notes.append(
            f"simultaneous collectives share links: they take {total:.0f} µs ({100 * (total / before):.1f} %) longer"
        )
        durations_us = durations_us + shared
    hbm = _of_hbm(graph, durations_us, wants, schedule)
    if hbm is not None:
        notes.append(hbm.note)
    if not notes:
        return None
    return Slowed(durations_us=durations_us if hbm is None else hbm.durations_us, note="; ".join(notes))


def _of_hbm(
    graph: StepGraph, durations_us: Floats, wants: Contention, schedule: Callable[[Floats], Schedule]
) -> Slowed | None:
    """Return durations in which HBM traffic of collectives slows compute; None if the slowdown is insignificant."""
    collectives = graph.nodes.kind == COLLECTIVE
    compute = (graph.nodes.name >= 0) & ~collectives & (wants.hbm_share > 0)
    if not compute.any():
        return None
    now = durations_us
    lost = np.zeros(len(now))
    for _ in range(ROUNDS):
        beside = _drawn(schedule(now), collectives, wants.rates) / wants.bytes_per_s
        share = np.minimum(beside, 0.9)
        lost = np.where(compute, durations_us * wants.hbm_share * share / (1.0 - share), 0.0)
        now = durations_us + lost
    total, before = float(lost.sum()), float(durations_us[compute].sum())
    if total < WORTH * before:
        return None
    longer = f"{total:.0f} µs ({100 * (total / before):.1f} %) longer"
    note = f"collectives take HBM bandwidth from compute kernels, which take {longer}"
    return Slowed(durations_us=now, note=note)


def _of_links(schedule: Schedule, durations_us: Floats, transports: Mapping[int, frozenset[str]]) -> Floats:
    """Return, for each node, by how many µs it gets longer because collectives share links."""
    lost = np.zeros(len(durations_us))
    nodes = sorted((node for node, used in transports.items() if used), key=lambda node: float(schedule.start_us[node]))
    running: list[int] = []
    for node in nodes:
        begin = float(schedule.start_us[node])
        running = [other for other in running if schedule.start_us[other] + durations_us[other] > begin]
        for other in running:
            if transports[node] & transports[other]:
                end = min(begin + durations_us[node], schedule.start_us[other] + durations_us[other])
                lost[[node, other]] += max(0.0, float(end) - begin)
        running.append(node)
    return lost


def _drawn(schedule: Schedule, collectives: Bools, rates: Floats) -> Floats:
    """Return, for each task, the HBM bytes per second of collectives, averaged over the task's time."""
    out = np.zeros(len(rates))
    lasts = np.maximum(schedule.end_us - schedule.start_us, 1e-9)
    for node in np.flatnonzero(collectives & (rates > 0)).tolist():
        begin, end = schedule.start_us[node], schedule.end_us[node]
        overlap = np.minimum(schedule.end_us, end) - np.maximum(schedule.start_us, begin)
        out += rates[node] * np.clip(overlap, 0.0, None) / lasts
    return out
