# pyright: strict
"""Corrects predicted times by factors learned from measured calls.

Uses a Gaussian process over log(measured / predicted). Two calls are more similar if they share more of op, kernel
family, kernel, device generation and cache state. They are also more similar if their times and sizes are closer. The
measured calls are in `devices/measured_calls.csv`, written by `python -m benchmarks.device_model fit`.
"""

from __future__ import annotations

import csv
from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import exp, log2
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from opreplay.traces.arrays import Bools, Floats, Ints

    Codes = Ints
    Compared = tuple[Codes, Floats, Floats]

FILE = "measured_calls.csv"

Reach = Literal["always", "near", "broad"]
COMPONENTS: tuple[tuple[tuple[str, ...], Reach, float], ...] = (
    (("family", "generation"), "always", 0.009),
    (("op",), "always", 0.009),
    (("op", "kernel"), "always", 0.005),
    (("op", "kernel", "generation"), "always", 0.0095),
    (("op", "kernel"), "near", 0.017),
    (("op", "kernel", "generation"), "near", 0.064),
    (("form", "generation"), "broad", 0.01),
    (("form", "state"), "broad", 0.015),
    (("op", "state"), "always", 0.003),
    (("op", "kernel", "state"), "broad", 0.004),
)
"""Components of the covariance of two calls, as (traits, reach, variance).

A component counts if the two calls share all its traits. With the reach "always", it adds its full variance. With
another reach, the variance decreases with the distance between the calls, as given in `REACHES`.
"""
PRODUCTS = 0.03
"""Factor on the variances in `COMPONENTS` for matrix products.

Components with the reach "near" are not multiplied. Predictions of products are right on average, so a few shapes say
little about others. With the full variances, the prediction error for products of a left-out source is 27 % instead of
15 %.
"""
REACHES: dict[Reach, tuple[float, float, float, float]] = {
    "near": (0.25, 0.8, 2.15, 0.31),
    "broad": (1.8, 2.4, 4.5, 0.9),
}
"""Distances between two calls at which their similarity falls to exp(-1/2), by reach.

The four distances are octaves of time, octaves of elements, octaves of the last dimension, and the difference in the
share of launch time.
"""
NOISE = 0.01
"""Noise variance of a single call."""
FULL_WEIGHT_CALLS = 4
"""Number of measured calls of an op on a device generation from which each has its full weight.

If there are fewer calls, each counts less. A single call counts half.
"""
DOUBTED = 3.0
"""Threshold of disagreement above which a call gets less weight.

The disagreement is the call's squared deviation from the prediction by all other calls, divided by that prediction's
variance. Calls exceeded the threshold for two reasons. Either their contents decided the time (boxes, divisors), or the
source was wrong (a time 70 times shorter than others, for which the source later published one 16 times as long).
"""
LOOKS = 2
"""Number of rounds in which each call is compared with the others.

One round is not enough: after noise is added to one call, another call may agree with the rest.
"""
# All of these were chosen to predict calls, ops, sources and projects that were left out (docs/ascend-model.md).
MOST_LOG = 10.0
"""Limit on the logarithm of a learned factor. It is this large because slow paths of factor 20,000 were measured
(8-byte gcd).
"""
MOST_REMEMBERED = 1 << 14
"""Size of the cache of corrections. A call's correction is needed again if the call is predicted on another SoC of the
generation or in another cache state.
"""


PRIOR = sum(variance for _, _, variance in COMPONENTS) + NOISE
"""Prior variance of a call that shares no trait with a measured call."""


class Traits(msgspec.Struct, frozen=True):
    """Properties of a call by which its similarity to other calls is computed."""

    op: str
    """For an aten op, the types of the kernels that it runs; for any other op, its name."""
    family: str
    """Family of the kernel that takes longest; `form` and `kernel` describe that kernel, too."""
    form: str
    kernel: str
    """Type of the kernel. It also says whether the kernel works along a dimension other than the last, or on groups of
    channels.
    """
    generation: str
    state: str
    """State of the caches: "cold", "warm", or "loop" for the state in a benchmark's loop."""
    log_time: float
    """Base-2 logarithm of the predicted time in microseconds."""
    log_elements: float
    log_row: float
    """Base-2 logarithm of the last dimension."""
    launch: float
    """Share of the predicted time that launching kernels takes."""


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """A factor that corrects a prediction, and the measured calls that it is based on."""

    factor: float
    """Expected ratio of measured to predicted time."""
    socs: frozenset[str]
    """Devices on which the op was measured; empty if it was measured on none."""
    is_measured: bool = False
    """Whether the op was measured."""
    calls: int
    """Number of measured calls of the op on this device generation.

    If there are none, it is the number on any generation; if that is also 0, the number for the kernel family.
    """
    beyond: bool = False
    """Whether the call exceeds the calls counted in `calls`: it takes more than twice as long as the longest of them,
    or has more than twice as many elements.
    """


