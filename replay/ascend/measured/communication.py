# pyright: strict
"""Reads transfers measured by the Ascend profiler from communication.json, communication_matrix.json or tables.

The JSON files have the format written by torch_npu and msprof-analyze: step → "p2p" or "collective" → op@group. Each
op@group has times and, for each transport, the bytes, the time and the packets of each size.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from pathlib import Path

import msgspec

from opreplay.traces.errors import Malformed, TooLarge
from opreplay.traces.folders import open_regular, read_regular

MAX_FILE_BYTES = 512 << 20
MAX_TRANSFERS = 2_000_000
COLUMNS = ("op", "transport", "transit_mb", "transit_ms", "sizes")
"""Required columns of a table of transfers."""
PARTS = ("HCCS", "PCIE", "SIO", "HCCS_SW")
"""Transports that the profiler sums up under the name SDMA."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Data that one rank moved for one collective over one transport."""

    op: str
    """Name of the collective, e.g. "hcom_allReduce_"."""
    transport: str
    packets: tuple[tuple[float, int], ...]
    """(bytes, count) for each packet size."""
    transit_us: float | None
    """Time of all packets in microseconds; None if it was not recorded."""
    run: str = ""
    """Name of the profiled run; the ranks of a run share it."""
    soc: str = ""
    """SoC named in the table; "" if it names none."""

    @property
    def size_bytes(self) -> float:
        """Total bytes of all packets."""
        return sum(size * count for size, count in self.packets)


class Transfers(msgspec.Struct, frozen=True, kw_only=True):
    """The transfers of one file."""

    path: str
    rows: tuple[Transfer, ...]
    dropped: dict[str, int]
    """Reason → number of entries that do not describe a transfer."""


class _Bandwidth(msgspec.Struct):
    size_mb: float = msgspec.field(name="Transit Size(MB)", default=0.0)
    time_ms: float = msgspec.field(name="Transit Time(ms)", default=0.0)
    sizes: dict[str, list[float]] = msgspec.field(name="Size Distribution", default_factory=dict[str, list[float]])


class _Op(msgspec.Struct):
    bandwidth: dict[str, _Bandwidth] = msgspec.field(
        name="Communication Bandwidth Info", default_factory=dict[str, _Bandwidth]
    )


class _Pair(msgspec.Struct):
    transport: str = msgspec.field(name="Transport Type", default="")
    size_mb: float = msgspec.field(name="Transit Size(MB)", default=0.0)
    time_ms: float = msgspec.field(name="Transit Time(ms)", default=0.0)


def is_communication(path: str | Path) -> bool:
    """Check whether a file contains transfers: it is a .json file or a table with the columns of transfers."""
    if str(path).lower().endswith(".json"):
        return True
    try:
        with open_regular(path, MAX_FILE_BYTES) as stream:
            line = stream.readline(1 << 16).decode("utf-8", "replace")
        head: list[str] = next(csv.reader([line]), list[str]())
    except (OSError, csv.Error):
        return False
    return set(COLUMNS) <= {name.strip() for name in head}


def read_transfers(path: str | Path) -> Transfers:
    """Read the transfers of a file. Raises Malformed for an unknown layout, TooLarge if a limit is exceeded."""
    text = _bytes(path)
    if not str(path).lower().endswith(".json"):
        return _table(str(path), text)
    try:
        steps = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, msgspec.Raw]]])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(
            f"{path}: not a communication.json or communication_matrix.json: {error}",
            hint="Use the files in ASCEND_PROFILER_OUTPUT of a level 1 or level 2 profile.",
        ) from None
    dropped: Counter[str] = Counter()
    rows: list[Transfer] = []
    for groups in steps.values():
        for ops in groups.values():
            for name, raw in ops.items():
                rows += _of_op(name, raw, str(Path(path).parent), dropped)
                if len(rows) > MAX_TRANSFERS:
                    raise TooLarge(
                        f"{path} has more than {MAX_TRANSFERS:,} transfers", hint="Keep only one step of the file."
                    )
    return Transfers(path=str(path), rows=tuple(rows), dropped=dict(dropped))


