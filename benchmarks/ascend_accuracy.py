"""How well the simulated device predicts measured kernels, cross-validated, and how fast.

Usage: python benchmarks/ascend_accuracy.py [--tables FOLDER] [--deals N]

Reads the tables of kernels and of ops in FOLDER (default ../shared/ascend; the SoC is told by a file's name) and
prints, for what the fit has not seen (5 folds by unique kernel or op, one table and one SoC left out at a time), their
number, MAPE, median APE, 90th percentile, time-weighted error and band coverage, by family and overall. How kernels are
dealt to folds moves the figures, the more the fewer kernels there are: `--deals 5` deals them five times over, and
shows how far medians of one deal lie apart. `opreplay calibrate --shipped` writes device files.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from opreplay.replay.ascend.calibrate.calibrate import (
    Group,
    HeldOut,
    calibrate,
    cross_validate,
)
from opreplay.replay.ascend.calibrate.tables import groups_of_tables, read_folder
from opreplay.replay.ascend.cost.predict import predict_kernel
from opreplay.replay.ascend.cost.predictor import Predictor
from opreplay.replay.ascend.devices.file import datasheet_only, list_devices, load_device
from opreplay.replay.ascend.measured.accuracy import Compared, errors_of

ROOT = Path(__file__).parents[1]
MATMUL = ("MatMul", "MatMulFloat32", "BatchMatMul", "QuantMatMul", "GroupedMatMul")


def read_groups(folder: Path) -> list[Group]:
    """Measured unique kernels and ops of all tables, collectives left out."""
    return groups_of_tables(read_folder(folder, list_devices())[0])


def line(name: str, compared: list[Compared]) -> str:
    """One row of figures in percent."""
    e = errors_of(compared)
    return (
        f"{name:24s} {e.n:4d} {e.mape * 100:8.1f} {e.median_ape * 100:8.1f} {e.p90_ape * 100:8.1f}"
        f" {e.wape * 100:8.1f} {e.total_error * 100:+8.1f}"
    )


def show(title: str, unseen: list[HeldOut], *, families: bool) -> None:
    """Print figures by SoC, for products, and overall."""
    names = ("MAPE", "median", "p90", "WAPE", "total")
    print(f"\n{title}\n{'':24s} {'n':>4s} " + " ".join(f"{name:>8s}" for name in names))
    if families:
        for family in sorted({h.family for h in unseen}):
            print(line(family, [h.compared for h in unseen if h.family == family]))
    for table in sorted({h.table for h in unseen}):
        print(line(table, [h.compared for h in unseen if h.table == table]))
    for soc in sorted({h.soc for h in unseen}):
        print(line(soc, [h.compared for h in unseen if h.soc == soc]))
    print(line("matrix products", [h.compared for h in unseen if h.family in MATMUL]))
    print(line("all", [h.compared for h in unseen]))


def show_spread(deals: list[list[HeldOut]]) -> None:
    """Print the lowest and the highest median of one deal, for products and for all."""
    for name, families in (("matrix products", MATMUL), ("all", None)):
        medians = [
            errors_of([h.compared for h in unseen if families is None or h.family in families]).median_ape * 100
            for unseen in deals
        ]
        print(f"{name}: medians of single deals from {min(medians):.1f} to {max(medians):.1f} %")


def speed(groups: list[Group]) -> None:
    """Predictions a second over the measured kernels, nothing cached."""
    calls = [(part.call, load_device(g.soc)) for g in groups for part in g.launches[0].parts]
    start, rounds = time.process_time(), 20
    for _ in range(rounds):
        for call, device in calls:
            predict_kernel(call, device)
    spent = time.process_time() - start
    print(f"\n{rounds * len(calls) / spent:,.0f} kernel predictions a second of processor time, uncached")
    remembered = {device.name: Predictor(device) for _, device in calls}
    pairs = [(call, remembered[device.name]) for call, device in calls]
    for call, predict in pairs:
        predict(call)
    start = time.perf_counter()
    for _ in range(rounds):
        for call, predict in pairs:
            predict(call)
    print(f"{rounds * len(calls) / (time.perf_counter() - start):,.0f} a second, cached")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tables", type=Path, default=ROOT.parent / "shared" / "ascend")
    parser.add_argument("--deals", type=int, default=1)
    options = parser.parse_args()
    groups = read_groups(options.tables)
    devices = {name: datasheet_only(load_device(name)) for name in list_devices()}
    start = time.perf_counter()
    _, held_out = calibrate(groups, devices)
    across = held_out["folds"]
    deals = [across, *(cross_validate(groups, devices, seed=seed) for seed in range(1, options.deals))]
    many = f", dealt {options.deals} times" if options.deals > 1 else ""
    show(f"unseen kernels of known SoCs (5 folds{many})", [h for unseen in deals for h in unseen], families=True)
    if options.deals > 1:
        show_spread(deals)
    show("unseen tables (one left out at a time)", held_out["unseen_table"], families=False)
    show("unseen SoCs (one left out at a time)", held_out["unseen_soc"], families=False)
    print(f"\nfits and validation took {time.perf_counter() - start:.1f} s")
    speed(groups)


if __name__ == "__main__":
    main()
