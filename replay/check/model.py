# pyright: strict
"""Results of a check, independent of torch: the verdict of each point with its evidence, and the speed of the op."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from opreplay.replay.ir.model import Assumption, ReplayOp
from opreplay.replay.results.records import Simulated
from opreplay.traces.errors import UsageError

Verdict = Literal["pass", "fail", "missing", "not reached", "refused", "not applicable"]
"""Verdict of a trial or point.

Missing: the op has not registered what the point checks. Refused: a clear error says that the op does not support this.
Not reached: the check was interrupted earlier, its process was ended from outside, or no call was left to try.
"""

POINTS: dict[str, str] = {
    "schema": "the op writes and aliases exactly what its schema declares",
    "shape inference": "the fake kernel returns the sizes, strides and dtypes of real results",
    "correctness": "results match the reference, for many sizes and layouts",
    "dtypes": "each dtype gives right results or a clear error",
    "broadcast, scalars": "the op broadcasts and accepts zero-dimensional tensors, like the reference",
    "dynamic shapes": "torch.export and torch.compile accept symbolic sizes without a graph break",
    "gradient": "gradients, and second-order ones if they exist, pass gradcheck and match the reference",
    "in-place, out=": "in-place and out= variants agree with the functional one",
    "determinism": "every run returns the same bits",
    "memory": "no memory is kept between calls; the peak of temporary memory is reported",
    "asynchrony": "the call returns before the device is done",
    "bad input": "the op raises an exception that says what is wrong, and never crashes",
    "CPU fallback": "there is a kernel for the CPU",
    "autocast": "a cast policy is registered",
    "vmap": "torch.vmap returns the same as a loop",
    "ONNX export": "an ONNX export is registered",
    "speed": "its time is compared with the reference's on the same tensors",
}
"""Name of each point → the claim that the point checks, in the order of the report."""

REQUIRED = ("schema", "shape inference", "correctness", "bad input")
"""Points whose failure makes the whole check fail, unless the user names other points."""

_ALSO = {
    "shapes": "shape inference",
    "fake": "shape inference",
    "broadcast": "broadcast, scalars",
    "scalars": "broadcast, scalars",
    "dynamic": "dynamic shapes",
    "in-place": "in-place, out=",
    "inplace": "in-place, out=",
    "out": "in-place, out=",
    "out=": "in-place, out=",
    "cpu": "CPU fallback",
    "onnx": "ONNX export",
}
"""Alternative short names of points."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, tag="finding"):
    """The result of one trial."""

    case: str = ""
    """The call in the notation of `opreplay.replay.ir.notation`, after a prefix for its special property, e.g.
    "transposed: my::op(…)". "" until the trial adds it.
    """
    verdict: Verdict
    detail: str = ""
    ulp: float | None = None
    """Largest distance to the exact result, in units in the last place of the result's dtype."""
    error: float | None = None
    """Largest distance to the float64 result, relative to that result."""

    @property
    def kind(self) -> str:
        """The special property of the call, e.g. "transposed"."""
        return self.case.partition(":")[0]


class PointResult(msgspec.Struct, frozen=True, kw_only=True):
    """One point and the results of its trials."""

    point: str
    verdict: Verdict
    cases: tuple[Finding, ...]
    """Findings; those that decide the verdict come first."""
    detail: str

    def of(self, *verdicts: Verdict) -> list[Finding]:
        """Return the cases with these verdicts."""
        return [case for case in self.cases if case.verdict in verdicts]


