# pyright: strict
"""The child process that runs ops, seen from inside: tasks in, outcomes out, and it dies with its parent.

Started by `runner` beside it; nothing else imports it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import msgspec

from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.base import Executor
from opreplay.replay.execute.executors.make import make_executor
from opreplay.replay.execute.messages import PassDone, SequenceOutcome, SequenceTask, Task
from opreplay.replay.execute.options import WorkerConfig
from opreplay.replay.execute.processes.parent import Parent
from opreplay.replay.execute.visits import Book, first_checks
from opreplay.replay.host import environment
from opreplay.replay.host.limits import give_back, keep_freed_memory, limit_files, limit_memory
from opreplay.replay.results.outcome import Outcome


def serve(descriptor: int, parent: int) -> None:
    """Work on tasks from the socket until it closes."""
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
        book = Book()
        for task in starter.tasks(msgspec.msgpack.Decoder(Task | SequenceTask), executor.facts()):
            if isinstance(task, SequenceTask):
                starter.say(run_sequence(executor, config, task, starter.say))
                continue
            if keeps:
                give_back()
            starter.say(_run_op(executor, config, task, book))
        executor.close()


def _run_op(executor: Executor, config: WorkerConfig, task: Task, book: Book) -> Outcome:
    """What becomes of one op."""
    if config.options.device == "cpu":
        limit_memory(config.memory_bytes)
    outcome = attempt(
        executor,
        task.op,
        seed=config.options.seed,
        options=first_checks(config.options, task.visit),
        shrink_to=config.shrink_to,
        recency=config.recency.get(task.op.id),
        visits=book.of(task.op.id, task.visit),
    )
    return _checked(executor, outcome) if outcome.suspect else outcome


def _checked(executor: Executor, outcome: Outcome) -> Outcome:
    """The outcome of an op that raised, marked when the device is lost with it, as a CUDA context is."""
    try:
        executor.synchronize()
    except Exception:
        return msgspec.structs.replace(outcome, poisoned=True)
    return outcome


def run_sequence(
    executor: Executor, config: WorkerConfig, task: SequenceTask, tell: Callable[[PassDone], None]
) -> SequenceOutcome:
    """What becomes of a sequence here, with as much memory as it may have."""
    from opreplay.replay.execute.sequence.passes import serve_sequence

    if config.options.device == "cpu":
        limit_memory(max(config.memory_bytes, task.budget_bytes or environment.default_op_bytes()))
    return serve_sequence(
        executor, task, seed=config.options.seed, options=config.options, op_bytes=config.memory_bytes, tell=tell
    )
