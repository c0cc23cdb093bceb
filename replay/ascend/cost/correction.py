# pyright: strict
"""What measured calls say of others: a factor on the time that a datasheet and the cost forms give, and how sure it is.

A Gaussian process over log(measured over predicted). Two calls are alike as far as they are of one op, kernel family,
dtype and generation of devices, and close in time and sizes; the more of a call's time is moving bytes or computing,
the more it has of what all calls of its generation have in common there. `devices/measured_calls.csv` holds the calls,
`opreplay calibrate --shipped` writes it; `calibrate.calls` owns which and how they are judged.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from math import exp, log, log2
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Codes = npt.NDArray[np.int64]

FILE = "measured_calls.csv"

FAMILY, OP, OP_HERE, OP_DTYPE_HERE = 0.153, 0.286, 1.67, 0.096
"""Variances of what calls of one family, one op, one op on one generation, and of one dtype there, have in common."""
ALIKE = 0.1
"""Variance of what goes with time and sizes, of one op and dtype on one generation."""
REACH = (0.251, 0.805, 2.15, 0.312)
"""Octaves of time, of elements and of the last dimension, and share of launching, over which calls are alike: to
exp(-1/2)."""
CACHES_HERE, CACHES_FORM, COMPUTING_HERE = 0.172, 0.1, 0.038
"""Variances of slopes: over what warm caches save (log), on one generation and of one form there; over the share of
the vector cores' work."""
NOISE = 0.007
"""Variance of one call by itself."""
# All of these were chosen to predict calls of ops and of sources that were left out (docs/ascend-model.md).

SURE: dict[str, float] = {"op here": 1.6, "op elsewhere": 0.75, "family": 0.55, "nothing": 0.7}
"""Standard deviations of the 80 % band by what was measured nearest, as calls, ops and sources that were left out ask
for: 1.28 of a normal distribution where calls of the op are known; the less is known the more variances above exceed
what is usual, as they are those of ops that differ most."""
MOST_LOG = 10.0
"""Largest logarithm of a factor that is learned from: slow paths of 20,000 times were measured (8-byte gcd)."""
MOST_NEAR = 160
"""Measured calls that a band is judged from: the op's own first, then its family's, then its form's."""


class Traits(msgspec.Struct, frozen=True):
    """What a call is compared by."""

    op: str
    family: str
    """Of the kernel that moves most bytes, as of `form` and `dtype`."""
    form: str
    dtype: str
    generation: str
    log_time: float
    """Octaves of the predicted time in microseconds."""
    log_elements: float
    log_row: float
    """Octaves of the last dimension."""
    launch: float
    """Share of starting kernels in the predicted time."""
    vector: float
    """Share of the vector cores' work."""
    caches: float
    """Logarithm of the predicted time on warm caches over that on cold ones, at most 0."""


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """What measured calls make of a prediction."""

    factor: float
    """Measured over predicted, as far as known."""
    band: float
    """Factor of the 80 % band."""
    nearest: str
    """A name of `SURE`."""
    calls: int
    """Measured calls of the op on this generation, else of the op, else of the family."""
    sources: int
    """Sources that these are of."""


