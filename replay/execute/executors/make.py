# pyright: strict
"""Creates the executor that a worker's configuration names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from opreplay.replay.execute.executors.base import Executor
from opreplay.replay.execute.options import WorkerConfig

if TYPE_CHECKING:
    from opreplay.replay.execute.executors.torch.device import ThreadChoice


def make_executor(config: WorkerConfig) -> Executor:
    """Create the executor that the configuration names, "fake" or torch.

    Both are built in. A trace cannot choose another executor.
    """
    if config.options.executor == "fake":
        from opreplay.replay.execute.executors.fake import FakeExecutor

        return FakeExecutor()
    from opreplay.initializers.supplied.values import RecordedValues
    from opreplay.replay.execute.executors.torch.device import Inputs, TorchExecutor
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.replay.plugins import load_plugins
    from opreplay.replay.resolve.names import find_overload
    from opreplay.replay.resolve.own_call import own_call
    from opreplay.replay.resolve.policy import Policy

    threads, choice = _threads(config)
    load_plugins(config.options.plugins)
    policy = Policy(allow_imports=config.options.allow_imports) if config.options.allow_imports else Policy()
    return TorchExecutor(
        config.options.device,
        partial(find_overload, policy=policy),
        memory_bytes=config.memory_bytes,
        threads=threads,
        thread_choice=choice,
        profiler_cost=config.options.cache == "step",
        own_call=partial(own_call, policy=policy),
        inputs=Inputs(
            registry=open_registry(config.options.init_modules, config.options.init_args),
            values=None if config.options.values is None else RecordedValues(config.options.values),
            check_work=config.options.check_work,
        ),
    )


def _threads(config: WorkerConfig) -> tuple[int | None, ThreadChoice | None]:
    """Return (thread count for ops, how it was chosen).

    The count is None for torch's default. The choice is None unless the ops run on the CPU.
    """
    if config.options.device != "cpu":
        return config.options.threads, None
    import torch

    from opreplay.replay.execute.executors.torch.device import ThreadChoice
    from opreplay.replay.execute.threads import fitting_threads
    from opreplay.replay.host.idle import idle_cpus

    cpus, asked = idle_cpus(), config.options.threads
    choice = None if cpus is None else ThreadChoice(cpus, asked is not None)
    return asked or fitting_threads(torch.get_num_threads(), cpus), choice
