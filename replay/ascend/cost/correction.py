# pyright: strict
"""What measured calls say of others: a factor on the time that the cost forms give, and how sure it is.

A Gaussian process over log(measured over predicted). Two calls are alike as far as they are of one op, kernel family,
kernel, dtype and generation of devices, and close in time and sizes. `devices/measured_calls.csv` holds the calls,
`opreplay calibrate --shipped` writes it; `calibrate.calls` owns which and how they are judged.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from math import exp, log2
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Codes = npt.NDArray[np.int64]
    Compared = tuple[Codes, Array, Array]

FILE = "measured_calls.csv"

SHARED: dict[tuple[str, ...], float] = {
    ("family",): 0.005,
    ("family", "generation"): 0.005,
    ("op",): 0.05,
    ("op", "generation"): 0.25,
    ("op", "kernel"): 0.03,
    ("op", "kernel", "generation"): 0.1,
    ("op", "dtype", "generation"): 0.05,
    ("op", "kernel", "dtype", "generation"): 0.05,
}
"""Traits → variance of what calls that share them have in common."""
NEAR: dict[tuple[str, ...], float] = {("op", "kernel"): 0.02, ("op", "kernel", "dtype", "generation"): 0.1}
"""The same of what goes with time and sizes."""
BROAD: dict[tuple[str, ...], float] = {("op", "kernel", "generation"): 0.05}
"""The same of what goes with them slowly."""
REACH, FAR_REACH = (0.25, 0.8, 2.15, 0.31), (1.8, 2.4, 4.5, 0.9)
"""Octaves of time, of elements and of the last dimension, and share of launching, over which calls are alike, to
exp(-1/2): for `NEAR` and for `BROAD`."""
PRODUCTS = 0.03
"""Share of these variances, but of `NEAR`, that calls of the form `matmul` have: cost forms are right on average of
products, so what a few shapes took says little of others. Without it products of a source that was left out were 32 %
off and not 17."""
NOISE = 0.01
"""Variance of one call by itself."""
DOUBTED = 3.0
"""Squared deviation from what all other calls say, over their variance, from which a call is doubted: what it holds
decided (boxes, divisors), or it was not what the source says (a 70th of others, and later published as 16 times as
much). With it 1.1 % more of calls that were left out are within 25 %."""
LOOKS = 2
"""Times that all calls are compared with the others: where one is doubted, another may be no longer."""
# All of these were chosen to predict calls of ops and of sources that were left out (docs/ascend-model.md).

SURE: dict[str, float] = {"op here": 0.9, "op elsewhere": 0.68, "family": 0.68, "nothing": 0.62}
"""Standard deviations of the 80 % band by what was measured nearest, as calls, ops and sources that were left out ask
for, and a quarter more, as forms and factors have seen those: fewer than the 1.28 of a normal distribution, since most
calls lie near and few far away; the less is known the more variances above exceed what is usual."""
MOST_LOG = 10.0
"""Largest logarithm of a factor that is learned from: slow paths of 20,000 times were measured (8-byte gcd)."""
MOST_NEAR = 160
"""Measured calls that a band is judged from: the op's own first, then its family's, then its form's."""


KEYS = tuple(SHARED)
FAMILY, OP, OP_HERE = (KEYS.index(key) for key in (("family",), ("op",), ("op", "generation")))


class Traits(msgspec.Struct, frozen=True):
    """What a call is compared by."""

    op: str
    """Its name, of aten the types of the kernels that it runs."""
    family: str
    """Of the kernel that takes longest, as of `form`, `kernel` and `dtype`."""
    form: str
    kernel: str
    """Its type, and whether it works along a dimension that is not the last, or on groups of channels."""
    dtype: str
    generation: str
    log_time: float
    """Octaves of the predicted time in microseconds."""
    log_elements: float
    log_row: float
    """Octaves of the last dimension."""
    launch: float
    """Share of starting kernels in the predicted time."""


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
    beyond: bool = False
    """It takes more than twice as long as the longest of these, or has more than twice as many elements."""


