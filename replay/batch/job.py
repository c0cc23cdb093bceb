# pyright: strict
"""The files of a batch on their way to one merged plan: found, paired, read or taken from before, and told of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from opreplay.replay.batch.merge import Batch, TracePlan
from opreplay.replay.batch.pairing import pair
from opreplay.replay.batch.plan_store import PlanStore
from opreplay.replay.batch.ranks import rank_at_start
from opreplay.replay.batch.reading import BatchFile, HowToRead, Unreadable, decoded, find_files, read_plans
from opreplay.replay.plan.selection import Selection
from opreplay.traces import Limits
from opreplay.traces.errors import TraceError, UsageError

Tell = Callable[[str], None]
"""Takes a line that a person should see."""
NAMED = 3
"""Files that one line names."""


def find_and_pair(
    patterns: Sequence[str],
    donors: Sequence[str],
    selection: Selection,
    *,
    device: str,
    limits: Limits,
    plugins: Sequence[str],
    children: bool,
    tell: Tell,
) -> tuple[list[BatchFile], HowToRead]:
    """The files to read and how; ExecutionTraces that are paired with a trace are no traces of their own.

    Raises UsageError where no trace has one, or as `find_files` and `pair` do.
    """
    files, pairs = find_files(patterns), {}
    donor_paths = {os.path.realpath(file.path): file.path for file in (find_files(donors) if donors else ())}
    files = [file for file in files if os.path.realpath(file.path) not in donor_paths]
    read = [file.path for file in files if not file.left_out]
    if donors:
        pairs = pair(read, list(donor_paths.values()), rank_at_start)
        if not pairs:
            raise UsageError(
                "no trace has an ExecutionTrace among those of --execution-trace",
                hint="They are paired by name or by rank: name them like their traces, e.g. et_rank3.json.",
            )
        if without := [path for path in read if path not in pairs]:
            tell(f"{len(without)} of {len(read)} traces have no ExecutionTrace: {some(without)}")
        if unused := [path for path in donor_paths.values() if path not in pairs.values()]:
            tell(f"{len(unused)} of {len(donor_paths)} ExecutionTraces have no trace: {some(unused)}")
    return files, HowToRead(
        selection=selection,
        device=device,
        limits=limits,
        plugins=tuple(plugins),
        execution_traces=pairs,
        children=children,
        timed=len(list(islice((file for file in read if rank_at_start(file) is not None), 2))) == 2,
    )


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
    """All files that can be read, merged, and those that were refused: named by the user, or damaged in a folder.

    Files whose plan is in the store and that are as they were are not read again; others are put there. Files of a
    folder that are sound JSON but no traces are told of and left out, as are copies. Raises the error of the first file
    when none can be read.
    """
    batch = Batch()
    unreadable: list[Unreadable] = []
    refused: list[Unreadable] = []
    for file in files:
        if file.left_out:
            tell(f"left out: {file.path}: {file.left_out}")
            batch.leave_out(file.path, file.left_out, refused=False)
    special, files = [file.path for file in files if file.left_out], [file for file in files if not file.left_out]
    if not files:
        raise UsageError(f"there is no regular file among {some(special)}", hint="Name a pipe itself to have it read.")
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
        batch.leave_out(plan.path, plan.message, refused=is_refused)
        refused += [plan] if is_refused else []
    if store is not None and store.problem is not None:
        tell(f"opreplay: plans are not kept in {store.path}: {store.problem}; --resume reads traces again")
    if not len(batch) and unreadable:
        error = TraceError("none of the files could be read", hint=unreadable[0].hint)
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
    """The plan of each file, in order: from the store, or read here, by processes or on a cluster."""
    tables: dict[str, str | None] = {}
    stored = {path for path in paths if store is not None and store.holds(path, how.files(path, tables))}
    to_read = [path for path in paths if path not in stored]
    if stored and store is not None:
        tell(f"plans of {len(stored)} of {len(paths)} traces are those in {store.path}")
    if engine == "ray" and to_read:
        from opreplay.replay.execute.processes.ray import map_files

        plans = (decoded(data) for data in map_files(to_read, how.reader(), address=address))
    else:
        plans = read_plans(to_read, how, processes=lanes or os.cpu_count() or 1)
    for path in paths:
        if store is not None and path in stored:
            yield store.load(path)
            continue
        plan = next(plans)
        if store is not None and isinstance(plan, TracePlan):
            store.add(plan)
        yield plan


def some(paths: Sequence[str]) -> str:
    """The first of them, as a line names them."""
    return ", ".join(paths[:NAMED]) + (" ..." if len(paths) > NAMED else "")
