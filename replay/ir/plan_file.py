# pyright: strict
"""Reads and writes plans as JSON files, without loss. The version is checked before the fields are read, and the fields
before any op is called.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from opreplay.replay.ir.extremes import extreme
from opreplay.replay.ir.model import SCHEMA_VERSION, ReplayPlan
from opreplay.replay.ir.plain_json import plain_json
from opreplay.replay.ir.verify import verify
from opreplay.traces.errors import FormatError
from opreplay.traces.folders import read_regular
from opreplay.traces.names import printable

MAX_BYTES = 1 << 30
"""Maximum file size: a plan of a million ops is smaller."""


class _Version(msgspec.Struct):
    schema_version: int | None = None


def dump_plan(plan: ReplayPlan) -> bytes:
    """Return the plan as JSON on one line."""
    return plain_json(msgspec.json.encode(plan)) + b"\n"


def parse_plan(data: bytes, *, source: str = "the plan") -> ReplayPlan:
    """Parse a plan written by `dump_plan` of this or an older version. Raises FormatError, which names `source`."""
    hint = "`opreplay plan TRACE --output plan.json` writes one."
    try:
        version = msgspec.json.decode(data, type=_Version).schema_version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise FormatError(
            f"{source} is not an opreplay plan: not a JSON object with a schema_version", hint=hint
        ) from None
    if version is None:
        raise FormatError(f"{source} is not an opreplay plan: it has no schema_version", hint=hint)
    if version > SCHEMA_VERSION:
        raise FormatError(
            f"{source} has plan schema {version}, but this opreplay reads up to {SCHEMA_VERSION}",
            hint="Update opreplay.",
        )
    try:
        plan = msgspec.json.decode(data, type=ReplayPlan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{source}: {error}", hint="The file was changed or is damaged.") from None
    if where := extreme(data):
        raise FormatError(f"{source}: {where} is out of range", hint="The file was changed or is damaged.")
    verify(plan)
    return plan


def load_plan(path: str | Path) -> ReplayPlan:
    """Read a plan file. Raises FormatError for any other file."""
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}", hint="Check the path.") from None
    return parse_plan(data, source=printable(str(path)))