class Learned:
    """Measured calls, ready to be asked."""

    def __init__(self, calls: Sequence[Traits], sources: Sequence[str], pulls: Sequence[float]) -> None:
        """`pulls` are what each call adds to others, times how alike they are; see `pulls_of`."""
        import numpy as np

        self._codes: dict[tuple[str, ...], int] = {}
        self._groups = np.array([self._groups_of(call) for call in calls], dtype=np.int64).reshape(len(calls), 6)
        self._at = _places(calls)
        self._sources = np.array(sources, dtype=str)
        self._pulls: Array = np.array(pulls, dtype=np.float64)
        self._inverses: dict[tuple[int, ...], Array] = {}

    @classmethod
    def of(cls, calls: Sequence[Traits], sources: Sequence[str], logs: Sequence[float]) -> Learned:
        """What is learned from calls and the logarithms of measured over predicted."""
        learned = cls(calls, sources, [0.0] * len(calls))
        return cls(calls, sources, learned.pulls_of(logs))

    def pulls_of(self, logs: Sequence[float]) -> list[float]:
        """The weights with which measured calls add up to predictions of others."""
        import numpy as np

        targets = np.clip(np.array(logs, dtype=np.float64), -MOST_LOG, MOST_LOG)
        return np.linalg.solve(self._noisy(np.arange(len(targets))), targets).tolist() if len(targets) else []

    def _noisy(self, chosen: Codes) -> Array:
        """Covariances of some measured calls, with what each adds by itself."""
        import numpy as np

        groups, at = self._groups[chosen], self._at[chosen]
        return self._alike(groups, at, groups, at) + NOISE * np.eye(len(chosen))

    def _groups_of(self, call: Traits) -> list[int]:
        """Numbers of what calls share: generation, form there, family, op, op there, op and dtype there."""
        here = call.generation
        names = (
            ("generation", here),
            ("form", call.form, here),
            ("family", call.family),
            ("op", call.op),
            ("op", call.op, here),
            ("dtype", call.op, call.dtype, here),
        )
        return [self._codes.setdefault(name, len(self._codes)) for name in names]

    @staticmethod
    def _alike(a: Codes, at_a: Array, b: Codes, at_b: Array) -> Array:
        """Covariances of calls: rows of `a` with rows of `b`."""
        import numpy as np

        same = [(a[:, None, i] == b[None, :, i]).astype(np.float64) for i in range(a.shape[1])]
        here, form, family, op, op_here, dtype = same
        apart = (at_a[:, None, :4] - at_b[None, :, :4]) ** 2
        near = np.exp(-0.5 * (apart / np.array(REACH) ** 2).sum(axis=2))
        vector = at_a[:, None, 4] * at_b[None, :, 4]
        caches = at_a[:, None, 5] * at_b[None, :, 5]
        return (
            FAMILY * family
            + OP * op
            + OP_HERE * op_here
            + dtype * (OP_DTYPE_HERE + ALIKE * near)
            + form * CACHES_FORM * caches
            + here * (COMPUTING_HERE * vector + CACHES_HERE * caches)
        )

    def ask(self, call: Traits) -> Correction:
        """The factor on a call's predicted time, and its band."""
        import numpy as np

        groups, at = np.array([self._groups_of(call)], dtype=np.int64), _places([call])
        alike = self._alike(groups, at, self._groups, self._at)[0]
        same = self._groups == groups[0]
        nearest, like = self._nearest(same)
        order = np.argsort(-(4 * same[:, 3] + 2 * same[:, 2] + same[:, 1]), kind="stable")[:MOST_NEAR]
        asked = alike[order]
        prior = float(self._alike(groups, at, groups, at)[0, 0]) + NOISE
        variance = max(NOISE, prior - float(asked @ self._inverse(groups[0], order) @ asked))
        return Correction(
            factor=exp(float(alike @ self._pulls)),
            band=exp(SURE[nearest] * variance**0.5),
            nearest=nearest,
            calls=int(like.sum()),
            sources=len(set(self._sources[like])),
        )

    @staticmethod
    def _nearest(same: npt.NDArray[np.bool_]) -> tuple[str, npt.NDArray[np.bool_]]:
        """What is nearest of what was measured, and which calls are so."""
        for name, column in (("op here", 4), ("op elsewhere", 3), ("family", 2)):
            if same[:, column].any():
                return name, same[:, column]
        return "nothing", same[:, 0] & False

    def _inverse(self, group: Codes, order: Codes) -> Array:
        import numpy as np

        key = tuple(int(code) for code in group[1:4])
        if key not in self._inverses:
            self._inverses[key] = np.linalg.inv(self._noisy(order)).astype(np.float64)
        return self._inverses[key]


def _places(calls: Sequence[Traits]) -> Array:
    import numpy as np

    rows = [(c.log_time, c.log_elements, c.log_row, c.launch, c.vector, c.caches) for c in calls]
    return np.array(rows, dtype=np.float64).reshape(len(calls), 6)


class LearnedCall(msgspec.Struct, frozen=True):
    """A row of the file."""

    traits: Traits
    log_ratio: float
    """Logarithm of measured over predicted."""
    source: str
    pull: float
    """As `Learned.pulls_of` gives it."""
    key: str
    """Of the call and its device, by which a table that holds it is known."""


@lru_cache(maxsize=1)
def learned_calls() -> tuple[LearnedCall, ...]:
    """The measured calls that ship."""
    text = resources.files("opreplay.replay.ascend.devices").joinpath(FILE).read_text(encoding="utf-8")
    rows: list[LearnedCall] = []
    for row in csv.DictReader(text.splitlines()):
        traits = msgspec.convert(row, Traits, strict=False)
        rows.append(LearnedCall(traits, float(row["log_ratio"]), row["source"], float(row["pull"]), row["key"]))
    return tuple(rows)


@lru_cache(maxsize=1)
def shipped() -> Learned:
    """The correction that ships."""
    rows = learned_calls()
    return Learned([row.traits for row in rows], [row.source for row in rows], [row.pull for row in rows])


def octaves(number: float) -> float:
    """Base-2 logarithm of a number, of 1 for less."""
    return log2(max(1.0, number))


def warmth(cold_us: float, warm_us: float) -> float:
    """What warm caches save, as `Traits.caches`."""
    return min(0.0, log(max(1e-3, warm_us / cold_us))) if cold_us > 0 else 0.0
