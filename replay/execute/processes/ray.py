# pyright: strict
"""Lanes on a Ray cluster: each is an actor with a CPU, GPU or NPU of its own that runs ops in a child process.

Owns the actors and what happens when one is lost. Ray moves bytes that this package encoded, never objects from a
trace; the isolation inside a worker is that of `isolation`. Needs the extra "ray".
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any

import msgspec

from opreplay.replay.execute.messages import Ready, Refused, Reply
from opreplay.replay.execute.options import WorkerConfig
from opreplay.replay.execute.processes.child import START_S, STARTS
from opreplay.replay.execute.processes.lanes import Decide
from opreplay.replay.execute.processes.runner import ChildProcess
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.traces.errors import EnvironmentRefused, OpReplayError, UsageError

TRIES = 2
"""Workers that an op may lose before it is given up."""
POLL_S = 1.0
"""Seconds between two looks at workers that should have answered."""
LOCAL_IP = "127.0.0.1"
"""A cluster that opreplay starts itself is not reachable from outside: who reaches one can run anything on it."""
LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray replaces a loopback address that it is given by the machine's own one, unless this variable is 0 when it is
imported; it is meant for systems where Ray is on one machine only."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one lane takes of the cluster."""

    cpus: int
    gpus: int = 0
    npus: int = 0

    def options(self) -> dict[str, Any]:
        """As Ray wants it."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": {"NPU": self.npus} if self.npus else None}

    def text(self) -> str:
        """ "1 CPU, 1 GPU"."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "NPU": self.npus}
        return ", ".join(f"{count} {name}" for name, count in wanted.items() if count)

    def lanes_in(self, resources: dict[str, float]) -> int:
        """How many lanes such resources hold."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "NPU": self.npus}
        return int(min(resources.get(name, 0.0) // count for name, count in wanted.items() if count))


def share_of(device: str, threads: int | None) -> Share:
    """One accelerator with a CPU to feed it, or `threads` CPUs (1 by default).

    Raises UsageError for "cuda:1" and devices that Ray does not know: Ray chooses which one a worker gets.
    """
    if device == "cpu":
        return Share(cpus=threads or 1)
    if device == "cuda":
        return Share(cpus=threads or 1, gpus=1)
    if device == "npu":
        return Share(cpus=threads or 1, npus=1)
    raise UsageError(f"--engine ray gives out cpu, cuda and npu, not {device}", hint="Leave the number out.")


class LaneActor:
    """What runs in a Ray worker: one child process, spoken to in bytes."""

    def __init__(self, config: bytes, limit_s: float, folder: str | None = None) -> None:
        """`folder` is where the run was started, on a cluster of this machine: files are named from there."""
        if folder is not None:
            os.chdir(folder)
        self._runner = ChildProcess(msgspec.msgpack.decode(config, type=WorkerConfig), limit_s=limit_s)

    def start(self) -> bytes:
        """Ready with the device's facts, or Refused."""
        try:
            return msgspec.msgpack.encode(Ready(facts=self._runner.start()))
        except OpReplayError as error:
            return msgspec.msgpack.encode(Refused.of(error))

    def measure(self, op: bytes) -> bytes:
        """The op's Outcome, or Refused."""
        try:
            return msgspec.msgpack.encode(self._runner.measure(msgspec.msgpack.decode(op, type=ReplayOp)))
        except OpReplayError as error:
            return msgspec.msgpack.encode(Refused.of(error))


