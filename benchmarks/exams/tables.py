# pyright: strict
"""Exams of measured tables, each in the state of the caches that it was measured in, with the constants that ship."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks import steps_of_configs
from benchmarks.device_model.calls import calls_in, corrected_row, known_calls
from benchmarks.device_model.calls import left_out as held_out
from benchmarks.device_model.error_table import ErrorTable, error_table
from benchmarks.device_model.op_tables import read_op_table
from benchmarks.device_model.tables import measured_on
from benchmarks.device_model.transports import of_folder
from benchmarks.exams.scoring import Figures, Result, figures_of, score
from opreplay.replay.ascend import load_device, predict_kernel
from opreplay.replay.ascend.calibrate.validate import Validation, validate
from opreplay.replay.ascend.measured.accuracy import Compared, errors_of
from opreplay.replay.ascend.measured.call_tables import BETWEEN, ops_of_texts
from opreplay.replay.ascend.simulate.op import simulate_in_turn, work_of_parts
from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.results.records import L2State
from opreplay.traces.model import TensorSpec


def compared(
    name: str,
    measured_us: float,
    predicted_us: float,
    band: tuple[float, float],
    inputs: Sequence[TensorSpec | None] = (),
) -> Compared:
    """One measured row beside its prediction; `band` is (low, high) in microseconds."""
    return Compared(
        call=KernelCall(type=name, inputs=tuple(inputs), outputs=()),
        measured_us=measured_us,
        predicted_us=predicted_us,
        low_us=band[0],
        high_us=band[1],
        count=1,
        total_us=measured_us,
        absolute_us=abs(predicted_us - measured_us),
        signed_us=predicted_us - measured_us,
    )


def kernels(paths: Sequence[Path], soc: str) -> Validation:
    """Kernels and ops of tables of one SoC, collectives left out."""
    return validate(measured_on(paths, soc), communication=False)


def kernel_tables(folder: Path, pattern: str, soc: str) -> Result:
    """Unique kernels of the tables of a folder whose names match."""
    found = kernels(sorted(folder.glob(pattern)), soc)
    return score(found.compared, len(found.compared))


def kernel_sums(folder: Path) -> Result:
    """Measured against predicted sums of all kernels of each table of kernels of a network."""
    rows: list[Compared] = []
    for path in (*sorted(folder.glob("910*.csv")), *sorted(folder.glob("tables/*.csv"))):
        found = kernels([path], path.name.split("_")[0])
        measured = sum(row.total_us for row in found.compared)
        predicted = measured + sum(row.signed_us for row in found.compared)
        rows.append(compared(path.stem, measured, predicted, (predicted, predicted)))
    return score(rows, len(rows), band=False)


def problems(path: Path, soc: str) -> Result:
    """KernelBench's problems, each the sum of the aten calls that it makes, as `opreplay op` predicts them."""
    table, device = read_op_table(path), load_device(soc)
    state: L2State = "cold" if table.state == "cold" else "warm"
    rows: list[Compared] = []
    for case in table.cases:
        if case.duration_us is None:
            continue
        parts = simulate_in_turn(case.calls, device, state)
        predicted = sum(part.time_us for part in parts)
        band = sum(part.low_us for part in parts), sum(part.high_us for part in parts)
        if predicted > 0:
            rows.append(compared(case.label, case.duration_us, predicted, band, case.kernels[0].inputs))
    return score(rows, sum(case.duration_us is not None for case in table.cases))


def left_out(folder: Path, part: str, work: str = "") -> Result:
    """All measured single calls, each corrected by calls of other parts; `work` takes only calls of that kind."""
    rows = [row for kind, row in _left_out(folder)[part] if work in ("", kind)]
    return score(rows, len(rows), per_op=True)


@cache
def _left_out(folder: Path) -> dict[str, list[tuple[str, Compared]]]:
    """By what is left out: the kind of work of each call, and its prediction beside what was measured."""
    sets = held_out(known_calls(calls_in(folder)), lambda step: None)
    return {
        part: [(work_of_parts(known.bare.parts), corrected_row(known, correction)) for known, correction in pairs]
        for part, pairs in sets.items()
    }


def answered(path: Path) -> Result:
    """Share of the calls of a table that `opreplay op` takes, whatever device they were timed on."""
    with path.open(newline="") as file:
        texts = [line["op"].strip() for line in csv.DictReader(file) if line["exact"] == "yes"]
    ops = ops_of_texts(list({part for text in texts for part in text.split(BETWEEN)}))
    refused = [
        why for text in texts if (why := next((o for p in text.split(BETWEEN) if isinstance(o := ops[p], str)), ""))
    ]
    figures: Figures = {"rows": len(texts) - len(refused), "asked": len(texts)}
    figures["answered"] = round(100 * figures["rows"] / len(texts), 1)
    return Result(figures, tuple(f"{count} x {why}" for why, count in Counter(refused).most_common()))


