# pyright: strict
"""Start the ranks of a process group on this machine, and name reasons for failed ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from math import inf

import msgspec

from opreplay.replay.execute.messages import RankConfig
from opreplay.replay.execute.processes.child import Child
from opreplay.replay.execute.processes.workers import Death, Workers
from opreplay.replay.host.channel import Unnamed
from opreplay.replay.ir.reasons import Reason


def local_ranks(config: RankConfig, *, limit_s: float, until: float = inf) -> Workers:
    """Return `Workers` with one child process per rank. The ranks find each other through a file.

    `config` applies to every rank. Rank number, device and store are set here.
    """

    def launch(_: dict[str, object], files: ExitStack) -> Iterator[Child]:
        store = files.enter_context(Unnamed()).path
        for rank in range(config.world):
            device = device_of_rank(config.device, rank)
            yield Child(msgspec.structs.replace(config, rank=rank, device=device, store=store))

    return Workers(launch, limit_s=limit_s, until=until)


def reason_of(death: Death, world: int, limit_s: float) -> Reason:
    """Return why a group of ranks did not complete its task."""
    who = f"rank {death.ranks[0]} of {world}"
    if death.how == "died":
        return Reason("rank lost", f"{who} died: {death.cause.detail.removeprefix('memory: ')}")
    if death.how == "said":
        return msgspec.structs.replace(death.cause, detail=f"{who}: {death.cause.detail}".removesuffix(": "))
    if death.how == "over":
        return death.cause
    names = f"rank{'s' if len(death.ranks) > 1 else ''} {', '.join(map(str, death.ranks))}"
    text = f"time: no result from {names} after {limit_s:g} s (--set op_limit)"
    return Reason("rank lost", f"{text}; stopped") if death.how == "stopped" else Reason("budget", text)


def device_of_rank(device: str, local: int) -> str:
    """Return the device of the `local`th rank on its machine: the CPU for every rank, or a separate accelerator for
    each.
    """
    kind = device.partition(":")[0]
    return "cpu" if kind == "cpu" else f"{kind}:{local}"