KEYS: tuple[tuple[str, ...], ...] = tuple(
    dict.fromkeys([*(key for key, _, _ in COMPONENTS), ("op", "generation"), ("family",)])
)
TRAITS = tuple(attrgetter(*key) for key in KEYS)
FAMILY, OP, OP_HERE = (KEYS.index(key) for key in (("family",), ("op",), ("op", "generation")))


class Learned:
    """Measured calls, prepared to correct predictions."""

    def __init__(self, calls: Sequence[Traits], pulls: Sequence[float], socs: Sequence[str] = ()) -> None:
        """Prepare measured calls.

        `socs` are the devices on which they were measured. `pulls` are the calls' weights in predictions (see
        `pulls_of`). A prediction multiplies them by the similarity of the calls.
        """
        import numpy as np

        self._codes: list[dict[object, int]] = [{} for _ in KEYS]
        groups = [self._groups_of(call) for call in calls]
        self._groups = np.array(groups, dtype=np.int64).reshape(len(calls), len(KEYS))
        self._at = _places(calls)
        self._weights = _weights(calls)
        self._pulls: Floats = np.array(pulls, dtype=np.float64)
        self._socs: tuple[str, ...] = tuple(socs)
        self.ask = lru_cache(maxsize=MOST_REMEMBERED)(self._ask)
        """`_ask` with a cache. It returns the correction of a call and the measured calls behind it."""

    @classmethod
    def of(cls, calls: Sequence[Traits], logs: Sequence[float], socs: Sequence[str] = ()) -> Learned:
        """Learn from measured calls; `logs` are their values of log(measured / predicted)."""
        return cls(calls, cls(calls, [0.0] * len(calls)).pulls_of(logs), socs)

    def pulls_of(self, logs: Sequence[float]) -> list[float]:
        """Return the weight of each measured call in predictions of other calls.

        `logs` are log(measured / predicted). A call that disagrees with the others gets less weight. For this, its
        noise is raised until its squared deviation is at most `DOUBTED` times its variance. A call of an op with fewer
        than `FULL_WEIGHT_CALLS` measurements also gets less weight.
        """
        import numpy as np

        targets, covariances = self._doubted(logs)
        return np.linalg.solve(covariances, targets).tolist() if len(targets) else []

    def left_out(self, logs: Sequence[float], parts: Sequence[Hashable]) -> list[Correction]:
        """Return the correction of each call, learned only from calls with another value in `parts`, e.g. from another
        source.

        Nothing is refitted. The weights without a part follow from the full weights and the inverse of the covariances.
        """
        import numpy as np

        targets, covariances = self._doubted(logs)
        inverse = np.linalg.inv(covariances)
        pulls = inverse @ targets
        calls = self._groups, self._at, self._weights
        alike, across = (self._alike(calls, calls, across_states=flag) for flag in (False, True))
        numbers = np.unique([str(part) for part in parts], return_inverse=True)[1]
        out: dict[int, Correction] = {}
        for number in range(numbers.max(initial=-1) + 1):
            inside, rest = np.nonzero(numbers == number)[0], np.nonzero(numbers != number)[0]
            moved = np.linalg.solve(inverse[np.ix_(inside, inside)], pulls[inside])
            without = pulls[rest] - inverse[np.ix_(rest, inside)] @ moved
            for row in inside.tolist():
                same = self._groups[rest] == self._groups[row]
                covariance = (alike if same[:, OP].any() else across)[row, rest]
                out[row] = self._correction(float(covariance @ without), same, self._at[row], rest)
        return [out[row] for row in range(len(targets))]

    def _doubted(self, logs: Sequence[float]) -> tuple[Floats, Floats]:
        """Return two values: the clipped `logs`, and the covariances of the calls, which include each call's noise."""
        import numpy as np

        targets = np.clip(np.array(logs, dtype=np.float64), -MOST_LOG, MOST_LOG)
        calls = self._groups, self._at, self._weights
        alike = self._alike(calls, calls) + np.diag(NOISE + self._doubt_of_few())
        noise = np.zeros(len(targets))
        for _ in range(LOOKS if len(targets) else 0):
            inverse = np.linalg.inv(alike + np.diag(noise))
            unsure = 1.0 / np.diag(inverse)
            off = (inverse @ targets * unsure) ** 2
            by_others = unsure - noise
            noise = np.where(off > DOUBTED * by_others, off / DOUBTED - by_others, 0.0)
        return targets, alike + np.diag(noise)

    def _doubt_of_few(self) -> Floats:
        """Return the noise variance to add to each call of an op with fewer than `FULL_WEIGHT_CALLS` calls.

        For an op with a single call, it is the prior variance. For an op with more calls, it is less.
        """
        import numpy as np

        _, which, counts = np.unique(self._groups[:, OP_HERE], return_inverse=True, return_counts=True)
        number = counts[which]
        return np.where(
            number < FULL_WEIGHT_CALLS, PRIOR * (1 / number - 1 / FULL_WEIGHT_CALLS) / (1 - 1 / FULL_WEIGHT_CALLS), 0.0
        )

    def _groups_of(self, call: Traits) -> list[int]:
        """Return a number for each entry of `KEYS`: equal for all calls whose traits in that entry are equal."""
        return [codes.setdefault(traits(call), len(codes)) for codes, traits in zip(self._codes, TRAITS, strict=True)]

    @staticmethod
    def _alike(a: Compared, b: Compared, *, across_states: bool = False) -> Floats:
        """Return the covariances between the calls of `a` (rows) and `b` (columns).

        `across_states` leaves out the components that apply only to calls with the same cache state.
        """
        import numpy as np

        (groups_a, at_a, weights_a), (groups_b, at_b, weights_b) = a, b
        apart = (at_a[:, None, :] - at_b[None, :, :]) ** 2
        likeness = {reach: np.exp(-0.5 * (apart / np.array(over) ** 2).sum(axis=2)) for reach, over in REACHES.items()}
        weights = weights_a[:, None] * weights_b[None, :]
        alike = np.zeros(weights.shape)
        for key, reach, variance in COMPONENTS:
            if across_states and "state" in key:
                continue
            column = KEYS.index(key)
            same = groups_a[:, None, column] == groups_b[None, :, column]
            alike += variance * same * (likeness[reach] if reach == "near" else weights * likeness.get(reach, 1.0))
        return alike

    def _ask(self, call: Traits) -> Correction:
        """Return the correction of a call, learned from the measured calls.

        If the op was never measured, the covariance components for equal cache states are left out. They made the
        predictions of such ops worse.
        """
        import numpy as np

        groups = np.array([self._groups_of(call)], dtype=np.int64)
        asked_for = groups, _places([call]), _weights([call])
        same = self._groups == groups[0]
        known = bool(same[:, OP].any())
        measured = self._groups, self._at, self._weights
        alike = self._alike(asked_for, measured, across_states=not known)[0]
        return self._correction(float(alike @ self._pulls), same, asked_for[1][0], np.arange(len(self._pulls)))

    def _correction(self, log: float, same: Bools, at: Floats, among: Codes) -> Correction:
        """Return the correction exp(`log`) of a call at position `at`, with its evidence.

        `among` are the indices of the calls learned from. `same` has a row for each of these calls and a column for
        each of `KEYS`. It says whether the call shares that key with the corrected call.
        """
        import numpy as np

        like = next((same[:, column] for column in (OP_HERE, OP, FAMILY) if same[:, column].any()), same[:, OP])
        ops: list[int] = among[same[:, OP]].tolist()
        return Correction(
            factor=exp(log),
            socs=frozenset(self._socs[row] for row in ops) if self._socs else frozenset(),
            calls=int(like.sum()),
            is_measured=bool(len(ops)),
            beyond=bool((at[:2] > self._at[among][like][:, :2].max(axis=0, initial=-np.inf) + 1.0).any()),
        )


