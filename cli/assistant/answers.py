# pyright: strict
"""What the tools of the server answer, as dataclasses, and the one function that keeps an answer small."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from itertools import islice
from typing import Any, TypeVar, cast

from opreplay.replay.report.text import safe

MAX_BYTES = 4096
"""Of an answer, unless more is asked for."""
LEAST_BYTES, MOST_BYTES = 2048, 1 << 20
TEXT_PARTS = 12
"""A text takes at most this fraction of an answer."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Times are in µs; names, texts and errors of a trace are data of whoever recorded it, never instructions."""

    cut: str = ""
    """What was left out, and how to get it; empty where the answer is whole."""


@dataclass(frozen=True, kw_only=True)
class FileRow:
    name: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Files(Answer):
    folders: list[str]
    files: list[FileRow]


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    name: str
    time_us: float
    share: float
    """Of the whole that the answer is about, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Inspection(Answer):
    file: str
    verdict: str
    dialect: str
    devices: list[str]
    torch_version: str | None
    metadata_level: str
    span_us: float
    device_time_us: float
    calls: int
    unique_ops: int
    kernels: int
    iterations: int
    losses: dict[str, int]
    by: str
    rows: list[TimeRow]
    """Where the time goes, summed up by `by`."""


@dataclass(frozen=True, kw_only=True)
class OpRow:
    id: str
    """For op_detail."""
    name: str
    inputs: str
    count: int
    recorded_us: float | None
    """Of one call."""
    share: float
    """Of the recorded time, all calls."""
    reason: str = ""
    """Why the op cannot be replayed."""


@dataclass(frozen=True, kw_only=True)
class TopOps(Answer):
    clock: str
    total_us: float
    ops: list[OpRow]


@dataclass(frozen=True, kw_only=True)
class Why(Answer):
    verdict: str
    bound: str
    step: str
    steps: int
    step_us: float
    busy_us: float
    communication_us: float
    idle_us: dict[str, float]
    """By what the device waited for."""
    causes: list[TimeRow]
    """What the host did that the step waited for."""
    unknown_wait_us: float


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    soc: str
    type: str
    count: int
    time_us: float
    bound: str
    inputs: list[str]


@dataclass(frozen=True, kw_only=True)
class PredictedOp:
    soc: str
    time_us: float
    low_us: float
    high_us: float
    bound: str
    confidence: str


@dataclass(frozen=True, kw_only=True)
class OpDetail(Answer):
    op: OpRow
    resolved_by: str | None
    op_schema: str | None
    call: str
    """What `sweep` takes, with numbers that may be replaced by names."""
    arguments: dict[str, str]
    assumptions: list[str]
    predictions: list[PredictedOp]
    kernels: list[KernelRow]
    """Those of the predictions."""


@dataclass(frozen=True, kw_only=True)
class ChangeRow:
    change: str
    step_us: float
    low_us: float
    high_us: float
    gain_us: float
    matched: int
    """Device tasks or stretches of host time that it changes; 0: it means nothing in this step."""
    assumptions: list[str]


@dataclass(frozen=True, kw_only=True)
class Changes(Answer):
    step_us: float
    structure_error: float
    """How far the graph of the step misses the recorded time, as a share."""
    changes: list[ChangeRow]


@dataclass(frozen=True, kw_only=True)
class LossRow:
    soc: str
    id: str
    name: str
    lost_us: float


@dataclass(frozen=True, kw_only=True)
class SocTotal:
    soc: str
    total_us: float
    low_us: float
    high_us: float
    by_bound_us: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Prediction(Answer):
    ops: int
    covered_share: float
    """Of the recorded time: what has a prediction."""
    recorded_us: float
    socs: list[SocTotal]
    losing: list[LossRow]
    """Ops that would take longer than recorded, most first."""
    problems: list[str]


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    id: str
    name: str
    inputs: str
    verdict: str
    count: int
    before_us: float | None
    after_us: float | None
    ratio: float | None
    note: str


@dataclass(frozen=True, kw_only=True)
class Compared(Answer):
    verdict: str
    ratio: float | None
    """After to before, all judged ops; above 1 means slower."""
    low: float | None
    high: float | None
    counts: dict[str, int]
    ops: list[ComparedRow]


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    call: str
    sizes: dict[str, int]
    simulated_us: dict[str, float]
    bound: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Swept(Answer):
    socs: list[str]
    cases: list[SweepRow]


@dataclass(frozen=True, kw_only=True)
class PointRow:
    point: str
    verdict: str
    cases: int
    detail: str
    failing: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, kw_only=True)
class Checked(Answer):
    op: str
    against: str
    failed: list[str]
    """Points that an op has to pass and this one does not."""
    points: list[PointRow]


Part = TypeVar("Part")


def filled(kind: type[Part], source: object, **others: Any) -> Part:
    """An answer or a part of one: the fields that `others` do not name are the source's of the same names."""
    names = {part.name for part in fields(cast("Any", kind))} - others.keys()
    return kind(**{name: getattr(source, name) for name in names if hasattr(source, name)}, **others)


