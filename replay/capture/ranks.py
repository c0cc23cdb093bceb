"""A job of many processes in this one: a process group that exchanges nothing, so that code for many ranks runs as one.

Owns the group's life. What its collectives mean is for those that read the plan.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opreplay.traces.errors import UsageError

BACKEND = "fake"
"""Of torch.testing._internal.distributed.fake_pg: collectives give back what they were given."""


@contextmanager
def fake_ranks(world_size: int, rank: int) -> Iterator[None]:
    """Be one rank of a job, with the environment that `torchrun` gives.

    The user's own `init_process_group` does nothing meanwhile: the group is there.
    Raises UsageError for a rank that is none, and where a real group is up.
    """
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} of {world_size}", hint="Ranks count from 0 to --world-size minus 1.")
    import torch.distributed as dist

    if not dist.is_available():
        raise UsageError("this torch has no torch.distributed", hint="Capture without --world-size.")
    if dist.is_initialized():
        raise UsageError("a process group is up already", hint="Capture in a process of its own.")
    from torch.testing._internal.distributed import fake_pg

    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank % 8,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": min(8, world_size),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    dist.init_process_group(BACKEND, store=fake_pg.FakeStore(), rank=rank, world_size=world_size)
    plain: Any = dist.init_process_group
    modules: tuple[Any, ...] = (dist, dist.distributed_c10d)
    for module in modules:
        module.init_process_group = _already_there
    try:
        yield
    finally:
        for module in modules:
            module.init_process_group = plain
        if dist.is_initialized():
            dist.destroy_process_group()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _already_there(*_: Any, **__: Any) -> None:
    """In place of the user's `init_process_group`."""