def _places(calls: Sequence[Traits]) -> Floats:
    import numpy as np

    rows = [(c.log_time, c.log_elements, c.log_row, c.launch) for c in calls]
    return np.array(rows, dtype=np.float64).reshape(len(calls), 4)


def _weights(calls: Sequence[Traits]) -> Floats:
    """Return the factor on each call's standard deviation: sqrt(`PRODUCTS`) for matrix products, 1 for other calls."""
    import numpy as np

    return np.array([PRODUCTS**0.5 if call.form == "matmul" else 1.0 for call in calls], dtype=np.float64)


class LearnedCall(msgspec.Struct, frozen=True):
    """A row of the file of measured calls."""

    traits: Traits
    log_ratio: float
    """log(measured / predicted)."""
    source: str
    soc: str
    pull: float
    """Weight of the call in predictions, from `Learned.pulls_of`."""
    key: str
    """Key of the call and its device, which identifies the row in other tables."""


@lru_cache(maxsize=1)
def learned_calls() -> tuple[LearnedCall, ...]:
    """Return the shipped measured calls."""
    text = (Path(__file__).parents[1] / "devices" / FILE).read_text(encoding="utf-8")
    rows: list[LearnedCall] = []
    for row in csv.DictReader(text.splitlines()):
        traits = msgspec.convert(row, Traits, strict=False)
        rows.append(
            LearnedCall(traits, float(row["log_ratio"]), row["source"], row["soc"], float(row["pull"]), row["key"])
        )
    return tuple(rows)


@lru_cache(maxsize=1)
def shipped_correction() -> Learned:
    """Return the correction learned from the calls shipped with the package."""
    rows = learned_calls()
    return Learned([row.traits for row in rows], [row.pull for row in rows], [row.soc for row in rows])


def octaves(number: float) -> float:
    """Return the base-2 logarithm of a number; 0 for numbers below 1."""
    return log2(max(1.0, number))