class Learned:
    """Measured calls, ready to be asked."""

    def __init__(self, calls: Sequence[Traits], pulls: Sequence[float]) -> None:
        """`pulls` are what each call adds to others, times how alike they are; see `pulls_of`."""
        import numpy as np

        self._codes: dict[tuple[str, ...], int] = {}
        groups = [self._groups_of(call) for call in calls]
        self._groups = np.array(groups, dtype=np.int64).reshape(len(calls), len(KEYS))
        self._at = _places(calls)
        self._weights = _weights(calls)
        self._pulls: Array = np.array(pulls, dtype=np.float64)
        self._inverses: dict[tuple[int, int], Array] = {}

    @classmethod
    def of(cls, calls: Sequence[Traits], logs: Sequence[float]) -> Learned:
        """What is learned from calls and the logarithms of measured over predicted."""
        learned = cls(calls, [0.0] * len(calls))
        return cls(calls, learned.pulls_of(logs))

    def pulls_of(self, logs: Sequence[float]) -> list[float]:
        """The weights with which measured calls add up to predictions of others.

        A call that the others contradict counts the less: its noise is what makes it `DOUBTED` times as unlikely as
        usual, and no more.
        """
        import numpy as np

        targets = np.clip(np.array(logs, dtype=np.float64), -MOST_LOG, MOST_LOG)
        if not len(targets):
            return []
        alike, noise = self._noisy(np.arange(len(targets))), np.zeros(len(targets))
        for _ in range(LOOKS):
            inverse = np.linalg.inv(alike + np.diag(noise))
            unsure = 1.0 / np.diag(inverse)
            off = (inverse @ targets * unsure) ** 2
            by_others = unsure - noise
            noise = np.where(off > DOUBTED * by_others, off / DOUBTED - by_others, 0.0)
        return np.linalg.solve(alike + np.diag(noise), targets).tolist()

    def _noisy(self, chosen: Codes) -> Array:
        """Covariances of some measured calls, with what each adds by itself."""
        import numpy as np

        calls = self._groups[chosen], self._at[chosen], self._weights[chosen]
        return self._alike(calls, calls) + NOISE * np.eye(len(chosen))

    def _groups_of(self, call: Traits) -> list[int]:
        """Numbers of what calls share, in the order of `KEYS`."""
        names = [(*key, *(getattr(call, name) for name in key)) for key in KEYS]
        return [self._codes.setdefault(name, len(self._codes)) for name in names]

    @staticmethod
    def _alike(a: Compared, b: Compared) -> Array:
        """Covariances of calls: rows of `a` with rows of `b`."""
        import numpy as np

        (groups_a, at_a, weights_a), (groups_b, at_b, weights_b) = a, b
        apart = (at_a[:, None, :] - at_b[None, :, :]) ** 2
        near, broad = (np.exp(-0.5 * (apart / np.array(reach) ** 2).sum(axis=2)) for reach in (REACH, FAR_REACH))
        weights = weights_a[:, None] * weights_b[None, :]
        alike = np.zeros(near.shape)
        for column, key in enumerate(KEYS):
            same = groups_a[:, None, column] == groups_b[None, :, column]
            alike += same * (weights * (SHARED[key] + BROAD.get(key, 0.0) * broad) + NEAR.get(key, 0.0) * near)
        return alike

    def ask(self, call: Traits) -> Correction:
        """The factor on a call's predicted time, and its band."""
        import numpy as np

        groups = np.array([self._groups_of(call)], dtype=np.int64)
        asked_for = groups, _places([call]), _weights([call])
        alike = self._alike(asked_for, (self._groups, self._at, self._weights))[0]
        same = self._groups == groups[0]
        nearest, like = self._nearest(same)
        order = np.argsort(-(2 * same[:, OP] + same[:, FAMILY]), kind="stable")[:MOST_NEAR]
        asked = alike[order]
        prior = float(self._alike(asked_for, asked_for)[0, 0]) + NOISE
        variance = max(NOISE, prior - float(asked @ self._inverse(groups[0], order) @ asked))
        return Correction(
            factor=exp(float(alike @ self._pulls)),
            band=exp(SURE[nearest] * variance**0.5),
            nearest=nearest,
            calls=int(like.sum()),
            beyond=bool((asked_for[1][0, :2] > self._at[like][:, :2].max(axis=0, initial=-np.inf) + 1.0).any()),
        )

    @staticmethod
    def _nearest(same: npt.NDArray[np.bool_]) -> tuple[str, npt.NDArray[np.bool_]]:
        """What is nearest of what was measured, and which calls are so."""
        for name, column in (("op here", OP_HERE), ("op elsewhere", OP), ("family", FAMILY)):
            if same[:, column].any():
                return name, same[:, column]
        return "nothing", same[:, 0] & False

    def _inverse(self, group: Codes, order: Codes) -> Array:
        import numpy as np

        key = int(group[OP]), int(group[FAMILY])
        if key not in self._inverses:
            self._inverses[key] = np.linalg.inv(self._noisy(order)).astype(np.float64)
        return self._inverses[key]


def _places(calls: Sequence[Traits]) -> Array:
    import numpy as np

    rows = [(c.log_time, c.log_elements, c.log_row, c.launch) for c in calls]
    return np.array(rows, dtype=np.float64).reshape(len(calls), 4)


def _weights(calls: Sequence[Traits]) -> Array:
    """Square roots of the shares of `SHARED` and `BROAD` that calls have."""
    import numpy as np

    return np.array([PRODUCTS**0.5 if call.form == "matmul" else 1.0 for call in calls], dtype=np.float64)


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
    return Learned([row.traits for row in rows], [row.pull for row in rows])


def octaves(number: float) -> float:
    """Base-2 logarithm of a number, of 1 for less."""
    return log2(max(1.0, number))
