# pyright: strict
"""Recognise which traces are ranks of one job.

The recorded rank and world size decide. If they are not recorded, the file names decide. This module does not use
plans, and reads no files.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePath

import msgspec

from opreplay.traces.errors import TraceError
from opreplay.traces.reading.source import open_binary

_NAMED = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])|(?<=worker)\d+|(?<=node)\d+|(?<=host)\d+|(?<=gpu)\d+")
"""A separate number, or the number of a machine. The 8 of "llama8b" does not match, because it is part of the model's
name.
"""
ENOUGH_OPS = 5
"""Minimum number of ops that identify a model."""
LEAST_IN_COMMON = 0.1
"""Minimum share of the smaller trace's ops that the other trace must also have for both to be ranks of one model."""
_Key = tuple[str, int | None, int]
"""Job: (path with a star for the rank, world size, number of earlier recordings with the same names)."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A trace and the job that it belongs to."""

    job: str
    """Name of the job: its file name with `*` for the rank. For a job of one trace, it is the trace's name."""
    rank: int | None
    world_size: int | None
    rank_from: str
    """Source of the rank: "metadata", "file name", or "" if there is no rank."""


def _rank_of(path: str, recorded: int | None) -> tuple[int | None, str]:
    """Return (rank of a trace or None, source of the rank or "")."""
    if recorded is not None:
        return recorded, "metadata"
    rank = rank_in_name(path)
    return rank, "" if rank is None else "file name"


def assign_jobs(
    paths: Sequence[str], ranks: Sequence[tuple[int | None, int | None]], ops: Sequence[frozenset[int]] | None = None
) -> list[Member]:
    """Return the job of each trace, from its path, recorded (rank, world size), and ops (given as numbers).

    Traces belong to one job if they have the same folder and world size, different ranks, and names that differ only in
    the rank. If the names do not contain the rank, all their numbers may differ, except numbers in words (llama8b).

    Two kinds of traces start another job. One is a trace with a repeated rank, because a second recording with the same
    names cannot be merged with the first. The other is a trace that has hardly any op in common with the job, because
    it is of another model. A job of one trace has the trace's own name.
    """
    seen: dict[tuple[str, int | None], list[dict[int, int]]] = {}
    keys: list[_Key | None] = []
    known = [_rank_of(path, recorded) for path, (recorded, _) in zip(paths, ranks, strict=True)]
    for number, (path, (rank, _), (_, world_size)) in enumerate(zip(paths, known, ranks, strict=True)):
        if rank is None:
            keys.append(None)
            continue
        masked = without_rank(path.removesuffix(".gz"), rank)
        runs = seen.setdefault((masked, world_size), [])
        index = next(
            (i for i, taken in enumerate(runs) if rank not in taken and _alike(number, taken.values(), ops)), len(runs)
        )
        if index == len(runs):
            runs.append({})
        runs[index][rank] = number
        keys.append((masked, world_size, index))
    names = _names(dict.fromkeys(filter(None, keys)))
    sizes = Counter(keys)
    return [
        Member(
            job=alone if key is None or sizes[key] == 1 else names[key],
            rank=rank,
            world_size=world_size,
            rank_from=source,
        )
        for key, alone, (rank, source), (_, world_size) in zip(keys, labels(paths), known, ranks, strict=True)
    ]


def _alike(number: int, others: Iterable[int], ops: Sequence[frozenset[int]] | None) -> bool:
    """Check whether a trace is of the same model as others: it must have enough ops in common with the first
    of them.
    """
    first = next(iter(others), None)
    if ops is None or first is None or min(len(ops[number]), len(ops[first])) < ENOUGH_OPS:
        return True
    common = len(ops[number] & ops[first])
    return common >= LEAST_IN_COMMON * min(len(ops[number]), len(ops[first]))


def _names(keys: Iterable[_Key]) -> dict[_Key, str]:
    """Return a unique name for each job. It has the file and, where needed, folders, world size and recording
    number.
    """
    known = list(keys)
    masked = list(dict.fromkeys(path for path, _, _ in known))
    short = dict(zip(masked, _with_star(masked), strict=True))
    sizes: dict[str, set[int | None]] = {}
    for path, world_size, _ in known:
        sizes.setdefault(path, set()).add(world_size)
    names: dict[_Key, str] = {}
    for path, world_size, index in known:
        name = short[path]
        if len(sizes[path]) > 1:
            name += f" of {world_size or '?'}"
        names[path, world_size, index] = f"{name} #{index + 1}" if index else name
    return names


def _with_star(paths: Sequence[str]) -> list[str]:
    """Return, for each path, the shortest unique label with the path part that has the rank's "*"."""
    out: list[str] = []
    for path, label in zip(paths, labels(paths), strict=True):
        parts = PurePath(path).parts
        star = next((i for i, part in enumerate(parts) if "*" in part), len(parts) - 1)
        out.append("/".join(parts[min(star, len(parts) - label.count("/") - 1) :]))
    return out


def rank_in_name(path: str) -> int | None:
    """Return the number after the last "rank" in a path; None if there is none."""
    numbers = _NAMED.findall(path)
    return int(numbers[-1]) if numbers else None


def without_rank(path: str, rank: int) -> str:
    """Replace the rank in a path by `*`.

    If the number after the last "rank" is the rank, it is replaced. Otherwise, the last number in the file name that
    equals the rank is replaced. If there is none, every number in the file name is replaced.
    """
    named = list(_NAMED.finditer(path))
    if named and int(named[-1][1]) == rank:
        start, end = named[-1].span(1)
        return f"{path[:start]}*{path[end:]}"
    folder, name = str(PurePath(path).parent), PurePath(path).name
    numbers = list(_NUMBER.finditer(name))
    matches = [match for match in numbers if int(match[0]) == rank]
    if matches:
        name = f"{name[: matches[-1].start()]}*{name[matches[-1].end() :]}"
    else:
        name = _NUMBER.sub("*", name)
    return str(PurePath(folder) / name)


def labels(paths: Sequence[str]) -> list[str]:
    """Return the file names with as many of their folders as needed to make them unique."""
    parts = [PurePath(path).parts for path in paths]
    depth = [1] * len(paths)
    while True:
        names = ["/".join(part[-n:]) for part, n in zip(parts, depth, strict=True)]
        same: dict[str, list[int]] = {}
        for index, name in enumerate(names):
            same.setdefault(name, []).append(index)
        longer = [i for indices in same.values() if len(indices) > 1 for i in indices if depth[i] < len(parts[i])]
        if not longer:
            return names
        for index in longer:
            depth[index] += 1


PEEK_BYTES = 64 << 10
"""Number of bytes to read from the start of a file, where PyTorch writes distributedInfo before the events.

Of a compressed file, the first bytes after decompression are searched, up to the same number.
"""
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]{0,4000}?"rank"\s*:\s*(\d{1,9})\b')


def rank_at_start(path: str) -> int | None:
    """Return the recorded rank if it is near the start of the file; otherwise None.

    Also returns None for unreadable files and for pipes. Pipes are not read, because they can be read only once.
    """
    try:
        if not os.path.isfile(path):
            return None
        with open_binary(path) as file:
            data = file.read(PEEK_BYTES) or b""
        if data[:2] == b"\x1f\x8b":
            data = zlib.decompressobj(31).decompress(data, PEEK_BYTES)
    except (TraceError, OSError, zlib.error):
        return None
    match = _RANK.search(data)
    return None if match is None else int(match[1])
