# pyright: strict
"""Read PARAM communication traces: JSON lists of collectives, as accepted by PARAM's commsTraceReplay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from opreplay.traces.activity.model import Collective, ListedCollective
from opreplay.traces.errors import Malformed
from opreplay.traces.folders import read_regular
from opreplay.traces.limits import Limits, too_large

MAX_BYTES = 512 << 20
MAX_ENTRIES = 2_000_000
MARKS = ("init", "wait", "barrier_init", "destroy")
"""Names of entries that move no data but only set something up, wait, or clean up."""


class CommsTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one PARAM communication trace."""

    path: str
    entries: tuple[ListedCollective, ...]
    marks: int
    """Number of entries that move no data."""
    losses: dict[str, int]
    world_size: int | None = None


def read_comms_trace(path: str | Path, limits: Limits | None = None) -> CommsTrace:
    """Read a communication trace: a list of {comms, in_msg_size, out_msg_size, dtype, in_split, out_split, world_size,
    ...}.

    Sizes are in elements. Raises Malformed for any other content and TooLarge if a limit is exceeded.
    """
    entries = _entries(path, min(MAX_ENTRIES, (limits or Limits()).events))
    groups = _groups(entries)
    collectives: list[ListedCollective] = []
    losses: Counter[str] = Counter()
    marks, world = 0, None
    for entry in entries:
        name = entry.get("comms")
        if not isinstance(name, str):
            losses["entry without comms"] += "comms" in entry or "compute" not in entry
            continue
        world = _count(entry.get("world_size")) or world
        if name.lower() in MARKS:
            marks += 1
            continue
        collectives.append(_entry(name, entry, groups))
    return CommsTrace(path=str(path), entries=tuple(collectives), marks=marks, losses=dict(+losses), world_size=world)


def _entries(path: str | Path, limit: int) -> list[dict[str, Any]]:
    """Return the objects of the file's JSON list. Raises the same errors as `read_comms_trace`."""
    try:
        entries = msgspec.json.decode(read_regular(path, MAX_BYTES), type=list[dict[str, Any]])
    except OSError as error:
        raise Malformed(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(
            f"{path} is not a list of collectives: {error}", hint="PARAM files contain a JSON list of objects."
        ) from None
    if len(entries) > limit:
        raise too_large("events", limit, len(entries), "entries in the list")
    return entries


def _entry(name: str, entry: dict[str, Any], groups: dict[int, tuple[int, ...]]) -> ListedCollective:
    group = _count(entry.get("pg_id"))
    members = groups.get(group, ()) if group is not None else ()
    members = _numbers(entry.get("global_ranks")) or members
    return ListedCollective(
        name=f"comms:{name[:200].lower()}",
        record=Collective(
            name=name[:200].lower(),
            elements=_count(entry.get("in_msg_size")),
            out_elements=_count(entry.get("out_msg_size")),
            in_split=_numbers(entry.get("in_split")) or None,
            out_split=_numbers(entry.get("out_split")) or None,
            dtype=str(entry.get("dtype") or "")[:40] or None,
            group=None if group is None else str(group),
            group_size=len(members) or _count(entry.get("world_size")),
            ranks=str(list(members)) if members else None,
            source=_count(entry.get("src_rank")),
            target=_count(entry.get("dst_rank")),
            rank=_count(entry.get("root")),
        ),
        dur_us=_duration_us(entry),
    )


def _duration_us(entry: dict[str, Any]) -> float:
    """Return the duration of an entry, or 0."""
    duration = entry.get("dur", entry.get("latency_us", 0.0))
    return float(duration) if isinstance(duration, int | float) and 0 <= duration < 1e12 else 0.0


def _groups(entries: list[dict[str, Any]]) -> dict[int, tuple[int, ...]]:
    """Return pg_id → ranks of the group, for each group that an `init` entry defines."""
    ranks_by_group: dict[int, tuple[int, ...]] = {}
    for entry in entries:
        number = _count(entry.get("pg_id"))
        if entry.get("comms") == "init" and number is not None and (ranks := _numbers(entry.get("global_ranks"))):
            ranks_by_group[number] = ranks
    return ranks_by_group


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 52 else None


def _numbers(value: object) -> tuple[int, ...]:
    """Return a list of non-negative integers as a tuple; () for anything else."""
    try:
        numbers = msgspec.convert(value, list[int])
    except msgspec.ValidationError:
        return ()
    return tuple(numbers) if len(numbers) <= 1 << 16 and all(0 <= number < 1 << 52 for number in numbers) else ()
