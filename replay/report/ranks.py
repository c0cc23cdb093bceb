# pyright: strict
"""Summary of a folder of traces of a job with many ranks, one line per file."""

from __future__ import annotations

import msgspec
from rich.console import Group

from opreplay.replay.report.table import COUNT, SHARE, TEXT, TIME, Column, Table, terminal
from opreplay.replay.report.text import plural, safe
from opreplay.replay.report.view import View
from opreplay.traces.model import Trace
from opreplay.traces.names import file_name
from opreplay.traces.times.busy import device_busy
from opreplay.traces.times.doubts import doubts_of

ROWS = 40
"""Maximum number of files shown in a terminal."""


class RankFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a folder; times in microseconds, summed over all devices of the file."""

    file: str
    rank: int | None
    ops: int
    kernels: int
    device_us: float
    """Total time of all device work."""
    busy_share: float | None
    """Busy share of the time from the start of the first to the end of the last device work. None if the device times
    are wrong, or if there is no device work.
    """
    communication_us: float
    exposed_communication_us: float
    """Communication time during which nothing else ran on the device."""
    lost: int
    """Number of events and other parts of the file that could not be read."""


def rank_file(trace: Trace) -> RankFile:
    """Return the summary line of one trace."""
    busy = device_busy(trace)
    span_us, untimed = sum(device.span_us for device in busy), doubts_of(trace).untimed
    communication_us = sum(device.communication_us for device in busy)
    return RankFile(
        file=file_name(trace.info.path),
        rank=trace.info.rank,
        ops=len(trace.ops),
        kernels=len(trace.kernels),
        device_us=float(trace.kernels.dur_ns.sum(dtype="int64")) / 1e3,
        busy_share=sum(device.busy_us for device in busy) / span_us if span_us and not untimed else None,
        communication_us=communication_us,
        exposed_communication_us=communication_us - sum(device.hidden_communication_us for device in busy),
        lost=sum(trace.info.report.losses.values()),
    )


def view(files: list[RankFile]) -> View:
    """Return the files sorted by rank, then by name."""
    rows = sorted(files, key=lambda one: (one.rank is None, one.rank or 0, one.file))
    table = _table(rows)
    slowest = max(rows, key=lambda one: one.device_us)
    line = f"{plural(len(rows), 'trace')}; most device time in {safe(slowest.file)}"
    return View(
        lines=[line],
        render=lambda width: Group(*terminal(table, width, limit=ROWS, rest="for all, use --format json")),
        facts=lambda: {"files": msgspec.to_builtins(rows)},
        table=lambda: table,
    )


def _table(rows: list[RankFile]) -> Table[RankFile]:
    column = Column[RankFile]
    columns = [
        column("rank", lambda one: one.rank, COUNT, key="rank"),
        column("ops", lambda one: one.ops, COUNT, key="ops", drop=3),
        column("kernels", lambda one: one.kernels, COUNT, key="kernels", drop=2),
        column("device time", lambda one: one.device_us, TIME, key="device_us"),
        column("busy", lambda one: one.busy_share, SHARE, key="busy_share"),
        column("communication", lambda one: one.communication_us, TIME, key="communication_us"),
        column("exposed", lambda one: one.exposed_communication_us, TIME, key="exposed_communication_us"),
        column("lost", lambda one: one.lost, COUNT, key="lost", drop=1),
        column("file", lambda one: one.file, TEXT, key="file", form="code"),
    ]
    return Table("Ranks", columns, rows, noun="trace")
