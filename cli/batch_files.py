"""One file of a batch read and planned: by this process, by one of several, or by a worker of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from opreplay.cli.planning import Selection

if TYPE_CHECKING:
    from opreplay.replay.batch import Batch
    from opreplay.replay.batch_reading import ReadOne, Unreadable


def reader(selection: Selection, *, device: str, limits: Sequence[tuple[str, str]], plugins: Sequence[str]) -> ReadOne:
    """What reads one file with these options; can be sent to another process."""
    return partial(_read, selection=selection, device=device, limits=tuple(limits), plugins=tuple(plugins))


def _read(
    path: str, *, selection: Selection, device: str, limits: Sequence[tuple[str, str]], plugins: Sequence[str]
) -> bytes:
    """A TracePlan, or Unreadable for a file that is refused, as msgpack."""
    from opreplay.cli.inputs import kind_of_file, plan_of
    from opreplay.cli.planning import parse_limits
    from opreplay.replay.batch import TracePlan
    from opreplay.replay.batch_reading import Unreadable, encoded
    from opreplay.replay.plan_file import load_plan
    from opreplay.replay.plugins import load_plugins
    from opreplay.replay.tracelens_ir import read_tracelens_ir
    from opreplay.traces import read_trace
    from opreplay.traces.errors import OpReplayError

    try:
        load_plugins(plugins)
        kind = kind_of_file(path)
        if kind != "trace":
            read = load_plan(path) if kind == "plan" else read_tracelens_ir(path)
            return encoded(TracePlan(path=path, plan=plan_of(read, selection, device=device)))
        trace = read_trace(path, limits=parse_limits(limits))
        plan = plan_of(trace, selection, device=device)
        return encoded(TracePlan(path=path, plan=plan, rank=trace.info.rank, world_size=trace.info.world_size))
    except OpReplayError as error:
        return encoded(Unreadable(path=path, message=str(error), hint=error.hint, exit_code=error.exit_code))


def read_batch(
    patterns: Sequence[str], read: ReadOne, *, lanes: int | None, engine: str, address: str | None
) -> tuple[Batch, list[Unreadable]]:
    """All files that can be read, merged, and those that the user named and that were refused.

    Files of a folder that are no traces are told of and left out. Raises the error of the first file when none can be
    read.
    """
    from opreplay.cli import console
    from opreplay.cli.progress import FilesProgress
    from opreplay.replay.batch import Batch
    from opreplay.replay.batch_reading import Unreadable, decoded, find_files, read_plans
    from opreplay.traces.errors import TraceError

    files = find_files(patterns)
    paths = [file.path for file in files]
    if engine == "ray":
        from opreplay.replay.schedule_ray import map_files

        plans = (decoded(data) for data in map_files(paths, read, address=address))
    else:
        plans = read_plans(paths, read, processes=lanes or os.cpu_count() or 1)
    batch, refused, first = Batch(), [], None
    with FilesProgress() as progress:
        for index, (file, one) in enumerate(zip(files, plans, strict=True), start=1):
            progress(index, len(files))
            if not isinstance(one, Unreadable):
                batch.add(one)
                continue
            first = first or one
            console.narrate(f"{'refused' if file.named else 'left out'}: {one.path}: {one.message}")
            if file.named:
                refused.append(one)
    if not len(batch) and first is not None:
        error = TraceError("none of the files could be read", hint=first.hint)
        error.exit_code = first.exit_code
        raise error
    return batch, refused
