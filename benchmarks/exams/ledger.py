# pyright: strict
"""The table of exams, and their committed results in `results.json`."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from benchmarks.exams import bounds, invariants, measure_kit, tables
from benchmarks.exams.scoring import Figures, Result

RESULTS = Path(__file__).with_name("results.json")
TABLES = Path(__file__).resolve().parents[2].parent / "shared" / "ascend"
"""Measured tables, which are not part of the project."""


class Exam(NamedTuple):
    """One line of the ledger."""

    about: str
    score: Callable[..., Result]
    """Takes the path and what follows."""
    path: str = ""
    """Below the folder of tables."""
    more: tuple[str, ...] = ()
    is_slow: bool = False
    """Whether it runs only where asked for."""

    def run(self, folder: Path) -> Result:
        """The result on the tables of a folder."""
        return self.score(folder / self.path, *self.more)


CALLS = "ops_delivered_2.csv"
EXAMS: dict[str, Exam] = {
    "kernelbench_910b4": Exam(
        "KernelBench problems on a 910B4, cold, as single calls", tables.problems, "kernelbench_910b4.csv", ("910b4",)
    ),
    "kernelbench_910b2_large": Exam(
        "large KernelBench problems on a 910B2, warm, as single calls", tables.problems,
        "kernelbench_910b2_large.csv", ("910b2",),
    ),
    "op_sweep_910b4": Exam(
        "a sweep of small kernels on a 910B4, warm", tables.kernel_tables, more=("op_sweep_910b4_warm.csv", "910b4")
    ),
    "serving_910b2": Exam(
        "kernels of serving networks on a 910B2", tables.kernel_tables, more=("serving_910b2.csv", "910b2")
    ),
    "network_910b4": Exam("kernels of Qwen training on a 910B4", tables.kernel_tables, more=("910b4_*.csv", "910b4")),
    "network_910b2": Exam(
        "kernels of AlexNet training on a 910B2", tables.kernel_tables, more=("910b2_*.csv", "910b2")
    ),
    "network_910c": Exam("kernels of vLLM inference on a 910C", tables.kernel_tables, more=("910c_*.csv", "910c")),
    "later_train_7b": Exam(
        "kernels of a 7B model's training on a 910B2, delivered later", tables.kernel_tables, "tables",
        ("*_7b_train_*.csv", "910b2"),
    ),
    "later_decode": Exam(
        "kernels of PaddleOCR-VL decode on a 910B2, delivered later", tables.kernel_tables, "tables",
        ("*_decode_*.csv", "910b2"),
    ),
    "later_vision": Exam(
        "kernels of vision encoders on a 910B2, delivered later", tables.kernel_tables, "tables",
        ("910b2_*[vs]i[sg]*.csv", "910b2"),
    ),
    "later_slice": Exam(
        "a strided slice on a 910B3, delivered later", tables.kernel_tables, "tables", ("910b3_*.csv", "910b3")
    ),
    "sums_of_kernels": Exam("sums of all kernels of each table of a network", tables.kernel_sums),
    "calls_left_out": Exam(
        "single calls, a fifth left out at a time", tables.left_out, more=("folds",)
    ),
    "ops_left_out": Exam(
        "single calls, each op predicted by what was measured of others", tables.left_out, more=("unseen_op",)
    ),
    "sources_left_out": Exam(
        "single calls, each source predicted by what others measured", tables.left_out, more=("unseen_source",)
    ),
    "sources_left_out_product": Exam(
        "of these, products, convolutions and attention", tables.left_out, more=("unseen_source", "product")
    ),
    "sources_left_out_streaming": Exam(
        "of these, ops that read and write whole tensors in order", tables.left_out, more=("unseen_source", "streaming")
    ),
    "sources_left_out_irregular": Exam(
        "of these, scans, sorts, lookups, routing and others", tables.left_out, more=("unseen_source", "irregular")
    ),
    "calls_answered": Exam(
        "calls delivered later that `opreplay op` answers, whatever the device", tables.answered, CALLS
    ),
    "transfers": Exam("transfers between dies in training steps", tables.transfers),
    "collectives_910c": Exam(
        "collectives of a benchmark of HCCL on 910C dies", tables.collectives, "collectives_910c.csv"
    ),
    "measured_by_user": Exam(
        "kernels of Qwen training on a 910B4 that was left out, once ten chosen kernels are measured", measure_kit.exam,
        more=("910b4_qwen_train",),
    ),
    "kernels_left_out": Exam(
        "kernels and problems, a fifth of each table left out of the fit at a time", tables.refitted, more=("folds",),
        is_slow=True,
    ),
    "tables_left_out": Exam(
        "kernels and problems, each table predicted by a fit to the others", tables.refitted, more=("unseen_table",),
        is_slow=True,
    ),
    "socs_left_out": Exam(
        "kernels and problems, each SoC predicted by a fit to the others", tables.refitted, more=("unseen_soc",),
        is_slow=True,
    ),
    "invariants": Exam("calls that break what must hold of any prediction", invariants.exam),
    "invariants_drawn": Exam("the same at sizes that were drawn", invariants.exam, more=("drawn",)),
    "steps": Exam("public times of decode steps of servers", tables.steps, "e2e.csv"),
    "bounds": Exam("captured steps beside what memory and cubes need at least", bounds.exam),
    "tile_kernels": Exam("kernels written in tiles by hand, as tile programs", tables.tiles),
}  # fmt: skip

TOLERATED: dict[str, tuple[int, float]] = {
    "median": (1, 0.5), "per_op": (1, 0.5), "failing": (1, 0.0), "failing_kinds": (1, 0.0),
    "within_25": (-1, 2.0), "within_2x": (-1, 2.0), "in_band": (-1, 2.0), "answered": (-1, 2.0), "rows": (-1, 0.0),
    "remaining_wins": (-1, 2.0),
}  # fmt: skip
"""Figures that have a threshold → (1 where less is better, else -1; by how much a result may be worse than the
committed one)."""


def worse(name: str, now: Mapping[str, float], committed: Mapping[str, float], *, at_all: bool = False) -> list[str]:
    """One line for each figure of an exam that is worse than the committed one by more than is tolerated, or `at_all`;
    one that is missing now is worse."""
    lines: list[str] = []
    for figure, (sign, tolerated) in TOLERATED.items():
        if figure in committed:
            value = now.get(figure, math.nan)
            if not sign * (value - committed[figure]) <= (0.0 if at_all else tolerated) + 1e-9:
                lines.append(f"{name}: {figure} is {value:g}, was {committed[figure]:g}")
    return lines


def read(path: Path = RESULTS) -> dict[str, Any]:
    """The committed results: `blind`, `exams` and `history`."""
    return json.loads(path.read_text(encoding="utf-8"))


def updated(
    committed: dict[str, Any], found: Mapping[str, Result], why: str = "", today: datetime.date | None = None
) -> dict[str, Any]:
    """The results with what was found in place of older figures of these exams.

    Raises ValueError where a figure that has a threshold gets worse, however little, and `why` is empty; a reason goes
    into the history.
    """
    exams: dict[str, Figures] = committed["exams"]
    lines = [
        line
        for name, result in found.items()
        if name in exams
        for line in worse(name, result.figures, exams[name], at_all=True)
    ]
    history: list[dict[str, Any]] = [*committed["history"]]
    if lines and not why:
        raise ValueError("\n".join(["these figures get worse; say why with --why TEXT:", *lines]))
    if why:
        history.append({"date": str(today or datetime.date.today()), "why": why, "worse": lines})
    exams = {**exams, **{name: result.figures for name, result in found.items()}}
    details = {**committed.get("details", {}), **{name: result.details for name, result in found.items()}}
    return {
        **committed,
        "history": history,
        "exams": {name: exams[name] for name in EXAMS if name in exams},
        "details": {name: details[name] for name in EXAMS if details.get(name)},
    }


def write(results: Mapping[str, Any], path: Path = RESULTS) -> None:
    """Write the results, the figures of one exam on one line."""

    def text_of(value: object, depth: int) -> str:
        parts = cast("dict[str, object]", value) if isinstance(value, dict) else {}
        if not any(isinstance(part, dict | list) for part in parts.values()):
            return json.dumps(value, ensure_ascii=False)
        lines = (f"{'  ' * depth}{json.dumps(key)}: {text_of(part, depth + 1)}" for key, part in parts.items())
        return "{\n" + ",\n".join(lines) + f"\n{'  ' * (depth - 1)}}}"

    path.write_text(text_of(dict(results), 1) + "\n", encoding="utf-8")