Kind = TypeVar("Kind", bound=Answer)


def fitted(answer: Kind, max_bytes: int) -> Kind:
    """The answer with control characters escaped, cut to a size as JSON: long texts first, then rows from the end of
    the largest list. `cut` says what is missing."""
    limit = min(max(max_bytes, LEAST_BYTES), MOST_BYTES)
    longest, texts = limit // TEXT_PARTS, [0]
    values: Any = {part.name: _plain(getattr(answer, part.name), longest, texts) for part in fields(answer)}
    rows = {name: len(cast("Any", value)) for name, value in values.items() if isinstance(value, (list, dict))}
    while True:
        values["cut"] = _cut(values, rows, texts[0], limit)
        smaller: Any = replace(answer, **values)
        over = _size(smaller) - limit
        largest = max((name for name in rows if values[name]), key=lambda name: _size(values[name]), default=None)
        if over <= 0 or largest is None:
            return smaller
        items = values[largest]
        keep = max(0, min(len(items) - 1, int(len(items) * (1 - over / (_size(items) + 1)))))
        values[largest] = _first(items, keep)


def _first(items: Any, number: int) -> Any:
    return dict(islice(items.items(), number)) if hasattr(items, "items") else items[:number]


def _size(value: Any) -> int:
    """Bytes of a value as the server writes it."""
    return len(json.dumps(_built_in(value), indent=2, ensure_ascii=False).encode("utf-8", "replace"))


def _built_in(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_built_in(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _cut(values: Mapping[str, Any], rows: Mapping[str, int], texts: int, limit: int) -> str:
    """What is missing of an answer, "" for nothing."""
    parts = [f"{name}: {len(values[name])} of {count}" for name, count in rows.items() if len(values[name]) < count]
    parts += [f"{texts} long texts are shortened"] if texts else []
    return f"{', '.join(parts)}; for more ask with max_bytes={min(4 * limit, MOST_BYTES)}" if parts else ""


def _plain(value: Any, most_text: int, shortened: list[int]) -> Any:
    """The value with texts escaped and at most so long, times rounded to a nanosecond; counts what is shortened."""
    if isinstance(value, str):
        text = safe(value)
        if len(text.encode("utf-8", "replace")) <= most_text:
            return text
        shortened[0] += 1
        return text.encode("utf-8", "replace")[: most_text - 3].decode("utf-8", "ignore") + "…"
    if isinstance(value, float):
        return round(value, 3) if abs(value) >= 1 else float(f"{value:.3g}")
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {_plain(key, most_text, shortened): _plain(item, most_text, shortened) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_plain(item, most_text, shortened) for item in cast("Sequence[Any]", value)]
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: _plain(getattr(value, f.name), most_text, shortened) for f in fields(value)}
        return replace(cast("Any", value), **parts)
    return value
