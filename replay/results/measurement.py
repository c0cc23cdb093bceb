# pyright: strict
"""Possible problems of a measurement: a kind from a fixed list, its numbers, and its text."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from opreplay.replay.ir.describe import time_text
from opreplay.replay.results.stats import median_ranks

WarningKind = Literal[
    "few samples",
    "noisy",
    "timer resolution",
    "unstable clock",
    "other load",
    "throttled",
    "launch-bound",
    "cache partly warm",
    "part of the op",
    "not captured",
    "first call",
    "not settled",
    "interrupted",
    "one thread",
    "threads waited",
]
KINDS: tuple[WarningKind, ...] = get_args(WarningKind)

_TEXTS: dict[WarningKind, str] = {
    "few samples": "{samples:.0f} of {wanted:.0f}",
    "noisy": "interquartile range is {iqr_share:.0f} % of the median",
    "timer resolution": "the clock resolves {resolution_us:.3g} us, and a sample takes {sample_us:.3g} us",
    "unstable clock": "a fixed workload took {before_us:.3g} us before the op and {after_us:.3g} us after it",
    "other load": "a fixed workload took {times:.2f} times its best time of this run",
    "throttled": "the processor was throttled {events:.0f} times because of heat or power",
    "launch-bound": "the host takes {host_us:.3g} us to launch a call, the device {device_us:.3g} us to run it",
    "cache partly warm": "{flushed_bytes:.3g} of {cache_bytes:.3g} bytes of cache were flushed",
    "not captured": "the op cannot run in a CUDA graph; its calls were launched one by one",
    "first call": "--set op_limit left no time for a second call; the {first_s:.3g} s include setup",
    "not settled": "the last two calls took {before_us:.3g} and {last_us:.3g} us; a longer --set op_limit may help",
    "interrupted": (
        "other programs used the processor in {interrupted:.0f} of {samples:.0f} samples; {left_out_share:.0f} % of "
        "the time of the samples was spent waiting for the processor and is excluded"
    ),
    "one thread": "{threads:.0f} threads took {threads_us:.3g} us, because they waited for processors",
    "threads waited": "{threads:.0f} threads waited {waited_s:.3g} s for processors in the {took_s:.3g} s of measuring",
    "part of the op": "{share:.3g} of the op ran; times are scaled up",
}


class MeasureWarning(msgspec.Struct, frozen=True, kw_only=True):
    """One reason to trust a measurement less."""

    kind: WarningKind
    data: dict[str, float] = {}
    """Name → number, for the text of the warning; each name contains the unit."""

    def __str__(self) -> str:
        """Return text such as "few samples: 3 of 8", or only the kind if the file lacks the numbers."""
        percent = {name: 100 * value for name, value in self.data.items() if name.endswith("_share")}
        try:
            return f"{self.kind}: {_TEXTS[self.kind].format(**{**self.data, **percent})}"
        except KeyError:
            return self.kind


def kind_of(warning: MeasureWarning | str) -> str:
    """Return the kind of a warning; if it is text, as in older files, the part before the colon."""
    return warning.kind if isinstance(warning, MeasureWarning) else warning.partition(":")[0]


CacheState = Literal["cold", "warm"]
"""Whether an op finds its arguments in the device's caches.

"warm": it does, as in a loop. "cold": it does not, like most ops in a model.
"""
RunCache = Literal["cold", "warm", "step"]
"""Cache state of a run. "step": an op's arguments have the same reuse distance in the cache as in the recorded step."""
MeasuredCache = Literal["cold", "warm", "step", "sequence"]
"""Cache state in which an op was measured. "sequence": the caches contained what the ops before it left there."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one replayed op in microseconds per call, with the clock's overhead subtracted."""

    median_us: float
    iqr_us: float
    min_us: float
    max_us: float
    samples: int
    calls_per_sample: int
    ci_low_us: float | None
    ci_high_us: float | None
    """Upper end of the order-statistic 95 % confidence interval of the median.

    It is None with fewer than six samples, even if a value is passed. The smallest and the largest of so few samples
    enclose the median with less than 95 % confidence.
    """
    warnings: tuple[MeasureWarning | str, ...] = ()
    """Reasons to trust the measurement less; text in files of schema 1."""
    part: float = 1.0
    """Share of the op's work that was run. The times are those of this part, divided by this share."""
    deciles_us: tuple[float, ...] = ()
    """Quantiles 0, 0.1, ..., 1 of the samples."""
    outliers: int = 0
    """Number of samples over three interquartile ranges above the upper quartile. They are not excluded."""
    cache: MeasuredCache = "warm"
    host_us: float | None = None
    """Time that the host needs to launch a call; None if it is part of the call's time."""
    graph: bool = False
    """Whether the calls of a sample were launched together, as a captured graph."""
    gauge_us: tuple[float, float] | None = None
    """Time of a fixed workload (gauge) on the same device, measured along with the samples.

    The two values are medians over the first and the second half of the samples.
    """
    relative: float | None = None
    """Median over the samples of the sample's time relative to the gauge (fixed workload) readings around it.

    A time is divided by a root of the product of these readings (see `measure.against_gauge`). Only ratios of the value
    between runs are meaningful. None if the device has no gauge.
    """
    relative_error: float | None = None
    """Standard error of the logarithm of `relative`, from batch means; None with fewer than 16 samples."""
    median_error: float | None = None
    """Standard error of the logarithm of `median_us`, from batch means; None with fewer than 16 samples."""
    visits: tuple[tuple[float, ...], ...] = ()
    """(median of the samples, medians of the gauges) of each round of samples. Rounds are far apart in the run."""
    first_call_us: float | None = None
    """Time of the very first call, which may compile, tune or load.

    It is not included in the other times, except with the warning "first call".
    """
    repeated: int = 0
    """Number of samples discarded and repeated because another program had the processor. No time includes them."""
    threads: int | None = None
    """Threads that an op could use on the CPU; None for other devices and in older files."""

    def __post_init__(self) -> None:
        """Drop the interval of too few samples. In older files, a single sample gave an interval without width."""
        if median_ranks(self.samples) is None:
            msgspec.structs.force_setattr(self, "ci_low_us", None)
            msgspec.structs.force_setattr(self, "ci_high_us", None)

    @property
    def low_us(self) -> float:
        """Lower end of the interval, or the smallest sample if there is no interval."""
        return self.min_us if self.ci_low_us is None else self.ci_low_us

    @property
    def high_us(self) -> float:
        """Upper end of the interval, or the largest sample if there is no interval."""
        return self.max_us if self.ci_high_us is None else self.ci_high_us

    def __repr__(self) -> str:
        """Return the median with its interval, how it was measured, and every reason to trust it less."""
        samples = f"{self.samples} sample{_s(self.samples)} of {self.calls_per_sample} call{_s(self.calls_per_sample)}"
        threads = "" if self.threads is None else f", {self.threads} thread{_s(self.threads)}"
        sure = "all of them" if self.ci_low_us is None else "95 %"
        interval = f"{sure}: {time_text(self.low_us)} to {time_text(self.high_us)}; " if self.samples > 1 else ""
        text = f"{time_text(self.median_us)} per call ({interval}{samples}, {self.cache} caches{threads})"
        return "\n  ".join([text, *(f"warning: {warning}" for warning in self.warnings)])


def _s(count: int) -> str:
    return "" if count == 1 else "s"
