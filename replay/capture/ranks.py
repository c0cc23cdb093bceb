"""Simulates one rank of a multi-process job in this process.

Code for several ranks runs on a process group that does not communicate. This module creates and destroys the group.
What the collectives in a plan mean is left to readers of the plan.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from opreplay.replay.capture.calls.patching import replaced
from opreplay.traces.errors import UsageError

BACKEND = "fake"
"""Backend from torch.testing._internal.distributed.fake_pg, whose collectives return their inputs."""


@contextmanager
def fake_ranks(world_size: int, rank: int) -> Iterator[None]:
    """Act as one rank of a job, with the environment variables that `torchrun` sets.

    The user's own `init_process_group` does nothing in this context, because the group already exists. Raises
    UsageError for an invalid rank, and if a real group is active.
    """
    if not 0 <= rank < world_size:
        raise UsageError(
            f"rank {rank} is outside a world size of {world_size}", hint="Ranks go from 0 to world_size - 1."
        )
    import torch.distributed as dist

    if not dist.is_available():
        raise UsageError("this torch has no torch.distributed", hint="Capture without --set world_size.")
    if dist.is_initialized():
        raise UsageError("a process group is already initialized", hint="Capture in a separate process.")
    from torch.testing._internal.distributed import fake_pg

    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank % 8,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": min(8, world_size),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
    }
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update({name: str(value) for name, value in variables.items()})
    dist.init_process_group(BACKEND, store=fake_pg.FakeStore(), rank=rank, world_size=world_size)
    try:
        with (
            replaced(dist, init_process_group=_already_there),
            replaced(dist.distributed_c10d, init_process_group=_already_there),
            _real_meshes(),
            _no_exchange_of_values(),
        ):
            yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


def _already_there(*_: Any, **__: Any) -> None:
    """Does nothing; replaces `init_process_group`, because the group already exists."""


_OF_MESHES = ("__init__", "__getitem__", "_flatten", "_unflatten", "get_group", "get_all_groups", "from_group")
"""Methods in which a device mesh reads its tensor of ranks, which must therefore have real values."""


@contextmanager
def _real_meshes() -> Iterator[None]:
    """Make device meshes use real tensors, even if all other tensors are fake."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
    from torch.distributed.device_mesh import DeviceMesh
    from torch.utils._python_dispatch import _disable_current_modes

    mesh: Any = DeviceMesh

    def outside(function: Any) -> Any:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily(), _disable_current_modes():
                table = kwargs.get("_rank_map")
                if isinstance(table, FakeTensor):  # init_device_mesh numbers ranks in order
                    kwargs["_rank_map"] = torch.arange(table.numel(), dtype=torch.int)
                if any(isinstance(value, FakeTensor) for value in (*args, *kwargs.values())):
                    raise UsageError(
                        "a device mesh needs the values of a tensor, but fake tensors have none",
                        hint="Pass the mesh as lists.",
                    )
                return function(*args, **kwargs)

        return called

    methods = {name: mesh.__dict__[name] for name in _OF_MESHES if name in mesh.__dict__}
    for name, method in methods.items():
        static = isinstance(method, staticmethod | classmethod)
        methods[name] = type(method)(outside(method.__func__)) if static else outside(method)
    with replaced(mesh, **methods):
        yield


@contextmanager
def _no_exchange_of_values() -> Iterator[None]:
    """Replace the values that torch's wrappers would read from other ranks. All ranks are assumed to have equal values.

    DistributedDataParallel first compares parameters, and it waits for its gradients in C++. Pipelines vote on whether
    sizes are known.
    """
    from torch.distributed.pipelining import schedules, stage
    from torch.nn.parallel import DistributedDataParallel

    parallel: Any = DistributedDataParallel
    schedule: Any = schedules._PipelineSchedule
    plain = parallel.__init__

    @wraps(plain)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **{**kwargs, "init_sync": False})
        self.register_comm_hook(None, _averaged)

    def agreed(self: Any, stages: Any, *_: Any, **__: Any) -> None:
        modes: Any = getattr(stage, "InferenceMode", None)
        for pipeline_stage in stages:
            pipeline_stage._inference_mode = None if modes is None else modes.STATIC

    votes = {"_warmup_p2p": agreed} if hasattr(schedule, "_warmup_p2p") else {}
    with replaced(parallel, __init__=initialize), replaced(schedule, **votes):
        yield


def _averaged(_, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations of a hook
    """Average the gradients of one bucket over all ranks, as DistributedDataParallel does by default."""
    import torch
    import torch.distributed as dist

    gradients = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(gradients)
    done: Any = torch.futures.Future()
    done.set_result(gradients)
    return done
