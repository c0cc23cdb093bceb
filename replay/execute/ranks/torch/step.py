"""A recorded step on one rank. Calls run in order, and collectives are started and awaited at their recorded positions.

Three kinds of passes alternate: calls with overlapping collectives, only calls, only collectives. Passes that are
adjacent in time show how much time the overlap hides. They also show how much calls and collectives slow each other.
This module imports torch.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from time import monotonic_ns, perf_counter
from typing import Any

import torch
import torch.distributed as dist

from opreplay.replay.execute.executors.make import make_executor
from opreplay.replay.execute.messages import RankReply, SharedCall, SharedPasses, SharedStep, SharedStepOutcome
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.ranks.torch.buffers import Buffers
from opreplay.replay.execute.sequence.passes import MIN_PASSES, Heartbeat, SequenceRun, live_bytes
from opreplay.replay.execute.sequence.program import Program
from opreplay.replay.ir.reasons import NotReplayable, Reason
from opreplay.replay.ir.sizes import readable
from opreplay.replay.results import stats
from opreplay.traces.garbage import collector_off

MOST_STAMPS = 20_000
"""Maximum number of times of collectives to store. A step with many collectives therefore gets fewer passes."""
Span = tuple[int, int]
"""(start, end) in ns on the monotonic clock."""
Groups = Mapping[tuple[int, ...], Any]


def run_step(
    step: SharedStep, rank: int, groups: Groups, *, backend: str, device: str, host: str, check: bool, op_bytes: int
) -> SharedStepOutcome:
    """Run this rank's part of the step. Tensors of collectives may take `op_bytes`.

    Every rank makes the same number of passes of each kind. Raises Raised if a call that succeeded before raises now.
    """
    options = step.config.options
    executor = make_executor(step.config)
    parts = executor.for_sequences()
    task = step.task
    with Heartbeat(task.heartbeat) as beat:
        run = SequenceRun(parts, task, options.seed, step.config.memory_bytes, live_bytes(parts, task), beat)
        run.make_ready()
        program = run.repeat_check_passes(lambda _: None)
        places = run.places()
        beat(-1)  # what takes too much memory here is the fault of no op
        beside = StepCollectives(
            step.collectives,
            rank,
            groups,
            places,
            lambda op: beat(len(task.ops) + op),
            backend=backend,
            device=device,
            budget_bytes=op_bytes,
        )
        passes = _Passes(run, program, parts.timer, beside)
        if check:
            passes.checked()
        beside.zero()
        passes.measured(options, task.time_s)
        outcome = run.outcome(
            passes.samples, passes.sums_us, passes.walls_us, passes.refilled, options, executor.clock.resolution_us
        )
    return SharedStepOutcome(
        calls=outcome,
        collectives=beside.replies(rank, host, checked=check),
        passes=passes.times,
        unseen=beside.unseen,
    )


class Raised(Exception):
    """A call raised, on this or another rank, although it had succeeded before."""

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        """Store the errors by op index in the task; empty if only calls of another rank raised."""
        super().__init__("a call raised on another rank")
        self.errors = errors


class _Flight:
    """One call of a collective in flight."""

    __slots__ = ("asked_ns", "buffers", "ended_ns", "issue_ns", "left", "work")

    def __init__(self) -> None:
        self.asked_ns = self.issue_ns = self.ended_ns = 0
        self.left = 0
        """Number of the call's work handles that have not ended."""
        self.work: Any = None
        self.buffers: Buffers | None = None


