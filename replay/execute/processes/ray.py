# pyright: strict
"""Workers on a Ray cluster. Each is an actor with its own CPU, GPU or NPU that runs ops in a child process.

This module manages the actors and replaces lost ones. Ray transfers bytes that this package encoded, never objects from
a trace. `isolation` applies inside a worker. Needs the extra "ray".
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from math import inf
from time import monotonic
from typing import Any

import msgspec

from opreplay.replay.execute.messages import Ready, Refused, Reply
from opreplay.replay.execute.options import WorkerConfig
from opreplay.replay.execute.processes.child import START_S, STARTS
from opreplay.replay.execute.processes.lanes import TRIES, Lanes
from opreplay.replay.execute.processes.runner import ChildProcess
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.results.outcome import Outcome
from opreplay.traces.errors import EnvironmentRefused, OpReplayError, UsageError

POLL_S = 1.0
"""Interval, in seconds, at which workers are checked for missed deadlines."""
LOCAL_IP = "127.0.0.1"
"""Address of a cluster that opreplay starts. It is local, because anyone who can reach a cluster can run code on it."""
LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable that must be 0 when Ray is imported.

Otherwise, Ray uses the machine's own address instead of a loopback address.
"""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that one worker reserves on the cluster."""

    cpus: int
    gpus: int = 0
    npus: int = 0

    def options(self) -> dict[str, Any]:
        """Return the resources as options for Ray."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": {"NPU": self.npus} if self.npus else None}

    def text(self) -> str:
        """Return text like "1 CPU, 1 GPU"."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "NPU": self.npus}
        return ", ".join(f"{count} {name}" for name, count in wanted.items() if count)

    def lanes_in(self, resources: dict[str, float]) -> int:
        """Return the number of workers for which these resources suffice."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "NPU": self.npus}
        return int(min(resources.get(name, 0.0) // count for name, count in wanted.items() if count))


def share_of(device: str, threads: int | None) -> Share:
    """Return the resources of a worker: `threads` CPUs (1 by default), and one accelerator unless `device` is "cpu".

    Raises UsageError for "cuda:1" and for devices that Ray does not know, because Ray chooses the device of each
    worker.
    """
    if device == "cpu":
        return Share(cpus=threads or 1)
    if device == "cuda":
        return Share(cpus=threads or 1, gpus=1)
    if device == "npu":
        return Share(cpus=threads or 1, npus=1)
    raise UsageError(f"--engine ray supports cpu, cuda and npu, not {device}", hint="Remove the number.")


class LaneActor:
    """The actor in a Ray worker: runs one child process and exchanges bytes with the run."""

    def __init__(self, config: bytes, limit_s: float, folder: str | None = None) -> None:
        """`folder` is the run's working directory if the cluster is on this machine. File names are relative to it."""
        if folder is not None:
            os.chdir(folder)
        self._runner = ChildProcess(msgspec.msgpack.decode(config, type=WorkerConfig), limit_s=limit_s)

    def start(self) -> bytes:
        """Start the child; return an encoded Ready with the device's facts, or Refused."""
        try:
            return msgspec.msgpack.encode(Ready(facts=self._runner.start()))
        except OpReplayError as error:
            return msgspec.msgpack.encode(Refused.of(error))

    def measure(self, op: bytes) -> bytes:
        """Measure an encoded op; return an encoded Outcome or Refused."""
        try:
            return msgspec.msgpack.encode(self._runner.measure(msgspec.msgpack.decode(op, type=ReplayOp)))
        except OpReplayError as error:
            return msgspec.msgpack.encode(Refused.of(error))


class RayLane:
    """A worker of a cluster; if its actor is lost, another one is started."""

    def __init__(self, ray: Any, config: WorkerConfig, share: Share, *, limit_s: float, folder: str | None) -> None:
        self._ray, self._config, self._share, self._limit_s, self._folder = ray, config, share, limit_s, folder
        self._actor: Any = None
        self._failed_starts = 0
        self.facts: dict[str, object] = {}
        self.is_starting = False
        self.ref: Any = None
        """Ray reference to the worker's next reply."""
        self.deadline = inf
        """Monotonic time after which a silent worker counts as lost."""

    def open(self) -> None:
        """Request a worker. It takes ops after it has reported that it is ready. On a full cluster, this may never
        happen.
        """
        actor_class = self._ray.remote(max_restarts=0, **self._share.options())(LaneActor)
        self._actor = actor_class.remote(msgspec.msgpack.encode(self._config), self._limit_s, self._folder)
        self.ref, self.is_starting, self.deadline = self._actor.start.remote(), True, inf

    def begin(self, op: ReplayOp) -> None:
        """Start an op. A worker that does not reply within its own limits counts as lost or cut off from this
        machine.
        """
        self.ref = self._actor.measure.remote(msgspec.msgpack.encode(op))
        self.deadline = monotonic() + 2 * self._limit_s + STARTS * START_S

    def step(self) -> Outcome | Reason | None:
        """Process the worker's reply. Raises EnvironmentRefused or UsageError if no worker can be started at all."""
        starting = self.is_starting
        try:
            reply = msgspec.msgpack.decode(self._ray.get(self.ref, timeout=0), type=Reply)
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            self._failed_starts += starting
            self.close()
            if self._failed_starts >= STARTS:
                raise EnvironmentRefused(f"{STARTS} Ray workers did not start: {_line(error)}") from None
            self.open()
            return (
                None
                if starting
                else Reason("worker lost", f"{TRIES} Ray workers were lost while running it: {_line(error)}")
            )
        if isinstance(reply, Refused):
            raise reply.error()
        if isinstance(reply, Ready):
            self.facts, self.is_starting, self._failed_starts = reply.facts, False, 0
            return None
        assert isinstance(reply, Outcome)
        return reply

    def close(self) -> None:
        if self._actor is not None:
            with contextlib.suppress(Exception):
                self._ray.kill(self._actor)


class RayLanes(Lanes):
    """Runs ops on a cluster; if a worker is lost, its op is retried."""

    def __init__(
        self, config: WorkerConfig, *, limit_s: float, lanes: int | None = None, address: str | None = None
    ) -> None:
        """Use `lanes` workers; None stands for as many as the free resources permit.

        Raises EnvironmentRefused without Ray, and UsageError as `share_of` does.
        """
        super().__init__((), self._answered)
        self._share = share_of(config.options.device, config.options.threads)
        self._config = config.having(threads=self._share.cpus)
        self._limit_s, self._wanted, self._address = limit_s, lanes, address
        self._ray = import_ray(address)
        self._started_here = False

    def start(self) -> dict[str, object]:
        """Connect, start the workers and wait for the first one. Raises EnvironmentRefused or UsageError."""
        self._started_here = connect(self._ray, self._address, lanes=self._wanted)
        count = self._wanted or max(1, self._share.lanes_in(self._ray.available_resources()))
        folder = _folder(self._started_here, self._address)
        self._lanes = [
            RayLane(self._ray, self._config, self._share, limit_s=self._limit_s, folder=folder) for _ in range(count)
        ]
        return {**self._started(1), "engine": "ray"}

    def close(self) -> None:
        """End the workers, and the cluster if this run started it."""
        super().close()
        if self._started_here:
            self._ray.shutdown()

    def _answered(self, lanes: Sequence[RayLane]) -> list[RayLane]:
        """Wait for workers, and return those that replied or are past their deadline.

        Raises EnvironmentRefused if all workers are starting and none becomes ready.
        """
        begun, by_ref = monotonic(), {lane.ref: lane for lane in lanes}
        while True:
            answered = [by_ref[ref] for ref in self._ray.wait(list(by_ref), num_returns=1, timeout=POLL_S)[0]]
            now = monotonic()
            answered += [lane for lane in lanes if now >= lane.deadline and lane not in answered]
            if answered:
                return answered
            if all(lane.is_starting for lane in lanes) and now - begun > START_S:
                raise EnvironmentRefused(
                    f"no Ray worker was ready after {START_S:g} s",
                    hint=f"A worker needs {self._share.text()}; `ray status` shows free resources.",
                )


def map_files(paths: Sequence[str], read: Callable[[str], bytes], *, address: str | None) -> Iterator[bytes]:
    """Yield `read(path)` for each path in order.

    Files are read on the cluster, with one CPU per file and a few files ahead. The workers must be able to read the
    files. Raises EnvironmentRefused if a worker is lost more often than Ray retries.
    """
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
    """Import Ray. Without an address, set it up for a cluster on this machine only. Raises EnvironmentRefused."""
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
    """Connect to a cluster, or start a cluster on this machine that ends with the run.

    Returns False if Ray was already connected. Raises EnvironmentRefused if the cluster cannot be reached.
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
    """Return the working directory for workers if this run started a cluster on this machine; None on other
    clusters.
    """
    return os.getcwd() if started_here and address is None else None


@contextlib.contextmanager
def _away() -> Generator[None]:
    """Context manager that changes to the root folder.

    Otherwise, workers would search for modules first in the folder in which a cluster was started.
    """
    before = os.getcwd()
    os.chdir(os.sep)
    try:
        yield
    finally:
        os.chdir(before)


def _refuse_reachable(ray: Any, ip: str) -> None:
    """If other machines can reach the cluster that this run started, shut it down and raise EnvironmentRefused."""
    if ip != LOCAL_IP:
        ray.shutdown()
        raise EnvironmentRefused(
            f"a Ray cluster on this machine would listen on {ip}, where anybody could use it",
            hint=(f"Set {LOCAL_ONLY}=0 before Ray is imported, or start a cluster and use --set address=ADDRESS."),
        )


def _line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
