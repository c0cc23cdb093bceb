# pyright: strict
"""Reads tables of measured calls: one row per call in opreplay's notation, with its time, the device and the L2 state.

Defines the columns and which rows are usable. `simulate` computes a call's cost; `calibrate.calls` selects the rows for
a fit.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import msgspec

from opreplay.replay.ascend.devices.file import list_devices
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.resolve.written.sweep import Written, is_refused, plan_of_calls
from opreplay.replay.results.records import L2State
from opreplay.traces.dialects.kernel_table import MAX_DURATION_US, MAX_LINE
from opreplay.traces.errors import Malformed, OpReplayError, TooLarge, TraceError
from opreplay.traces.folders import open_regular_text
from opreplay.traces.names import plural

MAX_ROWS = 100_000
MAX_TABLE_BYTES = 256 << 20
TIMES = ("torch_us", "time_us", "us", "duration_us")
"""Columns that may hold the time of a call in microseconds; the first one present is used."""
_SPREAD = re.compile(r"\bspread (\d{1,9}(?:\.\d{1,9})?) %")
"""Matches the spread in the note of a row: interquartile range of the repetitions as a percentage of their median."""
BETWEEN = " ; "
"""Separator between the calls of a row that contains several; such a row gives their total time."""


class MeasuredCall(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table of measured calls."""

    text: str
    ops: tuple[ReplayOp, ...]
    """The op of the call; several if the row contains several calls."""
    soc: str
    """opreplay's name of the device; "" if the row names no device."""
    l2: L2State | None
    """State of the L2 cache; None if the row does not give it."""
    time_us: float
    source: str = ""
    """Project and file that the row was taken from, without the version."""
    spread: float = 0.0
    """Spread of the repeated measurements relative to the time; 0 if the row's note does not give it."""

    @property
    def key(self) -> str:
        """Return a key computed from call, device and time. The table that the row is in does not change the key."""
        return blake2b(f"{self.text}|{self.soc}|{self.time_us:g}".encode(), digest_size=6).hexdigest()


class CallTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of measured calls, as read."""

    path: str
    calls: tuple[MeasuredCall, ...]
    rows: int
    usable_rows: int
    """Number of rows that name a known device and whose time covers exactly the named call."""
    dropped: dict[str, int]
    """Reason → number of rows that could not be used."""


def header_of(path: str | Path) -> list[str]:
    """Return the column names of a CSV file. Raises TraceError if the file cannot be read."""
    try:
        with open_regular_text(path, MAX_TABLE_BYTES) as file:
            line = file.readline(MAX_LINE)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}", hint="Check the path and its permissions.") from error
    return [name.strip() for name in next(csv.reader([line]), list[str]())]


def is_call_table(path: str | Path) -> bool:
    """Check whether a file has the header of a table of calls. Raises TraceError if it cannot be read."""
    header = set(header_of(path))
    return "op" in header and any(name in header for name in TIMES) and not {"Type", "Name"} & header


def read_call_table(
    path: str | Path, *, soc: str | None = None, only: Callable[[Mapping[str, str]], bool] = lambda row: True
) -> CallTable:
    """Read the usable calls of a table.

    `soc` is the device for rows that name none. Only rows that `only` accepts are read and counted. Of these, a row is
    left out and counted by reason in four cases: it has no time, it names an unknown device, the column `exact` has a
    value other than "yes", or it does not describe a call. Raises TraceError if the file cannot be read, Malformed if
    it holds no call, TooLarge for more than MAX_ROWS rows.
    """
    column = next((name for name in TIMES if name in set(header_of(path))), TIMES[0])
    with open_regular_text(path, MAX_TABLE_BYTES) as file:
        try:
            rows = list(islice((row for row in csv.DictReader(file) if only(row)), MAX_ROWS + 1))
        except csv.Error as error:
            raise Malformed(f"{path}: {error}", hint="docs/ascend-model.md describes the columns.") from None
    if len(rows) > MAX_ROWS:
        raise TooLarge(f"{path} has more than {MAX_ROWS:,} rows", hint="Split the table.")
    whys = [_unusable(row, column, soc) for row in rows]
    usable = [row for row, why in zip(rows, whys, strict=True) if not why]
    ops_of = ops_of_texts(list({part for row in usable for part in row["op"].strip().split(BETWEEN)}))
    dropped = Counter(why for why in whys if why)
    calls: list[MeasuredCall] = []
    for row in usable:
        text = row["op"].strip()
        ops = [ops_of[part] for part in text.split(BETWEEN)]
        refused = next((why for why in ops if isinstance(why, str)), None)
        if refused is not None:
            dropped[refused] += 1
        else:
            known = tuple(op for op in ops if not isinstance(op, str))
            calls.append(_call(row, text, known, float(row[column]), soc))
    if not calls:
        reasons = "; ".join(f"{plural(n, 'row')}: {reason}" for reason, n in dropped.most_common(3))
        raise Malformed(
            f"{path}: contains no measured call ({reasons})", hint="docs/ascend-model.md describes the columns."
        )
    return CallTable(
        path=str(path),
        calls=tuple(calls),
        rows=len(rows),
        usable_rows=len(usable),
        dropped=dict(dropped),
    )


LEAST_US = 1e-3
"""Minimum valid time of a row in microseconds; no kernel starts in less than 0.9."""
L2_WORDS = frozenset({"", "unknown", "cold", "loop", "warm"})
"""Valid values of a column `l2`."""


def _unusable(row: Mapping[str, str], column: str, soc: str | None) -> str:
    """Return why a row cannot be used; "" if it can."""
    if not (row.get("op") or "").strip():
        return "no op named"
    try:
        time_us = float(row.get(column) or 0)
    except ValueError:
        return "the time is not a number"
    if not LEAST_US <= time_us <= MAX_DURATION_US:
        return f"the time is not between {LEAST_US:g} us and {MAX_DURATION_US:g} us"
    said = (row.get("l2") or "").strip().lower()
    if said not in L2_WORDS:
        return f"column l2 is {said[:20]!r} instead of cold, loop or warm"
    if (row.get("exact") or "yes").strip().lower() not in ("yes", "1", "true"):
        return "a similar call was timed, not this call (column exact)"
    if _soc_of(row, soc) not in {*list_devices(), soc}:
        return f"device {row.get('soc') or 'not given'}: must be one of {', '.join(list_devices())}"
    return ""


MISLABELLED = {("flagos-ai/FlagGems", "910b4"): "910b4-1"}
"""(project, device as named in its tables) → actual device.

