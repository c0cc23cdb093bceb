# pyright: strict
"""Exam of the choice of calls to measure: ten chosen kernels of a network against ten random ones, on a SoC that no
constant was fitted to.

    python -m benchmarks.exams.measure_kit [--tables FOLDER]

The constants are fitted without the SoC. Then ten kernels of the network are revealed, all others are adjusted by what
these say, and their errors are compared over draws of ten random kernels.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence, Set
from functools import lru_cache
from math import log
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from benchmarks.device_model.tables import read_folder
from benchmarks.exams.scoring import Result
from opreplay.replay.ascend import DeviceProfile, list_devices, load_device
from opreplay.replay.ascend.calibrate.calibrate import Group, fitted_to
from opreplay.replay.ascend.calibrate.validate import groups_of_tables
from opreplay.replay.ascend.cost.own_measurements import Adjustment, Estimate, Measured, choose
from opreplay.replay.ascend.cost.predict import family_of
from opreplay.replay.ascend.devices.file import datasheet_only
from opreplay.replay.ascend.measured.accuracy import Compared, compare_group

REVEALED = 10
DRAWS = 20
NETWORKS = {
    "910b4_qwen_train": "910b4",
    "910c_vllm_infer_means": "910c",
    "910b2_alexnet_train": "910b2",
    "910b2_qwen25_7b_train_pp4_last_stage": "910b2",
}
"""Kernel tables of networks with several times as many unique kernels as are revealed → their SoC."""


class Kernel(NamedTuple):
    """A unique kernel of a network: what was predicted without its SoC, and what was measured."""

    estimate: Estimate
    compared: Compared

    @property
    def measured_us(self) -> float:
        """Of all launches."""
        return self.compared.total_us

    def error_us(self, factor: float = 1.0) -> float:
        """Predicted minus measured of all launches, the prediction times a factor."""
        return factor * (self.compared.total_us + self.compared.signed_us) - self.compared.total_us


class Outcome(NamedTuple):
    """What remains wrong once some kernels are measured."""

    factors: Sequence[Adjustment]
    """Of each kernel; those that were revealed included."""
    remaining: float
    """Errors of the kernels that were not revealed over the measured time of the table."""
    signed: float
    """Absolute error of the sum over the measured time of the table."""
    in_band: float
    """Share of the kernels not revealed whose time lies in the adjusted band."""


def kernels_of(groups: Sequence[Group], device: DeviceProfile) -> list[Kernel]:
    """The kernels of a network, predicted on a device that was fitted to other SoCs."""
    kernels: list[Kernel] = []
    for group in groups:
        call = group.launches[0].row.call
        family = family_of(call, device).name
        compared = compare_group(group.launches, device)
        if compared.predicted_us <= 0:
            continue
        estimate = Estimate(
            call=f"{call.type} {call.inputs} {call.outputs}",
            op=call.type,
            family=family,
            time_us=compared.predicted_us,
            band=compared.high_us / compared.predicted_us,
        )
        kernels.append(Kernel(estimate, compared))
    return kernels


def outcome(kernels: Sequence[Kernel], revealed: Set[int]) -> Outcome:
    """Adjust all kernels by those that are revealed."""
    known = [kernels[index] for index in sorted(revealed)]
    logs = [log(kernel.compared.measured_us / kernel.compared.predicted_us) for kernel in known]
    measured = Measured([kernel.estimate for kernel in known], logs, [0.0] * len(known))
    factors = [measured.ask(kernel.estimate) for kernel in kernels]
    rest = [index for index in range(len(kernels)) if index not in revealed]
    total = sum(kernel.measured_us for kernel in kernels)
    errors = {index: kernels[index].error_us(factors[index].factor) for index in rest}
    ratios = {
        index: kernels[index].compared.measured_us / kernels[index].compared.predicted_us / factors[index].factor
        for index in rest
    }
    return Outcome(
        factors=factors,
        remaining=sum(map(abs, errors.values())) / total,
        signed=abs(sum(errors.values())) / total,
        in_band=fmean(1 / factors[index].band <= ratios[index] <= factors[index].band for index in rest),
    )


def weighted_error(kernels: Sequence[Kernel], factors: Sequence[Adjustment], indices: Sequence[int]) -> float:
    """Errors of some kernels over their measured time."""
    wrong = sum(abs(kernels[index].error_us(factors[index].factor)) for index in indices)
    return wrong / sum(kernels[index].measured_us for index in indices)


def figures_of(kernels: Sequence[Kernel]) -> dict[str, float]:
    """Percentages, and in how many of `DRAWS` draws the chosen kernels do better than random ones.

    `remaining`: errors of what was not revealed over the time of the table; `same_rest`: weighted error of the kernels
    that neither side reveals, so that both are compared on the same ones; `sum`: error of the table's sum.
    """
    picked = {
        choice.index
        for choice in choose(
            [kernel.estimate for kernel in kernels], [kernel.compared.count for kernel in kernels], most=REVEALED
        )
    }
    best = outcome(kernels, picked)
    draws = [set(random.Random(draw).sample(range(len(kernels)), REVEALED)) for draw in range(DRAWS)]
    others = [outcome(kernels, drawn) for drawn in draws]
    pairs = [
        (weighted_error(kernels, best.factors, rest), weighted_error(kernels, other.factors, rest))
        for drawn, other in zip(draws, others, strict=True)
        if (rest := [index for index in range(len(kernels)) if index not in picked | drawn])
    ]
    return {
        "kernels": len(kernels),
        "before": _percent(sum(abs(kernel.error_us()) for kernel in kernels) / sum(k.measured_us for k in kernels)),
        "remaining": _percent(best.remaining),
        "remaining_random": _percent(median(other.remaining for other in others)),
        "remaining_wins": sum(best.remaining < other.remaining for other in others),
        "same_rest": _percent(median(ours for ours, _ in pairs)),
        "same_rest_random": _percent(median(theirs for _, theirs in pairs)),
        "same_rest_wins": sum(ours < theirs for ours, theirs in pairs),
        "sum_before": _percent(abs(sum(k.error_us() for k in kernels)) / sum(k.measured_us for k in kernels)),
        "sum": _percent(best.signed),
        "sum_random": _percent(median(other.signed for other in others)),
        "sum_wins": sum(best.signed < other.signed for other in others),
        "in_band": _percent(best.in_band),
        "in_band_random": _percent(median(other.in_band for other in others)),
    }


def _percent(share: float) -> float:
    return round(100 * share, 1)


@lru_cache(maxsize=1)
def measured_groups(folder: Path) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """Kernels of the tables of a folder, which constants are fitted to, and of those in its folder `tables`."""
    fitted, later = (groups_of_tables(read_folder(of, list_devices())[0]) for of in (folder, folder / "tables"))
    return tuple(fitted), tuple(later)


@lru_cache(maxsize=3)
def fitted_without(folder: Path, soc: str) -> DeviceProfile:
    """A device with constants that were fitted to the other SoCs."""
    others = [group for group in measured_groups(folder)[0] if group.soc != soc]
    return fitted_to(others, {name: datasheet_only(load_device(name)) for name in list_devices()})[soc]


def exam(folder: Path, table: str) -> Result:
    """Figures of a table of `NETWORKS` in a folder, or in its folder `tables`."""
    fitted, later = measured_groups(folder)
    groups = [group for group in (*fitted, *later) if group.table == table]
    figures = figures_of(kernels_of(groups, fitted_without(folder, NETWORKS[table])))
    return Result({"rows": figures.pop("kernels"), "asked": len(groups), **figures})


def main() -> None:
    """Print the figures of all networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(__file__).resolve().parents[2].parent / "shared" / "ascend"
    parser.add_argument("--tables", type=Path, default=shared, metavar="FOLDER")
    folder = parser.parse_args().tables
    for table in NETWORKS:
        print(f"{table}: {json.dumps(exam(folder, table).figures)}", flush=True)


if __name__ == "__main__":
    main()