class RayLanes:
    """Runs ops on a cluster; a worker that is lost costs a second try of its op and nothing else."""

    def __init__(
        self, config: WorkerConfig, *, limit_s: float, lanes: int | None = None, address: str | None = None
    ) -> None:
        """`lanes` None takes all that is free. Raises EnvironmentRefused without Ray, UsageError as `share_of`."""
        self._share = share_of(config.options.device, config.options.threads)
        self._config = config.having(threads=self._share.cpus)
        self._limit_s, self._wanted, self._address = limit_s, lanes, address
        self._ray = import_ray(address)
        self._started_here = False
        self._actors: list[Any] = []
        self._starting: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._failed_starts = 0

    def start(self) -> dict[str, object]:
        """Connect, start the actors and wait for the first. Raises EnvironmentRefused or UsageError."""
        self._started_here = connect(self._ray, self._address, lanes=self._wanted)
        lanes = self._wanted or max(1, self._share.lanes_in(self._ray.available_resources()))
        for _ in range(lanes):
            self._add_actor()
        while True:
            first = self._ray.wait(list(self._starting), timeout=START_S)[0]
            if not first:
                raise EnvironmentRefused(
                    f"no Ray worker was ready after {START_S:g} s",
                    hint=f"A lane needs {self._share.text()}; `ray status` shows what is free.",
                )
            if (facts := self._joined(first[0])) is not None:
                return {**facts, "engine": "ray", "lanes": lanes}

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[tuple[ReplayOp, Outcome]]:
        waiting, again = iter(ops), deque[tuple[ReplayOp, int]]()
        busy = dict[Any, tuple[Any, ReplayOp, int, float]]()
        more = True
        while more or again or busy:
            while self._idle and (more or again):
                op, tries = again.popleft() if again else (next(waiting, None), 0)
                if op is None:
                    more = False
                elif not tries and (outcome := decide(op)) is not None:
                    yield op, outcome
                else:
                    actor = self._idle.pop(0)
                    sent = actor.measure.remote(msgspec.msgpack.encode(op))
                    busy[sent] = (actor, op, tries + 1, self._deadline())
            for ref in self._answered(busy) if busy or more or again else ():
                if ref in self._starting:
                    self._joined(ref)
                    continue
                actor, op, tries, _ = busy.pop(ref)
                outcome = self._outcome(ref, actor, tries)
                if outcome is None:
                    again.append((op, tries))
                else:
                    yield op, outcome

    def _outcome(self, ref: Any, actor: Any, tries: int) -> Outcome | None:
        """What became of an op in its worker; None when the worker is lost and the op has a try left."""
        try:
            outcome = _reply(self._ray.get(ref, timeout=0))
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            self._remove(actor)
            self._add_actor()
            if tries < TRIES:
                return None
            return unable(Reason("worker lost", f"{tries} Ray workers were lost with it: {_line(error)}"))
        assert isinstance(outcome, Outcome)
        self._idle.append(actor)
        return outcome if tries == 1 else msgspec.structs.replace(outcome, attempts=tries)

    def _joined(self, ref: Any) -> dict[str, object] | None:
        """Let a worker that has started take ops; its facts, or None when it died before that and another is tried.

        Raises EnvironmentRefused or UsageError when workers cannot be started at all.
        """
        actor = self._starting.pop(ref)
        try:
            reply = _reply(self._ray.get(ref))
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            self._remove(actor)
            if self._failed_starts >= STARTS:
                raise EnvironmentRefused(f"{STARTS} Ray workers did not start: {_line(error)}") from None
            self._add_actor()
            return None
        assert isinstance(reply, Ready)
        self._failed_starts = 0
        self._idle.append(actor)
        return reply.facts

    def close(self) -> None:
        """End the workers, and the cluster where this run started it."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._actors = []
        if self._started_here:
            self._ray.shutdown()

    def _answered(self, busy: dict[Any, tuple[Any, ReplayOp, int, float]]) -> list[Any]:
        """References that are there, or late; of workers that start as well, which may be never on a full cluster.

        Raises EnvironmentRefused when all workers are lost and no new one starts.
        """
        started = monotonic()
        while True:
            ready, _ = self._ray.wait([*busy, *self._starting], num_returns=1, timeout=POLL_S)
            now = monotonic()
            late = [ref for ref, (_, _, _, deadline) in busy.items() if now >= deadline and ref not in ready]
            if ready or late:
                return [*ready, *late]
            if not busy and now - started > START_S:
                raise EnvironmentRefused(f"all Ray workers are lost, and no other was ready after {START_S:g} s")

    def _deadline(self) -> float:
        """A worker answers by itself within its own limits; later it is lost, or cut off from here."""
        return monotonic() + 2 * self._limit_s + STARTS * START_S

    def _remove(self, lost: Any) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(lost)
        self._actors.remove(lost)

    def _add_actor(self) -> None:
        """Ask for one more worker; it takes ops once it has said that it is ready."""
        actor_class = self._ray.remote(max_restarts=0, **self._share.options())(LaneActor)
        folder = _folder(self._started_here, self._address)
        actor = actor_class.remote(msgspec.msgpack.encode(self._config), self._limit_s, folder)
        self._actors.append(actor)
        self._starting[actor.start.remote()] = actor


def map_files(paths: Sequence[str], read: Callable[[str], bytes], *, address: str | None) -> Iterator[bytes]:
    """`read` of each path on the cluster, in order, one CPU each, a few ahead of what is taken; the files must lie
    where the workers can read them. Raises EnvironmentRefused when a worker is lost more than Ray retries."""
    ray = import_ray(address)
    started_here = connect(ray, address, lanes=None)
    remote, reader = ray.remote(num_cpus=1, max_retries=1)(_read), ray.put(read)
    pending: deque[Any] = deque()
    waiting = deque(paths)
    ahead = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    try:
        while waiting or pending:
            while waiting and len(pending) < ahead:
                pending.append(remote.remote(reader, waiting.popleft(), _folder(started_here, address)))
            try:
                yield ray.get(pending.popleft())
            except ray.exceptions.RayError as error:
                raise EnvironmentRefused(f"a Ray worker could not read a trace: {_line(error)}") from None
    finally:
        if started_here:
            ray.shutdown()


def _read(read: Callable[[str], bytes], path: str, folder: str | None) -> bytes:
    if folder is not None:
        os.chdir(folder)
    return read(path)


def import_ray(address: str | None = None) -> Any:
    """The library, set up for a cluster of this machine alone where there is no address. Raises EnvironmentRefused."""
    # Before the import, which reads both: nothing is sent anywhere unless the user asked for it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        os.environ.setdefault(LOCAL_ONLY, "0")
    try:
        import ray
    except ImportError:
        raise EnvironmentRefused("Ray is not installed", hint='Install it with: pip install "opreplay[ray]"') from None
    return ray


def connect(ray: Any, address: str | None, *, lanes: int | None) -> bool:
    """Connect to a cluster, or start one on this machine alone that ends with the run; whether this call did either.

    Raises EnvironmentRefused when the cluster cannot be reached.
    """
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        settings: dict[str, Any] = {"address": address}
    else:
        cpus = max(lanes or 1, os.cpu_count() or 1)
        settings = {"num_cpus": cpus, "include_dashboard": False, "_node_ip_address": LOCAL_IP}
    try:
        with _away() if address is None else contextlib.nullcontext():
            context = ray.init(**settings, **quiet)
    except Exception as error:  # Ray raises Exception itself when a node does not start in time
        raise EnvironmentRefused(f"no Ray cluster at {address or 'this machine'}: {_line(error)}") from None
    if address is None:
        _refuse_reachable(ray, context.address_info["node_ip_address"])
    return True


def _folder(started_here: bool, address: str | None) -> str | None:
    """Where workers of a cluster of this run, on this machine, find files as this process does."""
    return os.getcwd() if started_here and address is None else None


@contextlib.contextmanager
def _away() -> Generator[None]:
    """Stand in the root folder meanwhile: workers look for modules first where a cluster was started."""
    before = os.getcwd()
    os.chdir(os.sep)
    try:
        yield
    finally:
        os.chdir(before)


def _refuse_reachable(ray: Any, ip: str) -> None:
    """End a cluster of our own that others can reach. Raises EnvironmentRefused."""
    if ip != LOCAL_IP:
        ray.shutdown()
        raise EnvironmentRefused(
            f"a Ray cluster of this machine would listen on {ip}, where anybody could use it",
            hint=f"Set {LOCAL_ONLY}=0 before Ray is imported, or start a cluster and name its --address.",
        )


def _reply(data: bytes) -> Ready | Outcome:
    reply = msgspec.msgpack.decode(data, type=Reply)
    if isinstance(reply, Refused):
        raise reply.error()
    return reply


def _line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
