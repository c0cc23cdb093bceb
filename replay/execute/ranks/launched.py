# pyright: strict
"""What a launcher (torchrun, Slurm, Ray) says of this process: which rank of how many, and where rank 0 is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from opreplay.traces.errors import EnvironmentRefused

DEFAULT_PORT = 29500
"""torch's own."""


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """This process as one of those that a launcher started."""

    rank: int
    world: int
    local_rank: int
    """Among those of this machine."""
    local_world: int
    address: str
    """Of the machine of rank 0."""
    port: int
    hosted: bool
    """The launcher keeps the store at that address; else rank 0 does."""


def launched(variables: Mapping[str, str] = os.environ) -> Launched | None:
    """What the environment says; None where no launcher started this process, or it is alone.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are torch's convention, which torchrun and Ray Train follow; Slurm's
    own variables stand in where these are missing. Raises EnvironmentRefused for numbers that are none.
    """
    rank = _first(variables, "RANK", "SLURM_PROCID")
    world = _first(variables, "WORLD_SIZE", "SLURM_NTASKS")
    address = variables.get("MASTER_ADDR") or variables.get("SLURM_LAUNCH_NODE_IPADDR")
    if rank is None or world is None or world < 2 or not address:
        return None
    if rank >= world:
        raise EnvironmentRefused(f"RANK is {rank}, WORLD_SIZE {world}", hint="Ranks are 0 to WORLD_SIZE - 1.")
    local = _first(variables, "LOCAL_RANK", "SLURM_LOCALID")
    return Launched(
        rank=rank,
        world=world,
        local_rank=rank if local is None else local,
        local_world=_first(variables, "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE") or world,
        address=address,
        port=_first(variables, "MASTER_PORT") or DEFAULT_PORT,
        hosted=variables.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true",
    )


def _first(variables: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        # Slurm writes "2(x3),1": three nodes with two tasks, then one with one.
        text = re.split(r"[(,]", variables.get(name, ""))[0].strip()
        if not text:
            continue
        if not text.isdecimal() or len(text) > 9:
            raise EnvironmentRefused(f"{name} is {text!r}, not a number", hint="The launcher sets it.")
        return int(text)
    return None