class Speed(msgspec.Struct, frozen=True, kw_only=True, tag="speed"):
    """Time of the op compared with the time of the reference, on the same tensors."""

    ratio: float
    """The op's time divided by the reference's; if it is above 1, the op is slower.

    It is estimated from the ratio within each timed pair of calls, so it differs from the ratio of the medians.
    """
    low: float
    high: float
    """Upper end of the confidence interval of the ratio. In at most one check in a hundred, the true ratio lies outside
    the interval, however often the interval is inspected.
    """
    pairs: int
    """Number of timed pairs; a pair is one sample of the op and one of the reference, alternately."""
    op_us: float
    reference_us: float
    """Median time of the reference, in microseconds per call; `op_us` is the op's median time."""
    case: str
    settled: bool = True
    """Whether the interval became as narrow as requested; False if time ran out first."""

    @property
    def verdict(self) -> Literal["faster", "slower", "no difference", "unclear"]:
        """The verdict from the interval; "unclear" if time ran out before a difference of a tenth could be detected."""
        if self.low > 1.0:
            return "slower"
        if self.high < 1.0:
            return "faster"
        return "no difference" if self.settled else "unclear"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """All results of a check."""

    op: str
    against: str
    """Description of the reference."""
    device: str
    seed: int
    environment: dict[str, object]
    points: tuple[PointResult, ...]
    interrupted: bool = False
    """Whether the check was interrupted before the last trial; the remaining trials are "not reached"."""
    speed: Speed | None = None
    """Speed on the first call."""
    speed_large: Speed | None = None
    """Speed on a large call, if the first call is small or other calls are larger."""
    simulated: dict[str, Simulated] = {}
    """Simulated time of the timed case, by device."""
    simulated_reference: dict[str, Simulated] = {}
    """Simulated time of the reference, by device, if the reference is an op."""
    cases: tuple[str, ...] = ()
    """The base calls from which all variants were made."""
    assumptions: tuple[Assumption, ...] = ()
    """Assumptions about the cases, for facts that the user did not give."""
    notes: tuple[str, ...] = ()

    def point(self, name: str) -> PointResult:
        """Return the result of one point, by its full or short name.

        Raises UsageError for an unknown name, KeyError for a point that was not requested.
        """
        wanted = point_named(name)
        for judged in self.points:
            if judged.point == wanted:
                return judged
        raise KeyError(wanted)

    def failed(self, require: Sequence[str] | None = None) -> tuple[PointResult, ...]:
        """Return the points of `require` that failed, are missing or were not reached.

        `require=None` means the points of `REQUIRED`. If only some points were checked, None also includes every other
        checked point that failed or was not reached. Raises UsageError for an unknown name.
        """
        some = require is None and len(self.points) < len(POINTS)
        wanted = {point_named(name) for name in (REQUIRED if require is None else require)}
        return tuple(
            judged
            for judged in self.points
            if (judged.point in wanted and judged.verdict in ("fail", "missing", "not reached"))
            or (some and judged.verdict in ("fail", "not reached"))
        )


class Interrupted(KeyboardInterrupt):
    """Raised if a check is interrupted; holds the findings so far."""

    def __init__(self, partial: CheckResult) -> None:
        super().__init__("the check was interrupted")
        self.partial = partial


def point_named(text: str) -> str:
    """Return the point for a full or short name, ignoring case. Raises UsageError for any other text."""
    name = " ".join(text.split()).lower()
    names = {point.lower(): point for point in POINTS} | _ALSO
    if name not in names:
        raise UsageError(f"{text!r} is not a point of a check", hint=f"Points are {'; '.join(POINTS)}.")
    return names[name]


def parse_points(text: str) -> tuple[str, ...]:
    """Parse points separated by commas; "all" means every point. Raises UsageError."""
    if text.strip().lower() == "all":
        return tuple(POINTS)
    if text.strip().lower() in ("", "none"):
        return ()
    return tuple(dict.fromkeys(point_named(part) for part in text.split(",") if part.strip()))


_ORDER: tuple[Verdict, ...] = ("fail", "missing", "not reached", "pass", "refused", "not applicable")
"""Verdicts by priority: the first one that any case has becomes the verdict of the point."""


def point_result(point: str, findings: Sequence[Finding]) -> PointResult:
    """Return the result of a point, with the verdict of its worst case. If some cases pass and others are refused, the
    point passes.
    """
    ordered = sorted(findings, key=lambda finding: _ORDER.index(finding.verdict))
    verdict: Verdict = ordered[0].verdict if ordered else "not applicable"
    return PointResult(
        point=point, verdict=verdict, cases=tuple(ordered), detail=_detail(verdict, ordered) + _untried(point, findings)
    )


_MADE_UP = ("prime sizes", "uneven sizes", "multiples")
_COLUMNS = re.compile(r"\w\[(?:\d+,)*(\d+)\]")
EVEN = 4
"""Minimum greatest common divisor of all tried row lengths for a note that no uneven row was tried. If the divisor is
smaller, some row or half of a row has an odd length.
"""


def _untried(point: str, findings: Sequence[Finding]) -> str:
    """Return a note that no row of uneven length was tried; "" if one was, or if no sizes were generated."""
    made_up = [finding for finding in findings if finding.kind in _MADE_UP]
    if point != "correctness" or not made_up or any(finding.verdict == "not reached" for finding in made_up):
        return ""
    calls = [finding.case for finding in made_up if finding.verdict in ("pass", "fail")]
    columns = math.gcd(*(int(match[1]) for call in calls if (match := _COLUMNS.search(call))))
    if not calls:
        return "; no uneven row length was tried: the op refuses every generated size"
    return f"; no uneven row length was tried: all are multiples of {columns}" if columns >= EVEN else ""


