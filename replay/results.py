"""The result of a run: an append-only JSON Lines file with a versioned schema, and its values."""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.replay.executors.base import Measurement
from opreplay.replay.ir import Assumption, Resolution

SCHEMA_VERSION = 1
"""Changes of format: 1 first version."""

Status = Literal["replayed", "skipped", "failed"]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction of one op on one simulated device."""

    time_us: float
    bound: str
    """"cube", "vector", "hbm", "l2", "launch", "link", or "none" for a view."""
    terms_us: dict[str, float]
    kernels: tuple[str, ...]
    """CANN kernel types the op was lowered to."""
    confidence: Literal["calibrated", "other SoC", "uncalibrated"]
    low_us: float
    high_us: float
    """80 % band."""


class OpResult(msgspec.Struct, frozen=True, kw_only=True, tag="op", tag_field="record"):
    """One op of a run. Times are microseconds a call; multiply by `count` for a total."""

    id: str
    name: str
    count: int
    status: Status
    reason: str | None = None
    resolved_by: Resolution | None = None
    via: str | None = None
    inputs: str = ""
    """Short text of the arguments, for people: "bf16[512,512] · bf16[512,2048]"."""
    recorded_device_us: float | None = None
    recorded_host_us: float | None = None
    recorded_share: float = 0.0
    """Of the trace's device time (host time where the trace has no device), all `count` calls together."""
    measured_us: float | None = None
    measurement: Measurement | None = None
    simulated_us: dict[str, float] = {}
    """By SoC, in the order asked for."""
    bound: str | None = None
    """On the first SoC asked for."""
    simulated: dict[str, Simulated] = {}
    initializer: str | None = None
    assumptions: tuple[Assumption, ...] = ()


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="record"):
    """First line of a result file."""

    schema_version: int = SCHEMA_VERSION
    opreplay_version: str
    started_at: str
    """UTC, ISO 8601."""
    trace: dict[str, object]
    environment: dict[str, object]
    options: dict[str, object]


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag="summary", tag_field="record"):
    """Last line of a result file; a file without one was interrupted."""

    ops: int
    replayed: int
    skipped: int
    failed: int
    reasons: dict[str, int]
    """Reason kind → number of ops."""
    covered_share: float
    """Share of recorded time that the replayed ops own."""
    recorded_us: float
    """Of all ops in the plan, all calls, in the time that `recorded_share` refers to."""
    measured_us: float
    """Of the replayed ops, median times count."""
    simulated_us: dict[str, float]
    wall_s: float
    interrupted: bool = False
