"""Distributions of lengths and indices: shared options, histogram files, Zipf's law.

Lengths are drawn on the CPU. Every device thus gets the same batch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, Option, OptionValue
from opreplay.traces.folders import read_regular

HISTOGRAM_BYTES = 1 << 20
SIGMA = 1.0
"""Standard deviation of the logarithm of log-normal lengths. Prompts in public serving traces have about the same."""
_MULTIPLIER = 2_654_435_761
"""Prime (Knuth's hash multiplier) that scatters popular indices over the whole table, as real ids are."""

LENGTH_OPTIONS = (
    Option(
        name="distribution",
        type=str,
        default="max",
        choices=("max", "uniform", "lognormal", "histogram"),
        help=(
            "Context lengths: as long as possible, uniform, log-normal or from a histogram; recorded totals stay exact."
        ),
    ),
    Option(name="histogram", type=str, default="", help="JSON file with a list of [length, count]."),
)
INDEX_OPTIONS = (
    Option(
        name="distribution",
        type=str,
        default="uniform",
        choices=("uniform", "zipf", "histogram"),
        help="Distribution of the indices.",
    ),
    Option(name="exponent", type=float, default=1.0, low=0.0, help="Exponent of Zipf's law; 0 is uniform."),
    Option(
        name="histogram",
        type=str,
        default="",
        help="JSON file with one count per bin; the bins divide the index range equally.",
    ),
)


class LengthRule(CustomInit):
    """Base class of initializers that draw lengths. It declares their options and checks the histogram file."""

    options = LENGTH_OPTIONS

    def check_options(self, options: Mapping[str, OptionValue]) -> None:
        check_histogram(options, read_lengths)


class IndexRule(CustomInit):
    """Base class of initializers that draw indices. It declares their options and checks the histogram file."""

    options = INDEX_OPTIONS

    def check_options(self, options: Mapping[str, OptionValue]) -> None:
        check_histogram(options, read_histogram)


class LengthDistribution(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of context lengths, used if the trace does not give each length."""

    kind: str = "max"
    lengths: tuple[int, ...] = ()
    """Measured lengths; used if `kind` is "histogram"."""
    counts: tuple[float, ...] = ()

    def draw(self, count: int, longest: int, generator: torch.Generator) -> torch.Tensor:
        """Return `count` lengths from 1 to `longest`, as an int64 tensor."""
        longest = max(1, longest)
        if self.kind == "uniform":
            return torch.randint(1, longest + 1, (count,), generator=generator)
        if self.kind == "lognormal":
            drawn = torch.randn(count, generator=generator).mul(SIGMA).exp().mul(longest / 8)
            return drawn.round().to(torch.int64).clamp(1, longest)
        if self.kind == "histogram" and count:
            weights = torch.tensor(self.counts, dtype=torch.float64)
            chosen = torch.multinomial(weights, count, replacement=True, generator=generator)
            return torch.tensor(self.lengths, dtype=torch.int64)[chosen].clamp(1, longest)
        return torch.full((count,), longest, dtype=torch.int64)


def length_distribution(context: InitContext) -> LengthDistribution:
    """Return the distribution set by an initializer's `LENGTH_OPTIONS`. Raises InitializerError for an invalid file."""
    kind = str(context.options.get("distribution", "max"))
    if kind != "histogram":
        return LengthDistribution(kind=kind)
    pairs = read_lengths(str(context.options.get("histogram") or ""))
    return LengthDistribution(
        kind=kind, lengths=tuple(length for length, _ in pairs), counts=tuple(count for _, count in pairs)
    )


def check_histogram(options: Mapping[str, OptionValue], read: Callable[[str], object]) -> None:
    """Check the histogram file with `read` if the options set `distribution=histogram`.

    Raises InitializerError if the file is missing or invalid, or if a file is given with another distribution.
    """
    path = str(options.get("histogram") or "")
    if options.get("distribution") == "histogram":
        read(path)
    elif path:
        raise InitializerError("histogram=FILE needs distribution=histogram")


def read_lengths(path: str) -> list[tuple[int, float]]:
    """Return (length, count) pairs from a JSON list of [length, count]. Raises InitializerError for anything else."""
    pairs = _read(path)
    sound = isinstance(pairs, list) and all(_counts(pair) and len(pair) == 2 for pair in pairs)
    lengths, counts = zip(*pairs, strict=True) if sound and pairs else ((), ())
    if not lengths or not all(isinstance(length, int) and length > 0 for length in lengths):
        raise InitializerError(f"{path} must be a list of [length, count] pairs")
    if not any(counts):
        raise InitializerError(f"{path}: all counts are zero")
    return list(zip(lengths, map(float, counts), strict=True))


def draw_indices(context: InitContext, tensor: torch.Tensor, bound: int) -> str:
    """Fill a tensor with indices in [0, bound) according to `INDEX_OPTIONS`, never all equal; return a description."""
    kind = str(context.options.get("distribution", "uniform"))
    if kind == "zipf" and bound > 1:
        chosen = context.options.get("exponent")
        exponent = 1.0 if chosen is None else float(chosen)
        fill.fill_random_integers(tensor, lambda count: _zipf(count, bound, exponent, context.generator), bound)
        return f"Zipf, exponent {exponent:g}, in [0, {bound})"
    if kind == "histogram" and bound > 1:
        counts = read_histogram(str(context.options.get("histogram") or ""))
        fill.fill_random_integers(tensor, lambda count: _spread(count, bound, counts, context.generator), bound)
        return f"from a histogram with {len(counts)} bins, in [0, {bound})"
    fill.integers(tensor, context.generator, 0, max(1, bound))
    return f"uniform in [0, {bound})"


def read_histogram(path: str) -> list[float]:
    """Read a list of counts from a JSON file. Raises InitializerError if it holds anything else."""
    counts = _read(path)
    if not _counts(counts) or not sum(counts):
        raise InitializerError(f"{path} must be a list of counts, not all of them zero")
    return [float(c) for c in counts]


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(c) in (int, float) and 0 <= c < 1e15 for c in values)


def _read(path: str) -> Any:
    if not path:
        raise InitializerError("distribution=histogram needs a file: histogram=FILE")
    try:
        return json.loads(read_regular(path, HISTOGRAM_BYTES))
    except OSError as error:
        raise InitializerError(f"cannot read the histogram {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InitializerError(f"cannot read the histogram {path}: {error}") from None


def _zipf(count: int, bound: int, exponent: float, generator: torch.Generator) -> torch.Tensor:
    """Return int64 [count] indices in [0, bound) that follow Zipf's law.

    The index with popularity rank r has a probability of about r^-exponent. Ranks are drawn by inverting the continuous
    distribution, and are then scattered over the range.
    """
    u = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
    if abs(exponent - 1.0) < 1e-6:
        ranks = (u * math.log(bound + 1)).exp()
    else:
        power = 1.0 - exponent
        ranks = (u * ((bound + 1.0) ** power - 1.0) + 1.0) ** (1.0 / power)
    place = ranks.to(torch.int64).sub(1).clamp(0, bound - 1)
    # Below 2^31 the product fits 64 bits; larger tables keep their order of popularity.
    return place * _MULTIPLIER % bound if bound < 1 << 31 and math.gcd(_MULTIPLIER, bound) == 1 else place


def _spread(count: int, bound: int, counts: list[float], generator: torch.Generator) -> torch.Tensor:
    """Return int64 [count] indices in [0, bound) that follow a histogram.

    The bins divide the range evenly. A bin is drawn in proportion to its count, and then an index in that bin.
    """
    edges = torch.tensor(counts, dtype=torch.float64, device=generator.device).cumsum(0)
    u = torch.rand(2, count, generator=generator, device=generator.device, dtype=torch.float64)
    bins = torch.searchsorted(edges, u[0] * edges[-1], right=True).clamp(max=len(counts) - 1)
    return ((bins + u[1]) * (bound / len(counts))).to(torch.int64).clamp(0, bound - 1)
