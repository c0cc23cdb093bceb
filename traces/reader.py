# pyright: strict
"""`read_trace`: read a file with the first dialect that recognises it, and return a linked `Trace`."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from opreplay.traces import dialects
from opreplay.traces.dialects.dialect import Progress, Want
from opreplay.traces.errors import TraceError, UsageError
from opreplay.traces.garbage import collector_off
from opreplay.traces.limits import Limits
from opreplay.traces.model import Trace
from opreplay.traces.reading.fields import Column
from opreplay.traces.reading.opening import OPENING_BYTES, Opening
from opreplay.traces.reading.source import Source

_DEFAULT_LIMITS = Limits()


def read_trace(
    path: str | Path,
    *,
    limits: Limits = _DEFAULT_LIMITS,
    processes: int = 1,
    progress: Progress | None = None,
    record_function_ids: bool = False,
    gradients: bool = False,
    calls: bool = False,
    activity: bool = False,
    _block_bytes: int | None = None,
) -> Trace:
    """Read one profile and link its device time to ops, in bounded memory.

    The file is plain or gzip JSON ("-" for stdin). `processes` > 1 splits a plain file between that many processes.
    `progress(bytes_done, total)` is called with bytes of the file; total may be None.

    Optional columns: `record_function_ids` reads the record function ids of ops if the trace has them, to join an
    ExecutionTrace of the same run. `gradients` reads which ops autograd recorded. `calls` reads the runtime calls with
    their names, to find the capture of a graph. `activity` reads the timing of calls, waits, flow events and memory
    (`Trace.activity`), which takes about three times as long. With `calls` or `activity`, one process reads everything.

    Raises TraceError: Malformed, UnknownDialect, or TooLarge for a file that exceeds one of `limits`.
    """
    wanted: dict[Column, bool] = {"numbers": record_function_ids or gradients, "calls": calls, "activity": activity}
    want = Want(
        columns=frozenset(column for column, is_wanted in wanted.items() if is_wanted),
        processes=processes,
        progress=progress,
        block_bytes=_block_bytes,
    )
    with collector_off(), Source(path, limits) as source:
        opening = Opening(source.peek(OPENING_BYTES))
        return next(dialect for dialect in dialects.DIALECTS if dialect.sniff(opening)).read(source, want)


def expand_paths(patterns: Iterable[str]) -> list[str]:
    """Return the files that the given paths and globs match, without repeats; "-" means stdin.

    The files of each glob are sorted. Raises TraceError for a glob that matches nothing.
    """
    out: dict[str, None] = {}
    for pattern in patterns:
        if pattern == "-" or os.path.exists(pattern) or not glob.has_magic(pattern):
            out[pattern] = None
            continue
        names = sorted(name for name in glob.glob(pattern, recursive=True) if not os.path.isdir(name))
        if not names:
            is_call = "::" in pattern and "(" in pattern
            hint = "Check the pattern, and put it in quotes."
            raise TraceError(
                f"no file matches {pattern}", hint="This looks like a call: use `opreplay op`." if is_call else hint
            )
        out.update(dict.fromkeys(names))
    return list(out)


def the_one_path(text: str) -> str:
    """Return the only file that a path or glob matches. Raises UsageError if it matches none or several."""
    paths = expand_paths([text])
    if len(paths) != 1:
        problem = f"{text} matches {len(paths)} files, e.g. {paths[0]}" if paths else f"{text} matches no file"
        raise UsageError(problem, hint="Name one of them.")
    return paths[0]
