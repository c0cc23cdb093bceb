"""The factors of calls by themselves on a device's rates and families: fitted, and judged on what no fit has seen.

    python -m benchmarks.device_model.alone_factors [FOLDER] [--nested op|source ...]

Prints the tables `[alone.910]` and `[alone.950]` of `devices/_model.toml` as the measured calls of FOLDER
(../shared/ascend) make them. With `--nested`, factors and corrections are learned anew for each part that is left out,
a tenth of the ops or a source: `python -m benchmarks.device_model calls` leaves calls out of the corrections alone, so
its figures of whole ops and sources are better. Takes half a minute a part.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from benchmarks.device_model.calls import Known, calls_in, known_calls, learn
from opreplay.replay.ascend.calibrate.calls import ASSUMED_L2
from opreplay.replay.ascend.cost.predictor import Predictor
from opreplay.replay.ascend.devices.file import FAMILY_FACTORS, alone_by, load_device
from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.op import state_of, time_kernels
from opreplay.replay.ir.kernel import KernelCall, State

FACTORS = ("launch_full_us", "cube_launch_us", "hbm_cube_efficiency", "l1_fill_bytes_per_cycle", *FAMILY_FACTORS)
UNHELPFUL = {"950": ("l1_fill_bytes_per_cycle", "row_cycles", "fixed_us")}
"""Factors by kind of device that gain nothing on calls that were left out, and do not ship."""
PULL = 3.0
"""What the square of a factor's logarithm costs, as errors do: with less, factors fit calls and fail at others."""
STEPS = (0.4, 0.2, 0.1, 0.05)
ROUNDS = 4
PARTS = 10

Factors = dict[tuple[str, str], float]
"""(kind of device, name) → factor."""


class Row(msgspec.Struct, frozen=True):
    """A measured call as kernels."""

    known: Known
    device: DeviceProfile
    state: State
    kernels: tuple[KernelCall, ...]


def rows_of(known: Sequence[Known]) -> list[Row]:
    """What each call is lowered to."""
    return [
        Row(k, load_device(k.call.soc), state_of(k.call.l2 or ASSUMED_L2), lower(k.call.ops[0]).kernels) for k in known
    ]


def off_by(rows: Sequence[Row], factors: Factors) -> list[float]:
    """Logarithms of measured over predicted, before corrections."""
    predictors: dict[str, Predictor] = {}
    logs: list[float] = []
    for row in rows:
        if row.device.name not in predictors:
            predictors[row.device.name] = Predictor(alone_by(row.device, of_kind(factors, row.device.kind)))
        parts = time_kernels(row.kernels, predictors[row.device.name], row.state)
        logs.append(math.log(row.known.call.time_us / sum(call.count * cost.time_us for call, cost in parts)))
    return logs


def of_kind(factors: Factors, kind: str) -> Mapping[str, float]:
    return {name: value for (of, name), value in factors.items() if of == kind}


def fit(rows: Sequence[Row]) -> Factors:
    """Coordinate descent on log(1 + (error / 25 %)²), each op with the square root of its calls."""
    factors: Factors = {}
    for kind in sorted({row.device.kind for row in rows}):
        of = [row for row in rows if row.device.kind == kind]
        calls = Counter(row.known.traits.op for row in of)
        weights = [calls[row.known.traits.op] ** -0.5 for row in of]

        def loss(trial: Factors, of: Sequence[Row] = of, weights: Sequence[float] = weights) -> float:
            errors = zip(weights, off_by(of, trial), strict=True)
            pull = sum(math.log(value) ** 2 for value in trial.values())
            return sum(weight * math.log1p((log / 0.25) ** 2) for weight, log in errors) + PULL * pull

        best = {(kind, name): 1.0 for name in FACTORS if name not in UNHELPFUL.get(kind, ())}
        best_loss = loss(best)
        for step in (step for step in STEPS for _ in range(ROUNDS)):
            for place in best:
                for sign in (step, -step):
                    trial = {**best, place: best[place] * math.exp(sign)}
                    if (cost := loss(trial)) < best_loss - 1e-4:
                        best, best_loss = trial, cost
                        break
        factors |= best
    return factors


def nested(rows: Sequence[Row], label: str) -> list[float]:
    """Logarithms of measured over predicted of calls that neither factors nor corrections were learned from."""
    names = [row.known.traits.op if label == "op" else row.known.call.source for row in rows]
    parts = sorted(set(names))
    random.Random(1).shuffle(parts)
    count = PARTS if label == "op" else len(parts)
    logs: list[float] = []
    for part in (set(parts[i::count]) for i in range(count)):
        rest = [row for row, name in zip(rows, names, strict=True) if name not in part]
        out = [row for row, name in zip(rows, names, strict=True) if name in part]
        factors = fit(rest)
        learned = learn([_off(row.known, log) for row, log in zip(rest, off_by(rest, factors), strict=True)])
        logs += [
            log - math.log(learned.ask(row.known.traits).factor)
            for row, log in zip(out, off_by(out, factors), strict=True)
        ]
    return logs


def _off(known: Known, log: float) -> Known:
    """A call whose prediction is off by this."""
    simulated = msgspec.structs.replace(known.bare.simulated, time_us=known.call.time_us / math.exp(log))
    return msgspec.structs.replace(known, bare=msgspec.structs.replace(known.bare, simulated=simulated))


def figures(logs: Sequence[float]) -> str:
    errors = [abs(math.exp(-log) - 1) for log in logs]
    within = sum(error <= 0.25 for error in errors) / len(errors)
    twice = sum(abs(log) <= math.log(2) for log in logs) / len(logs)
    median = statistics.median(errors)
    return f"{len(logs)} calls: median {median:.1%}, {within:.0%} within 25 %, {twice:.0%} within 2 times"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="../shared/ascend")
    parser.add_argument("--nested", choices=("op", "source"), action="append", default=[])
    options = parser.parse_args()
    rows = rows_of(known_calls(calls_in(options.folder)))
    for label in options.nested:
        print(f"left out by {label}, factors and corrections: {figures(nested(rows, label))}", flush=True)
    if not options.nested:
        factors = fit(rows)
        for kind in sorted({kind for kind, _ in factors}):
            print(f"[alone.{kind}]")
            print("\n".join(f"{name} = {value:.3g}" for name, value in of_kind(factors, kind).items()))
        print(f"without: {figures(off_by(rows, {}))}\nwith:    {figures(off_by(rows, factors))}")


if __name__ == "__main__":
    main()