def _bytes(path: str | Path) -> bytes:
    try:
        return read_regular(path, MAX_FILE_BYTES)
    except OSError as error:
        raise Malformed(f"cannot read {path}: {error.strerror}") from None


def _of_op(name: str, raw: msgspec.Raw, run: str, dropped: Counter[str]) -> list[Transfer]:
    """Return the transfers in the entry of one op in either of the JSON files; totals over all ops are ignored."""
    op = name.partition("@")[0]
    if op.startswith("Total Op Info"):
        return []
    try:
        parsed = msgspec.json.decode(raw, type=_Op)
        if parsed.bandwidth:
            return _of_bandwidths(op, parsed.bandwidth, run)
        pairs = msgspec.json.decode(raw, type=dict[str, _Pair])
    except (msgspec.MsgspecError, RecursionError):
        dropped["unreadable op"] += 1
        return []
    if op.rpartition("-")[2] in ("total", "middle") or op.partition("-")[2].startswith("bottom"):
        return []  # the matrix lists some ops under several names
    return [
        Transfer(
            op=op.partition("-")[0],
            transport=pair.transport,
            packets=((pair.size_mb * 1e6, 1),),
            transit_us=pair.time_ms * 1e3,
            run=run,
        )
        for pair in pairs.values()
        if pair.transport and pair.size_mb > 0 and pair.time_ms > 0
    ]


def _of_bandwidths(op: str, bandwidths: dict[str, _Bandwidth], run: str) -> list[Transfer]:
    transfers: list[Transfer] = []
    moved = {name for name, bandwidth in bandwidths.items() if bandwidth.size_mb > 0 and bandwidth.time_ms > 0}
    for name in moved:
        if name == "SDMA" and moved & set(PARTS):
            continue  # the sum of the others
        bandwidth = bandwidths[name]
        packets = _packets(bandwidth.sizes, bandwidth.size_mb)
        transfers.append(Transfer(op=op, transport=name, packets=packets, transit_us=bandwidth.time_ms * 1e3, run=run))
    return sorted(transfers, key=lambda transfer: transfer.transport)


def _packets(sizes: dict[str, list[float]], total_mb: float) -> tuple[tuple[float, int], ...]:
    packets: list[tuple[float, int]] = []
    for text, entry in sizes.items():
        try:
            size = float(text)
        except ValueError:
            continue
        if math.isfinite(size) and size >= 0 and entry and 0 < entry[0] < 1e9:
            packets.append((size * 1e6, int(entry[0])))
    return tuple(packets) or ((total_mb * 1e6, 1),)


def _table(path: str, text: bytes) -> Transfers:
    """Read a table with one transfer per row and the columns `COLUMNS`; `soc` and `profile` are optional."""
    dropped: Counter[str] = Counter()
    rows: list[Transfer] = []
    for row in csv.DictReader(text.decode("utf-8", "replace").splitlines()):
        try:
            sizes = msgspec.json.decode(row["sizes"] or "{}", type=dict[str, list[float | None]])
            total = float(row["transit_mb"])
            time = float(row["transit_ms"]) * 1e3 if row["transit_ms"] else None
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
            dropped["unreadable row"] += 1
            continue
        known = {size: [n for n in entry if n is not None] for size, entry in sizes.items()}
        profile = (row.get("profile") or "").rpartition(" rank")[0] or (row.get("profile") or "")
        rows.append(
            Transfer(
                op=row["op"],
                transport=row["transport"],
                packets=_packets(known, total),
                transit_us=time if time and time > 0 else None,
                run=f"{row.get('soc') or ''} {profile}".strip(),
                soc=(row.get("soc") or "").lower(),
            )
        )
        if len(rows) > MAX_TRANSFERS:
            raise TooLarge(f"{path} has more than {MAX_TRANSFERS:,} transfers", hint="Cut it down.")
    if not rows:
        raise Malformed(f"{path}: no row describes a transfer", hint=f"Columns must be {', '.join(COLUMNS)}.")
    return Transfers(path=path, rows=tuple(rows), dropped=dict(dropped))