def steps(path: Path) -> Result:
    """Public times of steps of servers, ms a token; needs transformers.

    Targets of recipes are upper bounds, not measurements: `targets` counts them, `targets_in_reach` counts how many the
    band allows.
    """
    found, _, rows = steps_of_configs.compared(path)
    measured = [
        compared(
            f"{one.row['model']} {one.row['parallelism']} {one.question[2]} x {one.question[3]} on {one.question[5]}",
            1e3 * one.measured_ms,
            1e3 * one.times.token,
            (1e3 * one.times.low, 1e3 * one.times.high),
        )
        for one in found
        if not one.is_target
    ]
    graphs = [one.is_graph for one in found if not one.is_target]
    forms = {
        name: figures_of(errors_of([row for row, graph in zip(measured, graphs, strict=True) if graph is is_graph]))
        for name, is_graph in (("one graph", True), ("call by call", False))
    }
    result = score(measured, rows)
    result.figures["targets"], _, result.figures["targets_in_reach"] = steps_of_configs.kept_targets(found)
    return result._replace(details=forms)


def tiles(folder: Path) -> Result:
    """Kernels that were written in tiles by hand, as the shipped tile programs predict them.

    `share_points` is how far busy shares of the pipes are off, `slopes` by how many percent at most the ratio of two
    tilings of one product. Goes last: with the programs' import their ops are costed by them.
    """
    from benchmarks import tile_accuracy

    entries: list[tile_accuracy.Compared] = []
    for path in sorted(folder.glob("tile_kernels*.csv")):
        read = tile_accuracy.stepwise if "example" in path.open().readline() else tile_accuracy.tiled
        entries += [tile_accuracy.compared(row) for row in read(path, [])]
    rows = [
        compared(one.row.shown, one.row.measured_us, one.made.time_us, (one.made.low_us, one.made.high_us))
        for one in entries
    ]
    many = [row for row, one in zip(rows, entries, strict=True) if one.row.cores >= tile_accuracy.MANY_CORES]
    facts = tile_accuracy.summary(entries)
    result = score(rows, len(rows))
    result.figures["share_points"] = round(facts["share_points"], 1)
    result.figures["slopes"] = round(100 * facts["slope_worst"], 1)
    return result._replace(details={"16 cores or more": figures_of(errors_of(many))})


def transfers(folder: Path) -> Result:
    """Transfers between dies of profiled training steps; in the details those of runs that the rates were not fitted
    to, and vendors' figures of experts' dispatch and combine, which constants come from."""
    shipped, unseen = (of_folder(folder, cross=True)[name] for name in ("shipped", "unseen_table"))
    of_steps = [row for file, _, rows, _ in shipped if file == "communication.csv" for row in rows]
    vendors = [row for file, _, rows, _ in shipped if "misc" in file for row in rows]
    left_out_rows = [row for _, _, rows, _ in unseen for row in rows]
    details = {"run left out": figures_of(errors_of(left_out_rows)), "vendors": figures_of(errors_of(vendors))}
    return score(of_steps, len(of_steps))._replace(details=details)


@cache
def _refitted(folder: Path) -> ErrorTable:
    return error_table(folder, cross=True)


def refitted(folder: Path, section: str) -> Result:
    """Kernels that constants were not fitted to: "folds", "unseen_table" or "unseen_soc"; the details are by table."""
    rows = {row.name: figures_of(row.errors) for row in _refitted(folder).sections[section]}
    every = rows.pop("all")
    return Result({**every, "asked": every["rows"]}, details=rows)


_BYTES = {"KB": 1e3, "MB": 1e6, "GB": 1e9}
_COLLECTIVES = {"all_gather": "hcom_allGather_", "reduce_scatter": "hcom_reduceScatter_"}


def collectives(path: Path) -> Result:
    """Collectives of a benchmark of HCCL; the message is what one rank hands in to a gather or gets of a scatter.

    40 MB of 16 ranks in 3.08 ms are 195 GB/s a die so, which is what its links carry; as the whole they were 12 GB/s.
    """
    rows: list[Compared] = []
    with path.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["op"] in _COLLECTIVES]
    for line in lines:
        number, unit = re.fullmatch(r"([\d.]+)([KMG]B)", line["message_size"]).groups()  # pyright: ignore[reportOptionalMemberAccess]
        ranks, share = int(line["n_devices"]), round(float(number) * _BYTES[unit])
        local, whole = (TensorSpec(shape=(size,), dtype="uint8") for size in (share, share * ranks))
        ends = (local, whole) if line["op"] == "all_gather" else (whole, local)
        call = KernelCall(type=_COLLECTIVES[line["op"]], inputs=ends[:1], outputs=ends[1:], attrs={"world_size": ranks})
        made = predict_kernel(call, load_device(line["soc"]))
        band = made.low_us, made.high_us
        rows.append(compared(line["op"], float(line["bench_us"]), made.time_us, band, call.inputs))
    return score(rows, len(rows))
