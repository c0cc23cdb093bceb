# pyright: strict
"""Assigns each prediction to a cell: (evidence for its op, kind of work).

The cell decides the band and the confidence. The evidence says where the op itself was measured, not where other ops of
its family were. `docs/ascend-model.md` lists for each band how many measurements were inside it. All of these were
predicted before anything was fitted to them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from opreplay.replay.ascend.profile import FamilyCost, SlowPath
from opreplay.replay.ir.kernel import Confidence, Evidence, WorkKind


class Cell(msgspec.Struct, frozen=True):
    """The properties that decide how certain a prediction is."""

    evidence: Evidence
    work: WorkKind


BANDS: dict[Evidence, dict[WorkKind, float]] = {
    "this SoC": {"product": 1.4, "streaming": 1.41, "irregular": 3.2},
    "another SoC": {"product": 1.6, "streaming": 1.6, "irregular": 4.0},
    "its family": {"product": 1.76, "streaming": 2.27, "irregular": 13.6},
    "its form": {"product": 1.76, "streaming": 2.27, "irregular": 13.6},
}
"""Factors of the 80 % bands, by evidence and kind of work. Predicted times are divided and multiplied by the factor.

A factor is the 80 % quantile of |log(predicted / measured)|, over rows that the model had not seen. The factors for ops
never measured come from 381 rows of 14 ops, those for ops measured on this SoC from 352 rows. Both sets were predicted
at commit a5eb243a, before anything was fitted to them; products measured on this SoC were predicted with their source
left out. The factors for ops measured on another SoC come from 1,408 rows, predicted with their source left out.
"""

HELD: dict[Evidence, dict[WorkKind, tuple[int, float]]] = {
    "this SoC": {"product": (117, 0.85), "streaming": (126, 0.87), "irregular": (32, 0.81)},
    "its family": {"product": (40, 0.92), "streaming": (101, 0.89), "irregular": (75, 0.72)},
}
"""Evidence → kind of work → (number of calls, share of them within the band).

The calls are public measurements that commit a5eb243a predicted before anything was fitted to them. They cover known
kinds of ops and ops never measured before, but no op that was measured only on other SoCs.
"""

CONFIDENCE: dict[Evidence, Confidence] = {
    "this SoC": "calibrated",
    "another SoC": "other SoC",
    "its family": "uncalibrated",
    "its form": "uncalibrated",
}
RANK: dict[Evidence, int] = {"this SoC": 0, "another SoC": 1, "its family": 2, "its form": 3}

ORDER_OF_MAGNITUDE = 10.0
"""Minimum band factor for which a prediction is printed only as an order of magnitude."""

PRODUCT_FORMS = frozenset({"matmul", "conv", "attention"})
IRREGULAR_FORMS = frozenset({"gather", "sort", "aicpu"})
IRREGULAR_FAMILIES = frozenset({"Gcd", "GridSampler", "MoeGating", "Nms", "RoiAlign"})
IRREGULAR_KERNELS = frozenset({"Digamma", "Erfinv", "FFT", "Igamma", "Lgamma", "Multinomial"})
"""Unmeasured kernel types whose work does not follow from their bytes.

They are: Fourier transforms, because one of prime length computes longer ones; draws without replacement; and series of
special functions.
"""


def band_of(cell: Cell) -> float:
    """Return the factor of a cell's 80 % band: predicted times are divided and multiplied by it."""
    return BANDS[cell.evidence][cell.work]


def work_of(family: FamilyCost, path: SlowPath | None = None, kernel_type: str = "") -> WorkKind:
    """Return a kernel's kind of work; loops over single elements or lines are "irregular"."""
    if family.form in IRREGULAR_FORMS or family.name in IRREGULAR_FAMILIES or kernel_type in IRREGULAR_KERNELS:
        return "irregular"
    if path is not None and path.how != "factor":
        return "irregular"
    return "product" if family.form in PRODUCT_FORMS else "streaming"


def evidence_of(kernel_type: str, family: FamilyCost) -> Evidence:
    """Return where a kernel type was measured, as evidence for predictions on the device that `family` belongs to."""
    if kernel_type in family.measured_here:
        return "this SoC"
    if kernel_type in family.measured_elsewhere:
        return "another SoC"
    return "its family" if family.samples or family.samples_elsewhere else "its form"


def weakest(evidence: Iterable[Evidence]) -> Evidence:
    """Return the weakest evidence. If `evidence` is empty, it is "this SoC", because a cost of zero is certain."""
    known: list[Evidence] = ["this SoC", *evidence]
    return max(known, key=RANK.__getitem__)