def _detail(verdict: Verdict, ordered: Sequence[Finding]) -> str:
    """Return one line with the number of cases and the first case that decides the verdict."""
    if not ordered:
        return "nothing to try"
    deciding = [finding for finding in ordered if finding.verdict == verdict]
    first, several = deciding[0], len(ordered) > 1
    count = str(len(deciding)) if len(deciding) == len(ordered) else f"{len(deciding)} of {len(ordered)}"
    said = {"fail": "failed", "missing": "missing"}.get(verdict)
    if said is not None:
        return f"{f'{count} {said}: ' if several else ''}{first.case}: {first.detail}"
    if verdict == "not reached":
        return f"{count} not reached: {first.detail}"
    parts = _passed(verdict, ordered, deciding)
    refused = [finding for finding in ordered if finding.verdict == "refused"] if verdict == "pass" else []
    if refused:
        parts.append(f"refused: {', '.join(dict.fromkeys(f.kind for f in refused))} ({refused[0].detail})")
    return "; ".join(parts)


def _passed(verdict: Verdict, ordered: Sequence[Finding], deciding: Sequence[Finding]) -> list[str]:
    """Return texts about the cases that decide a point: how many passed, and their largest distance from float64.

    If no distance was measured, the detail of the only case stands in its place.
    """
    others = sum(finding.verdict == "not applicable" for finding in ordered)
    count = f"{len(deciding)} passed" + (f", {others} not applicable" if others else "")
    parts = [count] if verdict == "pass" and len(ordered) > 1 else []
    ulps = [(finding.ulp, finding) for finding in deciding if finding.ulp is not None]
    if ulps:
        ulp, worst = max(ulps, key=lambda pair: pair[0])
        parts.append(f"at most {ulp:.3g} ulp from float64 ({worst.kind})")
    elif deciding[0].detail and (len(deciding) == 1 or verdict != "pass"):
        parts.append(deciding[0].detail)
    return parts


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """Everything that the process of a checked op needs before the first trial."""

    op: str
    against: str | None = None
    shapes: tuple[str, ...] = ()
    recorded: tuple[ReplayOp, ...] = ()
    """Ops of a trace. Their recorded calls are the cases; `shapes` is then empty."""
    points: tuple[str, ...] = tuple(POINTS)
    plugins: tuple[str, ...] = ()
    init_modules: tuple[str, ...] = ()
    device: str = "cpu"
    seed: int = 0
    threads: int | None = None
    speed_s: float = 20.0
    """Maximum duration of the time comparison, in seconds."""
    memory_bytes: int
    """Memory limit for the tensors of one case, in bytes."""
    socs: tuple[str, ...] = ()
    lost: dict[str, str] = {}
    """Cases to leave out because they crashed or hung an earlier process before its first trial. Maps the text of each
    case to how that process ended.
    """
    notes: tuple[str, ...] = ()
    """Notes about the cases."""


class Listed(msgspec.Struct, frozen=True, kw_only=True, tag="listed"):
    """Names of every point's trials, in order, so that a trial that hangs can be named."""

    op: str
    against: str
    trials: dict[str, tuple[str, ...]]
    cases: tuple[str, ...]
    facts: dict[str, object]
    assumptions: tuple[Assumption, ...] = ()


class Trying(msgspec.Struct, frozen=True, kw_only=True, tag="trying"):
    """Message about a call before the first trial: the call that is made next, or "" after it returned."""

    case: str


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """The result of the time comparison."""

    finding: Finding
    speed: Speed | None = None
    simulated: dict[str, Simulated] = {}
    simulated_reference: dict[str, Simulated] = {}


class Listing(msgspec.Struct, frozen=True, kw_only=True, tag="listing"):
    """Request to list the trials."""

    lost: dict[str, str] = {}
    """Text of each case to leave out → how it ended an earlier process (see `Setup.lost`)."""


class Trial(msgspec.Struct, frozen=True, kw_only=True, tag="trial"):
    """Request to run one trial."""

    point: str
    number: int


def counts(result: CheckResult) -> Mapping[Verdict, int]:
    """Return the number of points with each verdict."""
    verdicts = [judged.verdict for judged in result.points]
    return {verdict: verdicts.count(verdict) for verdict in _ORDER}
