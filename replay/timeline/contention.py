# pyright: strict
"""What collectives that run beside compute take of the HBM's bandwidth from it; owns no schedule and no prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opreplay.replay.ascend.cost.sizes import total_bytes
from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.timeline.graph.model import COLLECTIVE, Bools, Floats, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule

ROUNDS = 2
"""Schedules that are looked at: what compute loses moves what lies beside what."""
WORTH = 1e-3
"""Share of the compute time from which the loss is told."""
TOUCHES = {"hcom_allReduce_": 4.0, "hcom_reduceScatter_": 2.0, "hcom_broadcast_": 1.0, "hcom_send_": 1.0}
"""Times that HBM is read or written a byte of the message: an all-reduce reads and writes in each of its two halves.
Others once in, once out."""


@dataclass(slots=True)
class Contention:
    """What the tasks of a step want of HBM."""

    bytes_per_s: float
    hbm_share: Floats
    """Of each task's time: what moves data from and to HBM."""
    rates: Floats
    """Bytes a second that a collective draws, while it runs."""

    @classmethod
    def of(cls, count: int, device: DeviceProfile) -> Contention:
        """Nothing yet, of `count` tasks."""
        return cls(device.hbm_bytes_per_s * device.rates.hbm_efficiency, np.zeros(count), np.zeros(count))

    def needs(self, nodes: Sequence[int], terms_us: Mapping[str, float], time_us: float) -> None:
        """Tasks whose time consists of these terms."""
        self.hbm_share[list(nodes)] = min(1.0, terms_us.get("hbm", 0.0) / time_us) if time_us > 0 else 0.0

    def draws(self, node: int, call: KernelCall, time_us: float) -> None:
        """A collective that takes so long."""
        size = max(total_bytes(call.inputs), total_bytes(call.outputs))
        if time_us > 0:
            self.rates[node] = TOUCHES.get(call.type, 2.0) * size / time_us * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowed:
    """Durations with what compute loses."""

    durations_us: Floats
    note: str


def contended(
    graph: StepGraph, durations_us: Floats, wants: Contention | None, schedule: Callable[[Floats], Schedule]
) -> Slowed | None:
    """Durations of a step in which compute beside collectives gets what they leave of the HBM's bandwidth.

    A task of which the share h is bound by HBM, beside collectives that draw the share r of it for the share o of the
    task's time, takes 1 + o h r / (1 - r) times as long. None where nothing worth telling runs beside anything.
    """
    if wants is None or not wants.rates.any():
        return None
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
    note = f"collectives beside compute take HBM bandwidth: {total:.0f} µs = {total / before:.1%} more computing"
    return Slowed(durations_us=now, note=note)


def _drawn(found: Schedule, collectives: Bools, rates: Floats) -> Floats:
    """Bytes a second that collectives draw on the average of each task's time."""
    out = np.zeros(len(rates))
    lasts = np.maximum(found.end_us - found.start_us, 1e-9)
    for node in np.flatnonzero(collectives & (rates > 0)).tolist():
        begin, end = found.start_us[node], found.end_us[node]
        overlap = np.minimum(found.end_us, end) - np.maximum(found.start_us, begin)
        out += rates[node] * np.clip(overlap, 0.0, None) / lasts
    return out