class StepCollectives:
    """The step's collectives on this rank. At each position of a pass, it is called to start them and to wait
    for them.
    """

    def __init__(
        self,
        calls: Sequence[SharedCall],
        rank: int,
        groups: Groups,
        places: Sequence[int],
        at: Callable[[int], None],
        *,
        backend: str,
        device: str,
        budget_bytes: int,
    ) -> None:
        """`places` maps positions in the task to positions in the program. `at` is called with the next op.

        Raises NotReplayable if the tensors need more than `budget_bytes`.
        """
        self._calls, self._rank, self._at = calls, rank, at
        self._issue: defaultdict[int, list[int]] = defaultdict(list)
        self._wait: defaultdict[int, list[int]] = defaultdict(list)
        for number, call in enumerate(calls):
            self._issue[places[call.at]].append(number)
            if not call.at_once:
                self._wait[places[call.wait]].append(number)
        self._assumed: dict[int, str] = {}
        self._buffers = self._made(groups, backend, device, budget_bytes)
        self._flights = [_Flight() for _ in calls]
        self._checking = False
        self._wrong: dict[int, str] = {}
        self.waits: list[Span] = []
        """(start, end) of each wait for a collective in the last pass, in order."""
        self._unseen: set[int] = set()
        self._times: dict[int, tuple[list[float], list[int], list[int], list[float]]] = {
            call.op: ([], [], [], []) for call in calls
        }
        """Times of each op's calls, by op index: (µs in flight, starts in ns, ends in ns, µs until the call returned).

        Each list has one entry per call.
        """

    def __call__(self, place: int) -> None:
        """Start and await the collectives that are due before the call at this position."""
        for number in self._issue.get(place, ()):
            self._ask(number)
            if self._calls[number].at_once:
                self._await(number)
        for number in self._wait.get(place, ()):
            self._await(number)

    @property
    def unseen(self) -> int:
        """Number of collectives in a pass whose end is observed only when they are awaited."""
        return len(self._unseen)

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, *, checking: bool = False) -> None:
        """Start a pass."""
        self._flights = [_Flight() for _ in self._calls]
        self._checking, self.waits = checking, []

    def run_one_by_one(self) -> None:
        """Run all collectives one after the other."""
        for number in range(len(self._calls)):
            self._ask(number)
            self._await(number)

    def busy_spans(self) -> list[Span]:
        """Return the spans of the last pass with at least one collective in flight, in order."""
        spans: list[Span] = []
        for flight in sorted((f for f in self._flights if f.buffers is not None), key=lambda f: f.asked_ns):
            if spans and flight.asked_ns <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(spans[-1][1], flight.ended_ns)
            else:
                spans.append((flight.asked_ns, flight.ended_ns))
        return spans

    def record_times(self) -> None:
        """Add the times of the last pass to the results."""
        for call, flight in zip(self._calls, self._flights, strict=True):
            if flight.buffers is None:
                continue
            lasted, asked, ended, issued = self._times[call.op]
            lasted.append((flight.ended_ns - flight.asked_ns) / 1e3)
            asked.append(flight.asked_ns)
            ended.append(flight.ended_ns)
            issued.append(flight.issue_ns / 1e3)

    def zero(self) -> None:
        """Zero the input buffers; otherwise repeated sums would grow without limit."""
        for buffers in {id(candidate): candidate for candidate in self._buffers if candidate is not None}.values():
            buffers.input.zero_()

    def replies(self, rank: int, host: str, *, checked: bool) -> tuple[RankReply, ...]:
        """Return one reply per distinct collective, with its times."""
        return tuple(
            RankReply(
                number=op,
                rank=rank,
                took_part=bool(lasted),
                samples_us=tuple(lasted),
                first_us=lasted[0] if lasted else None,
                issue_us=tuple(issued),
                arrived_ns=tuple(asked),
                done_ns=tuple(ended),
                host=host,
                wrong=self._wrong.get(op, "") if checked else None,
                assumed=self._assumed.get(op, ""),
            )
            for op, (lasted, asked, ended, issued) in sorted(self._times.items())
        )

    def _ask(self, number: int) -> None:
        buffers, call = self._buffers[number], self._calls[number]
        if buffers is None:
            return
        self._at(call.op)
        flight = self._flights[number]
        flight.buffers = buffers
        if self._checking:
            buffers.fill()
        flight.asked_ns = monotonic_ns()
        flight.work = buffers.issue()
        flight.issue_ns = monotonic_ns() - flight.asked_ns
        self._listen(number, flight)

    def _await(self, number: int) -> None:
        flight, call = self._flights[number], self._calls[number]
        if flight.buffers is None:
            return
        self._at(call.op)
        begun = monotonic_ns()
        if flight.work is not None:
            flight.work.wait()
        now = monotonic_ns()
        self.waits.append((begun, now))
        if flight.left:
            flight.ended_ns = now  # its end was not told, or is only about to be
        flight.left = 0
        flight.work = None
        if self._checking and (wrong := flight.buffers.wrong()):
            self._wrong.setdefault(call.op, wrong)

    def _listen(self, number: int, flight: _Flight) -> None:
        """Let the back-end's thread record when a collective ends."""
        works: list[Any] = getattr(flight.work, "works", [flight.work])

        def ended(_: Any) -> None:
            if flight.left:
                flight.ended_ns = monotonic_ns()
                flight.left -= 1

        flight.left = len(works)
        try:
            for work in works:
                work.get_future().then(ended)
        except (RuntimeError, AttributeError):
            flight.left = len(works) + 1  # never all of them: its end is that of the wait
            self._unseen.add(number)

    def _made(self, groups: Groups, backend: str, device: str, budget_bytes: int) -> list[Buffers | None]:
        """Return the tensors of each collective.

        Calls of one op share their tensors if each call is awaited before the next starts.
        """
        pools: defaultdict[int, list[tuple[int, Buffers]]] = defaultdict(list)
        by_call: list[Buffers | None] = []
        used_bytes = 0
        for call in self._calls:
            share = call.share
            if self._rank not in share.members:
                by_call.append(None)
                continue
            pool = pools[call.op]
            free = next((i for i, (before, _) in enumerate(pool) if before < call.at), None)
            until = call.at - 1 if call.at_once else call.wait
            if free is None:
                buffers = Buffers(share, self._rank, groups[share.members], backend=backend, device=device)
                self._assumed[call.op] = buffers.assumed
                pool.append((until, buffers))
                used_bytes += buffers.bytes
                if used_bytes > budget_bytes:
                    limit = readable(budget_bytes)
                    raise NotReplayable(
                        Reason(
                            "budget", f"the step's collectives need more than {limit} per rank (--set max_op_memory)"
                        )
                    )
                by_call.append(buffers)
            else:
                pool[free] = (until, pool[free][1])
                by_call.append(pool[free][1])
        return by_call


