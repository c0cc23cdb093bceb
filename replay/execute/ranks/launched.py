# pyright: strict
"""Read this process's rank, the world size and the address of rank 0 from a launcher (torchrun, Slurm, Ray)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from opreplay.traces.errors import EnvironmentRefused

DEFAULT_PORT = 29500
"""torch's default port."""


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """Rank of this process among the processes that a launcher started, and the address of rank 0."""

    rank: int
    world: int
    local_rank: int
    """Rank among the launched processes on this machine."""
    local_world: int
    address: str
    """Address of the machine of rank 0."""
    port: int
    hosted: bool
    """Whether the launcher hosts the store; if not, rank 0 does."""


def launcher_settings(variables: Mapping[str, str] = os.environ) -> Launched | None:
    """Read the launcher's settings from the environment. None without a launcher, or if it started only this process.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are torch's convention, which torchrun and Ray Train follow. If these
    variables are missing, Slurm's variables are used. Raises EnvironmentRefused for invalid numbers.
    """
    rank = _first(variables, "RANK", "SLURM_PROCID")
    world = _first(variables, "WORLD_SIZE", "SLURM_NTASKS")
    address = variables.get("MASTER_ADDR") or variables.get("SLURM_LAUNCH_NODE_IPADDR")
    if rank is None or world is None or world < 2 or not address:
        return None
    if rank >= world:
        raise EnvironmentRefused(
            f"RANK is {rank}, but WORLD_SIZE is {world}", hint="RANK must be between 0 and WORLD_SIZE - 1."
        )
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
            raise EnvironmentRefused(f"{name} is {text!r}, not a number", hint="The launcher must set it.")
        return int(text)
    return None
