# pyright: strict
"""The code of one rank's process. It receives collectives, replies with their times, and dies with its parent.

`crew` in the same package starts it. Nothing else imports it.
"""

from __future__ import annotations

import os
import platform
import signal
import warnings
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from opreplay.replay.execute.messages import RankConfig, RankReply, RankTask, SharedStep, SharedStepOutcome
from opreplay.replay.execute.processes.parent import Parent
from opreplay.replay.host.limits import limit_files, limit_memory
from opreplay.replay.ir.reasons import NotReplayable, reason_for
from opreplay.traces.errors import EnvironmentRefused

PATIENCE_S = 60.0
"""Time, in seconds, after an op's limit at which a process group gives up. The parent ends the process long before."""
LOOPBACK = "lo"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def serve(descriptor: int, parent: int) -> None:
    """Join the group, then run collectives from the socket until it closes."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    warnings.simplefilter("ignore")
    with Parent(descriptor, parent) as starter:
        config = starter.config(RankConfig)
        rank = Rank(config)
        limit_files()
        for task in starter.tasks(msgspec.msgpack.Decoder(RankTask | SharedStep), rank.facts()):
            if isinstance(task, SharedStep):
                starter.say(rank.run_step(task))
                continue
            if config.device == "cpu":
                limit_memory(config.memory_bytes)
            starter.say(rank.run(task))
    # Without destroying the group: that would wait for ranks that are gone.
    os._exit(0)


class Rank:
    """This process as a rank of the process group. Raises EnvironmentRefused if the device or back-end is missing."""

    def __init__(self, config: RankConfig) -> None:
        import torch
        import torch.distributed as dist

        self._config = config
        self._device = _open(config)
        if config.store.startswith("/") and Path("/sys/class/net", LOOPBACK).exists():
            # Ranks of one machine need no other network, and nobody else shall reach them.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        if config.device == "cpu":
            torch.set_num_threads(config.threads)
        try:
            dist.init_process_group(
                config.backend,
                store=_store(config),
                rank=config.rank,
                world_size=config.world,
                timeout=timedelta(seconds=config.measure.hard_limit_s() + PATIENCE_S),
            )
        except (RuntimeError, ValueError) as error:
            raise EnvironmentRefused(
                f"could not create a process group of {config.backend}: {reason_for(error).detail}",
                hint=(
                    "Check that this torch includes the back-end and that processes on this machine can connect to "
                    "each other."
                ),
            ) from None
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(config.world)): dist.group.WORLD}

    def facts(self) -> dict[str, object]:
        """Return the facts of this rank's device and libraries."""
        import torch

        return {
            "torch": str(torch.__version__),
            "backend": self._config.backend,
            "ranks": self._config.world,
            "device_name": torch.cuda.get_device_name() if self._device.startswith("cuda") else "cpu",
            "host": _host(),
        }

    def run(self, task: RankTask) -> RankReply:
        """Run this rank's part of one collective; exceptions become the reason in the reply."""
        me, members = self._config.rank, task.share.members
        try:
            self._group(members)
            if me not in members:
                return RankReply(rank=me, took_part=False)
            return self._timed(task)
        except Exception as error:
            return RankReply(rank=me, reason=reason_for(error))

    def run_step(self, step: SharedStep) -> SharedStepOutcome:
        """Run this rank's part of a step; exceptions become the reason in the outcome."""
        from opreplay.replay.execute.ranks.torch.step import Raised, run_step

        config = self._config
        try:
            memory = max(step.config.memory_bytes, step.task.budget_bytes or 0)
            limit_memory(memory + config.memory_bytes)
            groups = {call.share.members: self._group(call.share.members) for call in step.collectives}
            return run_step(
                step,
                config.rank,
                groups,
                backend=config.backend,
                device=self._device,
                host=_host(),
                check=config.check,
                op_bytes=config.memory_bytes,
            )
        except Raised as error:
            return SharedStepOutcome(
                reason=reason_for(error),
                raised={at: reason_for(each) for at, each in error.errors.items()},
            )
        except Exception as error:
            reason = error.reason if isinstance(error, NotReplayable) else reason_for(error)
            return SharedStepOutcome(reason=reason)

    def _group(self, members: tuple[int, ...]) -> Any:
        """Return the process group of these ranks; every rank must make the same requests."""
        import torch.distributed as dist

        if members not in self._groups:
            self._groups[members] = dist.new_group(list(members))  # pyright: ignore[reportUnknownMemberType]
        return self._groups[members]

    def _timed(self, task: RankTask) -> RankReply:
        import torch

        from opreplay.replay.execute.ranks.torch.buffers import Buffers
        from opreplay.replay.execute.ranks.torch.timing import measured

        share, config = task.share, self._config
        group = self._groups[share.members]
        buffers = Buffers(share, config.rank, group, backend=config.backend, device=self._device)
        kind = self._device.partition(":")[0]
        wait = _nothing if kind == "cpu" else getattr(torch, kind).synchronize
        if config.check:
            buffers.fill()
        started = perf_counter()
        buffers.call()
        wait()
        reply = RankReply(
            rank=config.rank,
            first_us=(perf_counter() - started) * 1e6,
            host=_host(),
            wrong=buffers.wrong() if config.check else None,
            assumed=buffers.assumed,
        )
        buffers.input.zero_()  # sums of sums would grow without end
        return measured(buffers, config.measure, wait, reply)


def _nothing() -> None:
    """Do nothing, because a call on the CPU is done when it returns."""


def _open(config: RankConfig) -> str:
    """Return the torch device of this rank. Raises EnvironmentRefused if the device or the back-end is missing."""
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise EnvironmentRefused("this torch has no torch.distributed", hint="Install a build that includes it.")
    if config.backend == "gloo" and not dist.is_gloo_available():
        raise EnvironmentRefused("this torch has no gloo", hint="Install a build that includes it.")
    if config.backend == "nccl" and not dist.is_nccl_available():
        raise EnvironmentRefused("this torch has no nccl", hint="Install a CUDA build, or use --set backend=gloo.")
    if config.device.startswith("cuda"):
        number = int(config.device.partition(":")[2] or 0)
        if number >= torch.cuda.device_count():
            raise EnvironmentRefused(
                f"rank {config.rank} has no {config.device}: there are only {torch.cuda.device_count()} devices",
                hint="Start at most as many ranks as there are devices.",
            )
        torch.cuda.set_device(number)
    if config.device.startswith("npu"):
        from opreplay.replay.execute.executors.torch.device import open_device

        open_device(config.device)
    return config.device


def _store(config: RankConfig) -> Any:
    import torch.distributed as dist

    if config.store.startswith("/"):
        return dist.FileStore(config.store, config.world)  # pyright: ignore[reportPrivateImportUsage]
    host, _, port = config.store.rpartition(":")
    tcp = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=PATIENCE_S))  # pyright: ignore[reportPrivateImportUsage]
    return dist.PrefixStore(config.prefix, tcp)  # pyright: ignore[reportPrivateImportUsage]


def _host() -> str:
    """Return an id of this machine, to tell whether ranks share a clock."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()