The named device is impossible: reading 1 GB of weights in 769 us is 1.32 TB/s, but a 910B4 has only 0.8 TB/s.
"""


def _soc_of(row: Mapping[str, str], soc: str | None) -> str:
    """Return the device named in a row; `soc` if the row names none, or an ambiguous one ("910b")."""
    named = (row.get("soc") or "").strip().lower().removeprefix("ascend")
    named = MISLABELLED.get(((row.get("source") or "").split(":")[0].split("#")[0].split("@")[0], named), named)
    several = named not in list_devices() and any(device.startswith(named) for device in list_devices())
    return soc if several and soc else named


def _call(
    row: Mapping[str, str], text: str, ops: tuple[ReplayOp, ...], time_us: float, soc: str | None
) -> MeasuredCall:
    said = (row.get("l2") or row.get("state") or "").strip().lower()
    l2: L2State | None = "cold" if said == "cold" else "warm" if said == "warm" else None
    source = (row.get("source") or "").split("@")[0].split("#")[0].strip()
    said_spread = _SPREAD.search(row.get("note") or "")
    spread = float(said_spread[1]) / 100 if said_spread else 0.0
    return MeasuredCall(text=text, ops=ops, soc=_soc_of(row, soc), l2=l2, time_us=time_us, source=source, spread=spread)


def ops_of_texts(texts: Sequence[str]) -> dict[str, ReplayOp | str]:
    """Return the op of each call, or the reason why `opreplay op` rejects the text.

    All calls are resolved together, which takes a tenth of the time of resolving each separately. If this fails, the
    calls are split in halves, which are resolved separately. This is repeated until the failing call is found.
    """
    if not texts:
        return {}
    try:
        plan, ids = plan_of_calls([Written(text=text) for text in texts])
    except OpReplayError as error:
        if len(texts) == 1:
            return {texts[0]: f"{texts[0].split('(')[0]}: {error.problem}"}
        half = len(texts) // 2
        return ops_of_texts(texts[:half]) | ops_of_texts(texts[half:])
    ops = {op.id: op for op in plan.ops}
    found = zip(texts, (ops[place] for place in ids), strict=True)
    return {text: f"{op.name}: {op.reason}" if is_refused(op) else op for text, op in found}
