# pyright: strict
"""The code of the child process that runs ops. It receives tasks, sends outcomes, and dies with its parent.

`runner` in the same package starts it. Nothing else imports it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import msgspec

from opreplay.replay.execute.executors.base import Executor
from opreplay.replay.execute.executors.make import make_executor
from opreplay.replay.execute.messages import PassDone, SequenceOutcome, SequenceTask, Task
from opreplay.replay.execute.options import WorkerConfig
from opreplay.replay.execute.processes.parent import Parent
from opreplay.replay.execute.processes.runner import InProcess
from opreplay.replay.host import environment
from opreplay.replay.host.limits import give_back, keep_freed_memory, limit_files, limit_memory
from opreplay.replay.results.outcome import Outcome


def serve(descriptor: int, parent: int) -> None:
    """Process tasks from the socket until it closes."""
    # A scheduler that ends a job tells all its processes. An op in flight must not be taken for one that failed: the
    # parent decides. A handler, since what is ignored would be ignored by programs that an op starts.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    with Parent(descriptor, parent) as starter:
        config = starter.config(WorkerConfig)
        if config.cpus:
            # Before torch is loaded, which makes as many threads as it sees processors.
            os.sched_setaffinity(0, config.cpus)
        executor = make_executor(config)
        limit_files()
        keeps = config.options.device == "cpu" and config.keep_freed and keep_freed_memory()
        runner = InProcess(executor, config)
        for task in starter.tasks(msgspec.msgpack.Decoder(Task | SequenceTask), executor.facts()):
            if isinstance(task, SequenceTask):
                starter.say(run_sequence(executor, config, task, starter.say))
                continue
            if keeps:
                give_back()
            if config.options.device == "cpu":
                limit_memory(config.memory_bytes)
            outcome = runner.measure(task.op, task.visit)
            starter.say(_checked(executor, outcome) if outcome.suspect else outcome)
        runner.close()


def _checked(executor: Executor, outcome: Outcome) -> Outcome:
    """Return the outcome of an op that raised.

    It is marked as `poisoned` if the device is lost as well, e.g. by a broken CUDA context.
    """
    try:
        executor.synchronize()
    except Exception:
        return msgspec.structs.replace(outcome, poisoned=True)
    return outcome


def run_sequence(
    executor: Executor, config: WorkerConfig, task: SequenceTask, tell: Callable[[PassDone], None]
) -> SequenceOutcome:
    """Run a sequence in this process within its memory budget, and return the outcome."""
    from opreplay.replay.execute.sequence.passes import serve_sequence

    if config.options.device == "cpu":
        limit_memory(max(config.memory_bytes, task.budget_bytes or environment.default_op_bytes()))
    return serve_sequence(
        executor, task, seed=config.options.seed, options=config.options, op_bytes=config.memory_bytes, tell=tell
    )
