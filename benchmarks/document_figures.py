# pyright: strict
"""Writes figures of documents between marks: those of the exams, of recorded measurements, and of the program.

    python -m benchmarks.document_figures [--check]

A mark is an HTML comment, `<!-- figures: NAME -->` before and `<!-- /figures -->` after. `--check` changes nothing and
exits with 1 where a document differs. No exam is run.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.exams.ledger import RESULTS
from opreplay.replay.ascend.cost.cells import BANDS, CONFIDENCE, HELD
from opreplay.replay.ascend.devices.fitted import counts_of, shipped_rows
from opreplay.replay.ir.kernel import Evidence, WorkKind

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    "README.md", "docs/ascend-model.md", "docs/benchmarks.md", "docs/capture.md", "docs/collectives.md",
    "docs/scaling.md", "docs/tile.md", "docs/vendor-ops.md",
)  # fmt: skip
MARK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- /figures -->)", re.DOTALL)

Results = Mapping[str, Any]


def table(head: str, rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers are aligned by the page."""
    columns = head.count("|") + 1
    lines = [f"| {head} |", "|" + "---|" * columns]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def number(value: float) -> str:
    """Few digits: 11.9, 38, 1,249."""
    return f"{value:,.1f}".removesuffix(".0")


SHARES = ("median", "within_25", "within_2x", "in_band")
SHARES_HEAD = "rows | median error, % | within 25 %, % | within 2 times, % | in the 80 % band, %"


def shares(figures: Mapping[str, float]) -> tuple[str, ...]:
    """Cells of `SHARES_HEAD`."""
    return tuple(number(figures[name]) if name in figures else "" for name in ("rows", *SHARES))


def shares_table(of: str, labels: Mapping[str, str], figures: Mapping[str, Mapping[str, float]]) -> str:
    """A row of shares for each exam that `labels` names."""
    return table(f"{of} | {SHARES_HEAD}", [(label, *shares(figures[name])) for name, label in labels.items()])


BLIND = {
    "calls_known": "calls of kinds that were known",
    "calls_of_new_sources": "calls of sources that were not known",
    "calls_of_new_ops": "calls of ops that nobody had measured",
}


def blind_sentence(results: Results) -> str:
    """The figures that a reader should expect of rows of their own."""
    found = [f"{name} {number(results['blind'][key]['median'])} %" for key, name in BLIND.items()]
    return (
        f"Median errors on public measurements that were scored before anything was fitted to them: {found[0]}, "
        f"{found[1]}, {found[2]}."
    )


def blind(results: Results) -> str:
    """The same with shares."""
    return shares_table("scored before anything was fitted", BLIND, results["blind"])


LEFT_OUT = {
    "calls_left_out": "single calls",
    "ops_left_out": "whole ops",
    "sources_left_out": "whole sources",
    "sources_left_out_product": "of these, products",
    "sources_left_out_streaming": "of these, streaming ops",
    "sources_left_out_irregular": "of these, irregular ops",
}


def calls_left_out(results: Results) -> str:
    """Single calls that the correction has not seen."""
    return shares_table("left out", LEFT_OUT, results["exams"])


TABLES = {
    "kernelbench_910b4": "KernelBench, 910B4",
    "kernelbench_910b2_large": "large KernelBench, 910B2",
    "910b2_alexnet_train": "AlexNet training, 910B2",
    "910b4_qwen_train": "Qwen training, 910B4",
    "910c_vllm_infer_means": "vLLM inference, 910C",
    "op_sweep_910b4_warm": "op sweep, 910B4",
    "serving_910b2": "serving, 910B2",
}


def tables_left_out(results: Results) -> str:
    """Kernels that constants were not fitted to, by table."""
    names = ("tables_left_out", "socs_left_out", "kernels_left_out")
    rows = [(label, *(results["details"][name][key] for name in names)) for key, label in TABLES.items()]
    rows.append(("all", *(results["exams"][name] for name in names)))
    head = "table | kernels | median error, %, fitted without the table | without its SoC | without a fifth of it"
    cells = [(label, number(sets[0]["rows"]), *(number(one["median"]) for one in sets)) for label, *sets in rows]
    in_band = number(min(results["exams"][name]["in_band"] for name in names))
    return f"{table(head, cells)}\n\nAt least {in_band} % of the kernels are in their 80 % bands."


LATER = {
    "later_train_7b": "training of a 7B model, 910B2",
    "later_decode": "decode of PaddleOCR-VL, 910B2",
    "later_vision": "vision encoders, 910B2",
}


def later_tables(results: Results) -> str:
    """Kernels of networks that came after the constants."""
    return shares_table("kernels of", LATER, results["exams"])


def cells(results: Results) -> str:
    """Bands of cells, and how often they held on rows scored blind; these stand in `cost/cells.py`."""
    del results
    names: dict[Evidence, str] = {
        "this SoC": "the op was measured on this SoC",
        "another SoC": "it was measured on another SoC",
        "its family": "kernels of its family were measured, or only the form of its work is known",
    }
    kinds: tuple[WorkKind, ...] = ("product", "streaming", "irregular")
    rows = [
        (
            label,
            *(
                f"×÷ {BANDS[evidence][work]:g}"
                + (f"; held {100 * held[1]:.0f} % of {held[0]}" if (held := HELD.get(evidence, {}).get(work)) else "")
                for work in kinds
            ),
            f"`{CONFIDENCE[evidence]}`",
        )
        for evidence, label in names.items()
    ]
    return table("evidence | product | streaming | irregular | confidence", rows)


