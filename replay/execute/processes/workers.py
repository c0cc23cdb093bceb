# pyright: strict
"""Start processes that work on a task together: one process that runs ops, or the ranks of a process group.

This module handles start, task, reply, death and restart. The caller decides where processes run (`launch` and
`listen`), and handles a task that killed them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from math import inf
from multiprocessing.connection import wait
from time import monotonic
from typing import Any, Literal, Protocol, cast

import msgspec

from opreplay.replay.execute.messages import PassDone, RankReply, Ready, SharedStepOutcome
from opreplay.replay.execute.processes.child import GRACE_S, STARTS, Child
from opreplay.replay.execute.sequence.passes import BEAT
from opreplay.replay.host.channel import Unnamed
from opreplay.replay.ir.reasons import Reason
from opreplay.traces.errors import EnvironmentRefused

POLL_S = 0.5
"""Interval, in seconds, at which the heartbeats of silent processes are read."""
AFTER_ERROR_S = 2.0
"""Time for the other processes to reply after one has failed."""
LONGEST_WAIT_S = 3600.0


class Peer(Protocol):
    """A process with its connection, like `Child`."""

    facts: dict[str, object] | None

    def send(self, message: msgspec.Struct) -> None: ...
    def receive(self) -> Any: ...
    def next_look(self) -> float: ...
    def overdue(self) -> str: ...
    def cause_of_death(self) -> Reason: ...
    @property
    def was_killed(self) -> bool: ...
    @property
    def is_stopped(self) -> bool: ...
    def end(self, *, grace_s: float) -> None: ...


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task has no result; all its processes have ended."""

    how: Literal["died", "hung", "stopped", "over", "said"]
    """How the task ended.

    "died": a process exited or was killed. "hung": a process was silent for too long. "stopped": a process was silent
    because a signal had stopped it. "over": the time was used up, or the device is lost. "said": a process reported a
    failure.
    """
    cause: Reason
    ranks: tuple[int, ...] = (0,)
    """Ranks of the processes at fault."""
    at: int | None = None
    """Index of the op that was running in the first process at fault. None without an op or a heartbeat."""
    signalled: bool = False
    """Whether a signal ended or stopped the process. The signal may have been meant for another process."""
    raised: dict[int, Reason] = {}
    """Op index → error that the op raised."""
    after_s: float = 0.0
    """Seconds from the start of the task to its end."""


class Heartbeats:
    """One file per process, into which the process writes its current op."""

    def __init__(self, count: int, *, calls: int) -> None:
        """Create one file per process. Ops with an index below `calls` wait for no other process."""
        self.calls = calls
        self._files = [Unnamed() for _ in range(count)]
        for file in self._files:
            os.write(file.fileno(), BEAT.pack(-1, 0))

    def paths(self) -> list[str]:
        """Return the path of each process's file."""
        return [file.path for file in self._files]

    def read(self) -> list[tuple[int, int]]:
        """Return (index of the current op, number of heartbeats) of each process."""
        return [BEAT.unpack(os.pread(file.fileno(), BEAT.size, 0)) for file in self._files]

    def __enter__(self) -> Heartbeats:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()


Launch = Callable[[dict[str, object], ExitStack], Iterable[Peer]]
"""Function that starts processes. It gets the facts of earlier processes. The exit stack is closed when the processes
end.
"""


def readable(peers: Sequence[Peer], timeout_s: float) -> list[Peer]:
    """Wait for children of this process, and return those with a message."""
    return cast("list[Peer]", wait(cast("list[Any]", peers), timeout_s))