class _Passes:
    """Runs the passes of one rank. Every rank runs the same number of passes."""

    def __init__(self, run: SequenceRun, program: Program, timer: Any, beside: StepCollectives) -> None:
        self._run, self._program, self._timer, self._beside = run, program, timer, beside
        self.samples: defaultdict[int, array[float]] = defaultdict(lambda: array("d"))
        self.sums_us: list[float] = []
        self.walls_us: list[float] = []
        self.times = SharedPasses()
        self.refilled = 0

    def checked(self) -> None:
        """Make a pass that does not count, and check the results of collectives. Exceptions of calls pass through."""
        self._beside.begin(checking=True)
        self._program.run_pass(self._timer, self._run.at_call, self._beside)
        self._timer.end()

    def measured(self, options: MeasureOptions, time_s: float) -> None:
        """Make rounds with one pass of each kind until all ranks have enough passes."""
        max_passes = max(MIN_PASSES, min(options.max_samples, MOST_STAMPS // max(1, len(self._beside))))
        with collector_off():
            self._round(counts=False)
            started = perf_counter()
            enough = False
            while not enough and len(self.sums_us) < max_passes:
                self._round(counts=True)
                enough = _any(self._enough(perf_counter() - started, options, time_s))

    def _round(self, *, counts: bool) -> None:
        program, timer, beside, at = self._program, self._timer, self._beside, self._run.at_call
        before = program.refilled
        dist.barrier()
        beside.begin()
        wall_us = self._timed(lambda: program.run_pass(timer, at, beside))
        times = timer.end()
        on, waits = beside.busy_spans(), beside.waits
        if _any(bool(program.raised)):
            raise Raised({self._run.index_of(at): error for at, error in program.raised.items()})
        if counts:
            beside.record_times()
            self.walls_us.append(wall_us)
            self.sums_us.append(sum(times))
            self.times.in_flight_us.append(sum(end - begin for begin, end in on) / 1e3)
            self.times.hidden_us.append(hidden_ns(on, waits) / 1e3)
            self.times.waited_us.append(sum(end - begin for begin, end in waits) / 1e3)
            for index, time_us in zip(self._run.calls(), times, strict=True):
                self.samples[index].append(time_us)
        program.mend()
        dist.barrier()
        alone_us = self._timed(lambda: program.run_pass(timer, at))
        alone = timer.end()
        program.mend()
        dist.barrier()
        beside.begin()
        collectives_us = self._timed(beside.run_one_by_one)
        if counts:
            self.times.alone_walls_us.append(alone_us)
            self.times.alone_sums_us.append(sum(alone))
            self.times.collectives_alone_us.append(collectives_us)
            self.refilled = max(self.refilled, program.refilled - before)

    def _timed(self, what: Callable[[], None]) -> float:
        """Return the wall time in microseconds, without the time for refilling tensors."""
        aside_s, begun = self._program.aside_s, perf_counter()
        what()
        return (perf_counter() - begun - (self._program.aside_s - aside_s)) * 1e6

    def _enough(self, spent_s: float, options: MeasureOptions, time_s: float) -> bool:
        passes = len(self.sums_us)
        if passes < MIN_PASSES:
            return False
        narrow = passes >= options.min_samples and stats.is_narrow(sorted(self.walls_us), options.target_ci)
        return spent_s >= time_s or (narrow and spent_s >= options.min_share * options.op_time_s)


def hidden_ns(on: Sequence[Span], waits: Sequence[Span]) -> int:
    """Return for how long collectives were in flight (`on`) while nothing waited for them.

    The spans of each list are in order and do not overlap each other.
    """
    hidden = sum(end - begin for begin, end in on)
    at = 0
    for begin, end in waits:
        while at < len(on) and on[at][1] <= begin:
            at += 1
        for since, until in islice(on, at, None):
            if since >= end:
                break
            hidden -= max(0, min(end, until) - max(begin, since))
    return hidden


def _any(mine: bool) -> bool:
    """Return whether the condition is true on any rank."""
    flag = torch.tensor([int(mine)])
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())