def steps(results: Results) -> str:
    """Public decode times of servers."""
    found, forms = results["exams"]["steps"], results["details"]["steps"]
    head = "served as | steps | median error, % | within 25 %, % | in the 80 % band, %"
    rows = [
        (name, *(number(one[key]) for key in ("rows", "median", "within_25", "in_band")))
        for name, one in (*forms.items(), ("all", found))
    ]
    asked, targets = found["rows"] + found["targets"], number(found["targets"])
    return (
        f"{number(asked)} of {number(found['asked'])} rows can be asked. {targets} of them are targets of recipes, "
        f"upper bounds, {number(found['targets_in_reach'])} of which the band allows; the others were measured:\n\n"
        f"{table(head, rows)}"
    )


def bounds(results: Results) -> str:
    """Return how far captured steps are above their physical bounds: the range and the median of each phase."""
    parts: list[str] = []
    for phase in ("decode", "prefill"):
        of_phase = {name: one for name, one in results["details"]["bounds"].items() if f" {phase} " in name}
        ratios = sorted(one["ms"] / one["bound_ms"] for one in of_phase.values())
        middle = f"median {statistics.median(ratios):.2f}"
        parts.append(f"{phase} {ratios[0]:.2f} to {ratios[-1]:.2f} times its bound ({middle})")
    return f"On a 910B3 a step takes: {'; '.join(parts)}."


def tiles(results: Results) -> str:
    """Kernels in tiles."""
    found, many = results["exams"]["tile_kernels"], results["details"]["tile_kernels"]["16 cores or more"]
    head = "kernels | number | median error, % | within 25 %, %"
    rows = [
        (name, *(number(one[key]) for key in ("rows", "median", "within_25")))
        for name, one in (("on 16 cores or more", many), ("all", found))
    ]
    return (
        f"{table(head, rows)}\n\nBusy shares differ by {number(found['share_points'])} points. How much faster one "
        f"tiling of a product is than another is within {number(found['slopes'])} %."
    )


def transfers(results: Results) -> str:
    """Transfers between dies."""
    parts = results["details"]["transfers"]
    rows = [
        (name, number(one["rows"]), number(one["median"]))
        for name, one in (
            (
                "910B1, 910B2, 910B4 training steps (MindStudio Insight), rates fitted to them",
                results["exams"]["transfers"],
            ),
            ("the same, each run with rates fitted to the others", parts["run left out"]),
            ("expert dispatch and combine on A3, constants from these rows", parts["vendors"]),
            ("gathers and scatters of 8 and 16 dies of a 910C, nothing fitted", results["exams"]["collectives_910c"]),
        )
    ]
    return table("transfers | number | median error, %", rows)


def fitted_constants(results: Results) -> str:
    """How many constants of the shipped devices were fitted."""
    del results
    count = counts_of(shipped_rows())
    return (
        f"What was fitted stands in `fitted.csv`: {count['shared']} constants hold for all devices, "
        f"{count['of_single_devices']} for single ones."
    )


INTERNAL = {"fb": "fb, internal to Meta"}
"""Libraries that need a word of explanation."""


def vendor_ops(results: Results) -> str:
    """Ops with a reference implementation, by library and namespace."""
    from opreplay.replay.ops import catalog, register  # late: imports torch

    del results
    counts = {namespace: len(names) for namespace, names in register.implemented().items()}
    libraries: dict[str, list[str]] = {}
    for namespace, count in counts.items():
        libraries.setdefault(catalog.library_of(namespace) or namespace, []).append(f"`{namespace}` {count}")
    lines = [f"* {INTERNAL.get(library, library)}: {', '.join(parts)}" for library, parts in libraries.items()]
    return "\n".join([f"{sum(counts.values())} ops by library and namespace:", "", *lines])


def other_tools(results: Results) -> str:
    """Return the figures that `benchmarks/peers.py --write` kept."""
    from benchmarks.peers import RECORDED, markdown

    del results
    return markdown(json.loads(RECORDED.read_text(encoding="utf-8")))


def scale(results: Results) -> str:
    """Return the figures that `benchmarks/scale.py --write` kept."""
    from benchmarks.scale import RECORDED, markdown

    del results
    return markdown(json.loads(RECORDED.read_text(encoding="utf-8")))


BLOCKS: dict[str, Callable[[Results], str]] = {
    block.__name__: block
    for block in (
        blind_sentence, blind, calls_left_out, tables_left_out, later_tables, cells, steps, bounds, tiles, transfers,
        fitted_constants, vendor_ops, other_tools, scale,
    )
}  # fmt: skip


def written(text: str, results: Results) -> str:
    """A document with the figures of the results between its marks. Raises KeyError for a mark of no block."""
    return MARK.sub(lambda mark: f"{mark[1]}{BLOCKS[mark[2]](results)}\n{mark[3]}", text)


def main() -> int:
    """Write or check all documents; the exit status."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    changed = 0
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        new = written(text, results)
        if new != text:
            changed += 1
            print(f"{name}: {'differs from the results' if '--check' in sys.argv else 'written'}")
            if "--check" not in sys.argv:
                (ROOT / name).write_text(new, encoding="utf-8")
    return int(changed and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