class Workers:
    """One or more processes that work on a task together.

    To use several `Workers`, call `hand_out` on each, wait until one is readable or past its deadline, and call its
    `take`. When a method raises, no process is left running.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        limit_s: float,
        until: float = inf,
        listen: Callable[[Sequence[Peer], float], list[Peer]] = readable,
        look_s: float = inf,
        interim: type[msgspec.Struct] = PassDone,
        on_interim: Callable[[Any], None] | None = None,
    ) -> None:
        """Set when a task is ended.

        It ends after `limit_s` without a message or heartbeat, at `until`, or if a process is stopped at two checks in
        a row. `until` is a time on the monotonic clock. The checks are `look_s` apart. `on_interim` gets the messages
        of type `interim`, which a process sends before its reply.
        """
        self._launch, self.limit_s, self._until, self._look_s = launch, limit_s, until, look_s
        self._listen, self._interim, self._on_interim = listen, interim, on_interim
        self._stopped_since: float | None = None
        self._files = ExitStack()
        self.peers: list[Peer] = []
        self.facts: dict[str, object] = {}
        """Facts of the first process, once all are ready."""
        self.deadline = inf
        """Monotonic time at which to call `take` even without messages."""
        self.answers = 0
        """Number of tasks that these processes completed."""
        self.starts = 0
        """Number of times that processes became ready."""
        self._failed_starts = 0
        self._waiting: list[int] = []
        """Indices of processes that have not replied."""
        self._tasks: Sequence[msgspec.Struct] = ()
        self._beats: Heartbeats | None = None
        self._seen: list[tuple[int, int]] = []
        self._replies: dict[int, Any] = {}
        self._refused: EnvironmentRefused | None = None
        self._failed: Death | None = None
        self._patient_until = inf
        """Time at which a task ends after one process has reported a failure."""
        self._begun = self._moved = 0.0

    @property
    def is_ready(self) -> bool:
        return bool(self.peers) and all(peer.facts is not None for peer in self.peers)

    @property
    def is_starting(self) -> bool:
        """Whether processes exist and some of them are not ready yet."""
        return bool(self.peers) and not self.is_ready

    @property
    def pids(self) -> list[int]:
        """Process ids on this machine."""
        return [peer.process.pid for peer in self.peers if isinstance(peer, Child)]

    def fileno(self) -> int:
        """Return the descriptor that is readable when the only process has a message."""
        (peer,) = self.peers
        assert isinstance(peer, Child)
        return peer.fileno()

    def open(self) -> None:
        """Start the processes without waiting for them."""
        try:
            for peer in self._launch(self.facts, self._files):
                self.peers.append(peer)
        except BaseException:
            self.end()
            raise
        self.answers, self._refused = 0, None
        self._await()
        self.deadline = min(peer.next_look() for peer in self.peers)

    def start(self) -> dict[str, object]:
        """Wait until all processes are ready, and return the facts of the first process.

        Raises UsageError or EnvironmentRefused if they cannot be started.
        """
        if not self.peers:
            self.open()
        while not self.is_ready:
            self.take(waits=True)
        return self.facts

    def hand_out(self, tasks: Sequence[msgspec.Struct], beats: Heartbeats | None = None) -> None:
        """Give each process its task, as soon as all processes are ready."""
        self._tasks, self._beats = tasks, beats
        if not self.peers:
            self.open()
        elif self.is_ready:
            self._send()

    def run(self, tasks: Sequence[msgspec.Struct], beats: Heartbeats | None = None) -> list[Any] | Death:
        """Run the tasks. Return the replies of all processes in order, or a `Death` with the reason why there
        are none.
        """
        self.hand_out(tasks, beats)
        while (answer := self.take(waits=True)) is None:
            pass
        return answer

    def take(self, *, waits: bool = False) -> list[Any] | Death | None:
        """Process messages or ends of processes, and return the replies of all processes.

        Returns None if some replies are missing, and a `Death` with the reason if the task ended without them.

        Raises UsageError or EnvironmentRefused if the processes cannot be started. Exceptions that end the run (Ctrl-C)
        pass through.
        """
        try:
            left_s = min(max(0.0, self.deadline - monotonic()), LONGEST_WAIT_S) if waits else 0.0
            speaking = self._listen([self.peers[place] for place in self._waiting], left_s)
            places = [place for place in self._waiting if self.peers[place] in speaking]
            if not self.is_ready:
                return self._receive_ready(places)
            answer = self._receive_answers(places)
        except BaseException:
            self.end()
            raise
        if isinstance(answer, Death):
            self.end()
        elif answer is not None:
            self.answers, self._tasks, self.deadline = self.answers + 1, (), inf
        return answer

    def close(self) -> None:
        """End the processes. They get `GRACE_S` to exit on their own, unless they are working on a task."""
        self.end(grace_s=0.0 if self._tasks else GRACE_S)

    def end(self, *, grace_s: float = 0.0) -> None:
        """End the processes; `hand_out` and `start` start new ones."""
        deadline = monotonic() + grace_s
        for peer in self.peers:
            peer.end(grace_s=max(0.0, deadline - monotonic()))
        self.peers, self._waiting, self._tasks, self.deadline = [], [], (), inf
        self._files.close()

    def _await(self) -> None:
        self._waiting, self._replies, self._failed = list(range(len(self.peers))), {}, None
        self._patient_until = inf

    def _receive_ready(self, places: Sequence[int]) -> None:
        """Receive the first messages of processes. Raises UsageError or EnvironmentRefused like `take`."""
        late = monotonic() >= self.deadline and not places
        for place in self._waiting[:] if late else places:
            if why := self.peers[place].overdue() if late else self._receive_first(place):
                return self._start_again(self._name(place), why)
        if self._refused is not None and any(peer.was_killed for peer in self.peers):
            return self._start_again("a rank", str(self._refused))
        if self._refused is not None and (not self._waiting or monotonic() >= self._patient_until):
            raise self._refused
        if self._waiting:
            look = min(self.peers[place].next_look() for place in self._waiting)
            self.deadline = min(look, self._patient_until)
            return None
        self.facts, self.deadline = self.peers[0].facts or {}, inf
        self.starts, self._failed_starts = self.starts + 1, 0
        if self._tasks:
            self._send()
        return None

    def _receive_first(self, place: int) -> str:
        """Receive a process's first message, and return why the process is not ready.

        Returns "" if it is ready, or if another process may be the cause.
        """
        self._waiting.remove(place)
        peer = self.peers[place]
        try:
            return "" if isinstance(peer.receive(), Ready) else f"did not start: {peer.cause_of_death().detail}"
        except EnvironmentRefused as error:
            self._refused, self._patient_until = error, monotonic() + AFTER_ERROR_S
            return ""

    def _start_again(self, who: str, why: str) -> None:
        """Restart all processes, because some were not ready in time or died during the start.

        Raises EnvironmentRefused after too many failures.
        """
        self._failed_starts += 1
        again = self.starts > 0 or any(peer.was_killed for peer in self.peers)
        tasks = self._tasks
        self.end()
        if not again or self._failed_starts >= STARTS:
            raise EnvironmentRefused(f"{who} {why}", hint="Run `opreplay doctor`.")
        self._tasks = tasks
        self.open()

    def _name(self, place: int) -> str:
        return f"rank {place}" if len(self.peers) > 1 else "the worker process"

    def _send(self) -> None:
        self._await()
        self._stopped_since = None
        self._begun = self._moved = monotonic()
        self._seen = self._beats.read() if self._beats is not None else []
        self.deadline = self._next_deadline()
        for peer, task in zip(self.peers, self._tasks, strict=True):
            peer.send(task)

    def _next_deadline(self) -> float:
        silent = min(self._moved + self.limit_s, self._until, self._patient_until, monotonic() + self._look_s)
        return silent if self._beats is None else min(silent, monotonic() + POLL_S)

    def _receive_answers(self, places: Sequence[int]) -> list[Any] | Death | None:
        """Receive replies. Return all of them, None while some are missing, or a `Death` that says why the
        task ended.
        """
        for place in places:
            peer = self.peers[place]
            reply = peer.receive()
            if isinstance(reply, self._interim):
                self._moved = monotonic()
                if self._on_interim is not None:
                    self._on_interim(reply)
            elif reply is None:
                cause = peer.cause_of_death()
                return self._death("died", cause, place, signalled=peer.was_killed)
            else:
                self._waiting.remove(place)
                self._replies[place] = reply
                self._note_failure(place, reply)
        if not self._waiting:
            return self._failed or [self._replies[place] for place in range(len(self.peers))]
        return self._overdue(silent=not places)

    def _note_failure(self, place: int, reply: object) -> None:
        """Store the first failure that a rank reports. A later failure that names the ops that raised replaces it."""
        if not isinstance(reply, RankReply | SharedStepOutcome) or reply.reason is None:
            return
        raised = reply.raised if isinstance(reply, SharedStepOutcome) else {}
        if self._failed is None or raised:
            self._failed = self._death("said", reply.reason, place, raised=raised)
            self._patient_until = min(self._patient_until, monotonic() + AFTER_ERROR_S)

    def _overdue(self, *, silent: bool) -> Death | None:
        """If no process has sent a message (`silent`), return why the task ends now. None if it continues."""
        now, seen = monotonic(), self._beats.read() if self._beats is not None else []
        if seen != self._seen:
            self._seen, self._moved = seen, now
            if self._failed is not None:
                self._patient_until = now + AFTER_ERROR_S
        if silent:
            if now >= self._patient_until:
                return self._failed
            if now >= self._until:
                return self._death("over", Reason("out of time", "the run's time was used up (--set total_time)"), 0)
            if now >= self._moved + self.limit_s:
                return self._failed or self._hung()
            if self._look_s < inf and self._is_stopped_since(now - self._look_s):
                return self._hung()
        self.deadline = self._next_deadline()
        return None

    def _is_stopped_since(self, time: float) -> bool:
        """Check whether a process that has not replied has been stopped since `time` or earlier.

        It must be stopped now, and must have been stopped at a check at or before `time`.
        """
        if not any(self.peers[place].is_stopped for place in self._waiting):
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = monotonic()
        return self._stopped_since is not None and self._stopped_since <= time

    def _hung(self) -> Death:
        """Return the processes at fault if no process makes progress.

        These are the processes that are stopped. If there are none, they are the processes in a call that is not a
        collective. Otherwise, they are all processes that have not replied.
        """
        stopped = [place for place in self._waiting if self.peers[place].is_stopped]
        if stopped:
            return self._death("stopped", Reason("worker lost", "stopped from outside"), *stopped, signalled=True)
        beats = self._beats
        calling = [place for place in self._waiting if beats is not None and 0 <= self._seen[place][0] < beats.calls]
        late = Reason("budget", f"time: no result after {self.limit_s:g} s (--set op_limit)")
        return self._death("hung", late, *(calling or self._waiting))

    def _death(
        self,
        how: Literal["died", "hung", "stopped", "over", "said"],
        cause: Reason,
        *ranks: int,
        signalled: bool = False,
        raised: dict[int, Reason] | None = None,
    ) -> Death:
        at = self._beats.read()[ranks[0]][0] if self._beats is not None else -1
        return Death(
            how=how,
            cause=cause,
            ranks=ranks,
            at=at if at >= 0 else None,
            signalled=signalled,
            raised=raised or {},
            after_s=monotonic() - self._begun,
        )
