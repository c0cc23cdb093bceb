# pyright: strict
"""Turn the files of a batch into one merged plan. Files are found, paired, and read or reused. Each is reported on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice, takewhile
from pathlib import PurePath

from opreplay.replay.batch.merge import Batch, TracePlan
from opreplay.replay.batch.plan_store import PlanStore
from opreplay.replay.batch.ranks import rank_at_start, rank_in_name
from opreplay.replay.batch.reading import BatchFile, HowToRead, Unreadable, decoded, find_files, read_plans
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.job.job import Job
from opreplay.replay.results.records import JobResult, OpResult, TraceResult
from opreplay.traces import Limits
from opreplay.traces.errors import TraceError, UsageError

Tell = Callable[[str], None]
"""Function that prints a line for the user."""
NAMED = 3
"""Maximum number of files named in one line of output."""


def _ignored(done: int, files: int) -> None:
    pass


class Traces:
    """Several traces as the source of one job: found, paired, read and merged."""

    def __init__(
        self,
        *,
        lanes: int | None = None,
        engine: str = "local",
        address: str | None = None,
        tell: Tell = lambda line: None,
        progress: Callable[[], AbstractContextManager[Callable[[int, int], None]]] = lambda: nullcontext(_ignored),
    ) -> None:
        """`lanes`, `engine` and `address` are as in `read_batch`.

        `progress` returns a context manager that gives a function. The function gets (files done, number of all files).
        """
        self._lanes, self._engine, self._address, self._tell, self._progress = lanes, engine, address, tell, progress
        self._files: list[BatchFile] = []
        self.store: PlanStore | None = None
        """Store of plans from earlier runs; None if plans are not kept."""
        self.batch = Batch()
        self.refused: list[Unreadable] = []

    def find(
        self,
        patterns: Sequence[str],
        donors: Sequence[str],
        job: Job,
        *,
        limits: Limits,
        process: str | None = None,
    ) -> None:
        """Find the files; `make_plan` reads them. Raises the errors of `find_and_pair`."""
        self._files, self.how = find_and_pair(
            patterns,
            donors,
            job,
            limits=limits,
            process=process,
            tell=self._tell,
        )

    def make_plan(self, job: Job) -> ReplayPlan:
        """Read the files and return their merged plan.

        Raises the errors of `read_batch`, and UsageError if no op is selected.
        """
        with self._progress() as progress:
            self.batch, self.refused = read_batch(
                self._files,
                self.how,
                self.store,
                lanes=self._lanes,
                engine=self._engine,
                address=self._address,
                tell=self._tell,
                progress=progress,
            )
        if not self.batch.rank_ops and job.selection.narrows:
            raise UsageError(
                "the filters leave no op in any trace", hint="`opreplay plan` on one trace lists the names of its ops."
            )
        return self.batch.plan()

    def leaves_out(self, op: ReplayOp) -> bool:
        """Return False: no op is excluded from prediction."""
        return False

    def facts(self) -> dict[str, object]:
        """Return facts about the traces for the header of the results."""
        return self.batch.facts()

    def sums(self, results: Sequence[OpResult]) -> list[TraceResult | JobResult]:
        """Return the records of each trace and job."""
        return self.batch.close(results)


def find_and_pair(
    patterns: Sequence[str],
    donors: Sequence[str],
    job: Job,
    *,
    limits: Limits,
    process: str | None,
    tell: Tell,
) -> tuple[list[BatchFile], HowToRead]:
    """Return (files to read, how to read them).

    An ExecutionTrace that belongs to a trace is not read as a separate trace. Raises UsageError if no trace has an
    ExecutionTrace, and what `find_files` and `pair` raise.
    """
    files = find_files(patterns)
    donor_paths = {os.path.realpath(file.path): file.path for file in (find_files(donors) if donors else ())}
    files = [file for file in files if os.path.realpath(file.path) not in donor_paths]
    read = [file.path for file in files if not file.left_out]
    pairs = _paired(read, list(donor_paths.values()), tell) if donors else {}
    return files, HowToRead(
        selection=job.selection,
        device=job.settings.device,
        limits=limits,
        plugins=tuple(job.settings.plugins),
        execution_traces=pairs,
        children=job.settings.check_kernels,
        process=process,
        timed=len(list(islice((file for file in read if rank_at_start(file) is not None), 2))) == 2,
    )


def _paired(traces: Sequence[str], donors: Sequence[str], tell: Tell) -> dict[str, str]:
    """Map each trace to its ExecutionTrace, and report files without a match. Raises UsageError if none matches."""
    pairs = pair(traces, donors, rank_at_start)
    if not pairs:
        raise UsageError(
            "no trace matches an ExecutionTrace of --execution-trace",
            hint="ExecutionTraces are matched by name or rank. Name them like their traces, e.g. et_rank3.json.",
        )
    if without := [path for path in traces if path not in pairs]:
        tell(f"{len(without)} of {len(traces)} traces have no ExecutionTrace: {some(without)}")
    if unused := [path for path in donors if path not in pairs.values()]:
        tell(f"{len(unused)} of {len(donors)} ExecutionTraces have no trace: {some(unused)}")
    return pairs


def _regular(files: Sequence[BatchFile], batch: Batch, tell: Tell) -> list[BatchFile]:
    """Report the files that are skipped, and return the others. Raises UsageError if no file remains."""
    for file in files:
        if file.left_out:
            tell(f"left out: {file.path}: {file.left_out}")
            batch.record_unread(file.path, file.left_out, refused=False)
    regular = [file for file in files if not file.left_out]
    if not regular:
        special = some([file.path for file in files])
        raise UsageError(f"none of {special} is a regular file", hint="To read a pipe, name it explicitly.")
    return regular


def read_batch(
    files: Sequence[BatchFile],
    how: HowToRead,
    store: PlanStore | None,
    *,
    lanes: int | None,
    engine: str,
    address: str | None,
    tell: Tell,
    progress: Callable[[int, int], None],
) -> tuple[Batch, list[Unreadable]]:
    """Return (merged batch of all readable files, refused files).

    Refused files are unreadable, and either named by the user or damaged. Unchanged files with a plan in the store are
    not read again. The plans of other files are added to the store. Copies, and files in a folder that are valid JSON
    but not traces, are reported and skipped. If no file can be read, raises the error of the first file.
    """
    batch = Batch()
    unreadable: list[Unreadable] = []
    refused: list[Unreadable] = []
    files = _regular(files, batch, tell)
    plans = _plans([file.path for file in files], how, store, lanes=lanes, engine=engine, address=address, tell=tell)
    for index, (file, plan) in enumerate(zip(files, plans, strict=True), start=1):
        progress(index, len(files))
        if isinstance(plan, TracePlan):
            batch.add(plan)
            for note in plan.notes:
                tell(f"{plan.path}: {note.removeprefix('opreplay: ')}")
            continue
        unreadable.append(plan)
        is_refused = file.named or not plan.no_trace
        tell(f"{'refused' if is_refused else 'left out'}: {plan.path}: {plan.message}")
        batch.record_unread(plan.path, plan.message, refused=is_refused)
        refused += [plan] if is_refused else []
    if not len(batch) and unreadable:
        error = TraceError(f"none of the files could be read: {unreadable[0].message}", hint=unreadable[0].hint)
        error.exit_code = unreadable[0].exit_code
        raise error
    return batch, refused


def _plans(
    paths: Sequence[str],
    how: HowToRead,
    store: PlanStore | None,
    *,
    lanes: int | None,
    engine: str,
    address: str | None,
    tell: Tell,
) -> Iterator[TracePlan | Unreadable]:
    """Yield the plan of each file in order: from the store, or read here, in processes or on a cluster."""

    def read(to_read: Sequence[str]) -> Iterator[TracePlan | Unreadable]:
        if engine != "ray" or not to_read:
            return read_plans(to_read, how, processes=lanes or os.cpu_count() or 1)
        from opreplay.replay.execute.processes.ray import map_files

        return (decoded(data) for data in map_files(to_read, how.reader(), address=address))

    if store is None:
        yield from read(paths)
        return
    beside: dict[str, tuple[str, ...]] = {}
    stored = {path for path in paths if store.load(path, how.files(path, beside)) is not None}
    plans = read([path for path in paths if path not in stored])
    if stored:
        tell(f"plans of {len(stored)} of {len(paths)} traces are cached from an earlier run")
    for path in paths:
        plan = store.load(path, how.files(path, beside)) if path in stored else None
        if plan is None:  # or room was made for others meanwhile
            plan = next(read([path]) if path in stored else plans)
            if isinstance(plan, TracePlan):
                store.add(plan)
        yield plan


def some(paths: Sequence[str]) -> str:
    """Return the first few paths as text for one line."""
    return ", ".join(paths[:NAMED]) + (" ..." if len(paths) > NAMED else "")


_WORDS = re.compile(r"[A-Za-z]+|\d+")
KINDS = frozenset(
    (
        "et",
        "execution",
        "trace",
        "traces",
        "chakra",
        "kineto",
        "pytorch",
        "torch",
        "pt",
        "profile",
        "profiler",
        "host",
        "device",
        "json",
        "gz",
    )
)
"""Words in file names that say what kind of file it is. They are ignored when names are matched."""


def _fitting(trace: str, donors: Sequence[str], ranks: Mapping[str, int | None]) -> list[str]:
    """Return the ExecutionTraces with the same name as the trace. If no name matches, return those with the
    same rank.
    """
    fitting = [d for d in donors if _bare(d) == _bare(trace) and _may_be(ranks[d], ranks[trace])]
    return fitting or [d for d in donors if ranks[d] == ranks[trace] is not None]


def pair(
    traces: Sequence[str], donors: Sequence[str], rank_of: Callable[[str], int | None] = lambda path: None
) -> dict[str, str]:
    """Map each trace that has an ExecutionTrace (one of `donors`) to that ExecutionTrace.

    Candidates have the trace's name (ignoring words such as "kineto" and "et"). If there are none, candidates have its
    rank, which is in the path or comes from `rank_of`. The candidate nearest in the folder tree is chosen. If there is
    one trace and one ExecutionTrace, they always belong together.

    Raises UsageError if two ExecutionTraces fit a trace equally well, or if two traces get the same ExecutionTrace.
    """
    if len(traces) == len(donors) == 1:
        return {traces[0]: donors[0]}
    ranks = {path: _rank(path, rank_of) for path in (*traces, *donors)}
    pairs: dict[str, str] = {}
    for trace in traces:
        if fitting := _fitting(trace, donors, ranks):
            pairs[trace] = _nearest(trace, fitting)
    traces_by_donor: dict[str, str] = {}
    for trace, donor in pairs.items():
        if (other := traces_by_donor.setdefault(donor, trace)) != trace:
            raise UsageError(f"{donor} matches both {other} and {trace}", hint="Give the traces of only one run.")
    return pairs


def _rank(path: str, rank_of: Callable[[str], int | None]) -> int | None:
    named = rank_in_name(path)
    return rank_of(path) if named is None else named


def _may_be(rank: int | None, other_rank: int | None) -> bool:
    return rank is None or other_rank is None or rank == other_rank


def _bare(path: str) -> tuple[str, ...]:
    """Return the words and numbers of a file name, without the words in `KINDS`."""
    return tuple(word for word in _WORDS.findall(PurePath(path).name.lower()) if word not in KINDS)


def _nearest(trace: str, donors: Sequence[str]) -> str:
    """Return the file of `donors` in the folder nearest to the trace's. Raises UsageError if two are equally near."""
    common = {donor: _in_common(PurePath(trace).parent.parts, PurePath(donor).parent.parts) for donor in donors}
    best = max(common.values())
    nearest = [donor for donor in donors if common[donor] == best]
    if len(nearest) > 1:
        raise UsageError(
            f"{nearest[0]} and {nearest[1]} both match {trace}",
            hint="Name the ExecutionTraces of one run, with the rank in their names.",
        )
    return nearest[0]


def _in_common(folders: tuple[str, ...], other_folders: tuple[str, ...]) -> tuple[int, int]:
    """Return how many folders two paths share: (from the top, from the bottom of the rest).

    With this measure, `et/run1` is nearest to `kineto/run1`.
    """
    top = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(folders, other_folders, strict=False)))
    below = zip(reversed(folders[top:]), reversed(other_folders[top:]), strict=False)
    return top, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], below))
