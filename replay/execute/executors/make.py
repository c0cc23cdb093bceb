# pyright: strict
"""Creates the executor that a worker's configuration names."""

from __future__ import annotations

from functools import partial

from opreplay.replay.execute.executors.base import Executor
from opreplay.replay.execute.options import WorkerConfig


def make_executor(config: WorkerConfig) -> Executor:
    """Create the back-end that the configuration names; both back-ends are built in, a trace cannot choose another."""
    if config.options.executor == "fake":
        from opreplay.replay.execute.executors.fake import FakeExecutor

        return FakeExecutor()
    from opreplay.initializers.supplied.values import RecordedValues
    from opreplay.replay.execute.executors.torch.device import TorchExecutor
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.replay.plugins import load_plugins
    from opreplay.replay.resolve.names import find_overload
    from opreplay.replay.resolve.own_call import own_call
    from opreplay.replay.resolve.policy import Policy

    threads, idle = _threads(config)
    load_plugins(config.options.plugins)
    policy = Policy(allow_imports=config.options.allow_imports) if config.options.allow_imports else Policy()
    return TorchExecutor(
        config.options.device,
        partial(find_overload, policy=policy),
        memory_bytes=config.memory_bytes,
        threads=threads,
        idle_cpus=idle,
        threads_asked=config.options.threads is not None,
        profiler_cost=config.options.cache == "step",
        own_call=partial(own_call, policy=policy),
        registry=open_registry(config.options.init_modules, config.options.init_args),
        values=None if config.options.values is None else RecordedValues(config.options.values),
        check_work=config.options.check_work,
    )


def _threads(config: WorkerConfig) -> tuple[int | None, float | None]:
    """Return the thread count for ops on the CPU, and how many processors were idle, even if the user set the count."""
    if config.options.device != "cpu":
        return config.options.threads, None
    import torch

    from opreplay.replay.execute.threads import fitting_threads
    from opreplay.replay.host.idle import idle_cpus

    idle = idle_cpus()
    return config.options.threads or fitting_threads(torch.get_num_threads(), idle), idle
