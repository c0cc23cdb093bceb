"""The child process that runs ops, seen from inside: tasks in, outcomes out, and it dies with its parent.

Started by `opreplay.replay.isolation`; nothing else imports it. Messages are msgpack of the values below, never pickle.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from opreplay.replay import allocator, environment
from opreplay.replay.attempt import Outcome, attempt
from opreplay.replay.executors.base import Executor
from opreplay.replay.ir import ReplayOp
from opreplay.replay.measure import MeasureOptions
from opreplay.replay.sequence.messages import PassDone, SequenceOutcome, SequenceTask
from opreplay.traces.errors import OpReplayError

FRAME = struct.Struct("<I")
MAX_FRAME = 64 << 20
"""Far above any op of a sane plan; a length beyond it means that the stream is damaged."""
WORKSPACE = 2.0
"""An op may take this many times its memory budget before allocations fail: inputs, outputs and workspace."""
SLACK_BYTES = 512 << 20
"""Room for code, thread stacks and caches of libraries that the first op of a kind sets up."""
FILE_BYTES = 256 << 20
"""Largest file that an op can write (compilers cache their kernels; nothing else has a reason to)."""
PR_SET_PDEATHSIG = 1


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, tag="config"):
    """All that a worker needs to know before its first op."""

    executor: Literal["torch", "fake"] = "torch"
    device: str = "cpu"
    threads: int | None = None
    memory_bytes: int
    """For each op; see `opreplay.replay.executors.base.Limits`."""
    over_budget: Literal["shrink", "skip"] = "shrink"
    """What to do with an op that needs more than `memory_bytes`; see `opreplay.replay.fitting`."""
    seed: int = 0
    measure: MeasureOptions = MeasureOptions()
    allow_imports: dict[str, str] = {}
    """Namespace → module that the user allows to be imported."""
    plugins: tuple[str, ...] = ()
    """Files and modules of the user's that register conversions, executors, ..."""
    init_modules: tuple[str, ...] = ()
    init_args: tuple[str, ...] = ()
    check_work: bool = False
    """Whether outcomes say how much work the values of the arguments cause."""
    values: str | None = None
    """Path of a .safetensors file with values for arguments."""
    keep_freed: bool = True
    """Whether freed memory is kept for the next call; in a sequence the C library does what it does in a model."""
    cpus: tuple[int, ...] = ()
    """Processors that this worker keeps to; all that it is given where empty."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The device is there and the libraries are loaded."""

    facts: dict[str, object]

    def settled(self, config: WorkerConfig) -> WorkerConfig:
        """The configuration for the next process of the run: with as many threads as this one chose."""
        threads = self.facts.get("threads")
        return msgspec.structs.replace(config, threads=threads) if isinstance(threads, int) else config


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The worker cannot work at all, e.g. since the device is missing."""

    message: str
    hint: str
    exit_code: int


class Task(msgspec.Struct, frozen=True, kw_only=True, tag="task"):
    """One op to replay."""

    op: ReplayOp


Reply = Ready | Refused | Outcome | PassDone | SequenceOutcome


def make_executor(config: WorkerConfig) -> Executor:
    """The back-end that the configuration names; both are known here, a trace has no say in it."""
    if config.executor == "fake":
        from opreplay.replay.executors.fake import FakeExecutor

        return FakeExecutor()
    from opreplay.initializers.extensions import open_registry
    from opreplay.initializers.recorded_values import RecordedValues
    from opreplay.replay.executors.torch_device import TorchExecutor
    from opreplay.replay.plugins import load_plugins
    from opreplay.replay.policy import Policy
    from opreplay.replay.resolve import find_overload

    threads, idle = _threads(config)
    load_plugins(config.plugins)
    policy = Policy(allow_imports=config.allow_imports) if config.allow_imports else Policy()
    return TorchExecutor(
        config.device,
        partial(find_overload, policy=policy),
        memory_bytes=config.memory_bytes,
        threads=threads,
        idle_cpus=idle,
        registry=open_registry(config.init_modules, config.init_args),
        values=None if config.values is None else RecordedValues(config.values),
        check_work=config.check_work,
    )


def _threads(config: WorkerConfig) -> tuple[int | None, float | None]:
    """Threads of ops on the CPU, and how many processors were idle where the number follows from that."""
    if config.threads is not None or config.device != "cpu":
        return config.threads, None
    import torch

    from opreplay.replay.threads import fitting_threads, idle_cpus

    idle = idle_cpus()
    return fitting_threads(torch.get_num_threads(), idle), idle


def serve(descriptor: int, parent: int) -> None:
    """Work on tasks from the socket until it closes."""
    die_with(parent)
    # A scheduler that ends a job tells all its processes. An op in flight must not be taken for one that failed: the
    # parent decides. A handler, since what is ignored would be ignored by programs that an op starts.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    with socket.socket(fileno=descriptor) as channel:
        config = msgspec.msgpack.decode(receive(channel) or b"", type=WorkerConfig)
        if config.cpus:
            # Before torch is loaded, which makes as many threads as it sees processors.
            os.sched_setaffinity(0, config.cpus)
        try:
            executor = make_executor(config)
        except OpReplayError as error:
            send(channel, Refused(message=str(error), hint=error.hint, exit_code=error.exit_code))
            return
        _limit_files()
        keeps = config.device == "cpu" and config.keep_freed and allocator.keep_freed_memory()
        send(channel, Ready(facts=executor.facts()))
        decoder = msgspec.msgpack.Decoder(Task | SequenceTask)
        while (frame := receive(channel)) is not None:
            task = decoder.decode(frame)
            if isinstance(task, SequenceTask):
                send(channel, run_sequence(executor, config, task, partial(send, channel)))
                continue
            if keeps:
                allocator.give_back()
            if config.device == "cpu":
                limit_memory(config.memory_bytes)
            op = task.op
            shrink_to = config.memory_bytes if config.over_budget == "shrink" else None
            outcome = attempt(executor, op, seed=config.seed, options=config.measure, shrink_to=shrink_to)
            send(channel, _checked(executor, outcome) if outcome.suspect else outcome)
        executor.close()


def run_sequence(
    executor: Executor, config: WorkerConfig, task: SequenceTask, tell: Callable[[PassDone], None]
) -> SequenceOutcome:
    """What becomes of a sequence here, with as much memory as it may have."""
    from opreplay.replay.sequence.serving import serve_sequence

    if config.device == "cpu":
        limit_memory(max(config.memory_bytes, task.budget_bytes or environment.default_op_bytes()))
    return serve_sequence(
        executor, task, seed=config.seed, options=config.measure, op_bytes=config.memory_bytes, tell=tell
    )


def _checked(executor: Executor, outcome: Outcome) -> Outcome:
    """The outcome of an op that raised, marked when the device is lost with it, as a CUDA context is."""
    try:
        executor.synchronize()
    except Exception:
        return msgspec.structs.replace(outcome, poisoned=True)
    return outcome


def send(channel: socket.socket, message: msgspec.Struct) -> None:
    """Write one frame. Raises OSError when the other side is gone."""
    body = msgspec.msgpack.encode(message)
    channel.sendall(FRAME.pack(len(body)) + body)


def receive(channel: socket.socket) -> bytes | None:
    """Read one frame; None when the other side has closed. Raises TimeoutError after the socket's timeout."""
    head = _exactly(channel, FRAME.size)
    if head is None:
        return None
    (length,) = FRAME.unpack(head)
    if length > MAX_FRAME:
        raise ConnectionError(f"a frame of {length} bytes, limit {MAX_FRAME}")
    return _exactly(channel, length)


def limit_memory(op_bytes: int) -> None:
    """Let private memory grow by twice the budget and some slack, never beyond what is free, then let malloc fail."""
    if sys.platform != "linux":
        return
    import resource

    used, free = environment.process_bytes("VmData"), environment.free_memory_bytes()
    if used is None:
        return
    room = int(WORKSPACE * op_bytes) + SLACK_BYTES
    if free is not None:
        room = min(room, int(free * environment.RESERVE))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + room
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(min(1 << 20, count - len(parts)))
        if not part:
            return None
        parts += part
    return bytes(parts)


def die_with(parent: int) -> None:
    """Be killed when the parent ends, however it does; Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        # If memory runs out in spite of all, the kernel shall take this process and not its parent.
        file.write("1000")


def _limit_files() -> None:
    """No core dumps and no large files, whatever an op does."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    soft = FILE_BYTES if hard == resource.RLIM_INFINITY else min(FILE_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
