"""Predicted against measured times and busy shares of kernels written in tiles by hand (PTO-ISA, asc-devkit, AscendC).

    python benchmarks/tile_accuracy.py [FOLDER] [--json]
    python benchmarks/tile_accuracy.py --built-in

FOLDER holds tables like `tile_kernels.csv` and `tile_kernels_pipes.csv`; ../shared/ascend without it. Each row is run
as the shipped program of its kind, with the tiling that the row states. What a row leaves open is taken as said in
`ASSUMED`.

Bars: from 16 cores on median 10 % and worst 25 %, of all median 15 %; busy shares within 10 points; slopes between
tilings within 25 %.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from opreplay.replay.ascend import load_device
from opreplay.replay.tile.chip import TileTime, estimate
from opreplay.replay.tile.program import Program, bind
from opreplay.replay.tile.programs import elementwise, products, rows
from opreplay.traces.model import TensorMeta

ASSUMED = """
L2 is as after a run of the same kernel (the sources time loops). GEMM: as many base blocks of K a load as stepKa
says. Matmul of 8192, of which the second matrix lies transposed: base blocks of 128 x 256 x 64 (of 64 x 64 x 64 in case
0), one a load and one buffer until "large packets", two a load there, four from "L1 cache" on. Convolution:
blocks of rows and columns of an image in place of 128 places in a line, 128 channels a load. Flash attention: kv
tiles of 512, of which the sources say "128 to 512", with the shipped program's order of work. Top-k: rows one at a
time, with their columns. SoC names without a clock are those of the device files.
Slopes are between any two tilings of one product on one SoC.
"""

SHARES = {
    "cube_pct": ("cube",),
    "extract_pct": ("mte1",),
    "vector_pct": ("vector",),
    "scalar_pct": ("scalar",),
    "load_pct": ("mte2",),
    "store_pct": ("fixpipe", "mte3"),
}
"""Columns of busy shares, and the pipes that they may be."""
PIPE_TIMES = {
    "mac_or_vec_us": ("cube", "vector"),
    "mte1_us": ("mte1",),
    "mte2_us": ("mte2",),
    "fixpipe_or_mte3_us": ("fixpipe", "mte3"),
}
"""The same in microseconds; the scalar unit of Matmul API kernels works for the API, which no program in tiles has."""
MANY_CORES = 16


class Row(NamedTuple):
    """One measured kernel."""

    group: str
    shown: str
    soc: str
    cores: int
    program: Program
    arguments: dict[str, Any]
    settings: dict[str, Any]
    measured_us: float
    shares: dict[str, float]
    """By pipe, of the cores' time."""


class Compared(NamedTuple):
    """A row beside its prediction."""

    row: Row
    made: TileTime
    error: float
    """Predicted over measured, less 1."""
    share_errors: dict[str, float]


def tensor(dtype: str, *shape: int) -> TensorMeta:
    return TensorMeta(shape=shape, dtype=dtype)


def numbers(text: str) -> dict[str, int]:
    """ "m=1536 k=1536" as a dict."""
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}


def soc_of(text: str) -> str:
    """The simulated device that a table's words mean."""
    for name, words in {"910b1": "910B1", "910b2": "910B2", "910b4": "910B4", "910c": "910C", "950pr": "950PR"}.items():
        if words in text:
            return name
    return "910b1" if "1.85" in text else "910b2"


def dtype_of(text: str) -> str:
    return next((d for d in ("bfloat16", "float16", "float32", "int8") if text.startswith(d)), "float16")


def gemm(line: dict[str, str]) -> tuple[Program, dict[str, Any], dict[str, Any]]:
    size, tiling = numbers(line["shape"]), numbers(line["tiling"])
    out = "float32" if "float32 out" in line["dtype"] else dtype_of(line["dtype"])
    dtype = dtype_of(line["dtype"])
    arguments = {
        "a": tensor(dtype, size["m"], size["k"]),
        "b": tensor(dtype, size["k"], size["n"]),
        "c": tensor(out, size["m"], size["n"]),
    }
    settings = {
        "bm": tiling.get("baseM", 128),
        "bn": tiling.get("baseN", 256),
        "bk": tiling.get("baseK", 64) * tiling.get("stepKa", 4),
    }
    return products.matmul, arguments, settings


def found(pattern: str, text: str) -> str:
    """The first group of a pattern. Raises LookupError where it is not there."""
    match = re.search(pattern, text)
    if match is None:
        raise LookupError(f"{pattern} is not in {text!r}")
    return match[1]


def conv(line: dict[str, str]) -> tuple[Program, dict[str, Any], dict[str, Any]]:
    n, c1, h, w, c0 = (int(v) for v in found(r"X=\[([\d,]+)\]", line["shape"]).split(","))
    _, n1, n0, _ = (int(v) for v in found(r"K=\[([\d,]+)\]", line["shape"]).split(","))
    side = int(found(r"kernel (\d+)x", line["shape"]))
    pad = int(found(r"pad (\d+)", line["shape"]))
    dtype = dtype_of(line["dtype"])
    arguments = {
        "x": tensor(dtype, n, h + 2 * pad, w + 2 * pad, c1 * c0),
        "w": tensor(dtype, side, side, c1 * c0, n1 * n0),
    }
    return products.conv2d, arguments, {}


def topk(line: dict[str, str]) -> tuple[Program, dict[str, Any], dict[str, Any]]:
    size = numbers(line["shape"])
    x = tensor(dtype_of(line["dtype"]), size["rows"], size["cols"])
    return rows.topk, {"x": x, "k": size["topk"]}, {}


def attention(line: dict[str, str]) -> tuple[Program, dict[str, Any], dict[str, Any]]:
    size = numbers(line["shape"].replace("S_q=S_kv=", "S_kv="))
    queries, keys, channels = size.get("S_q", size["S_kv"]), size["S_kv"], size["D"]
    heads = int(found(r"(\d+) heads?", line["shape"]))
    q, kv = tensor("float16", heads, queries, channels), tensor("float16", heads, keys, channels)
    return products.flash_attention, {"q": q, "k": kv, "v": kv}, {}


KINDS = {
    "gemm": gemm,
    "conv2d": conv,
    "topk": topk,
    "flash_attention_pto": attention,
    "flash_attention_pto_jit": attention,
}


def tiled(path: Path, left_out: list[str]) -> Iterator[Row]:
    """Rows of a table of programs with their tiling."""
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            if not line.get("time_us"):
                continue
            make = KINDS.get(line["program"])
            if make is None:
                left_out.append(f"{line['program']} {line['shape']}: no kernel in tiles")
                continue
            program, arguments, settings = make(line)
            shares = {}
            for column, pipes in SHARES.items():
                if line.get(column):
                    shares["/".join(pipes)] = float(line[column]) / 100
            group = line["program"].removesuffix("_jit")
            shown = f"{line['program']} {line['shape']}"
            yield Row(
                group,
                shown,
                soc_of(line["soc"]),
                int(line["cores"]),
                program,
                arguments,
                settings,
                float(line["time_us"]),
                shares,
            )


ONE_BLOCK = {"bk": 64, "buffers": 1}
TILINGS = {
    "0": {"bm": 64, "bn": 64, **ONE_BLOCK},
    "1": ONE_BLOCK,
    "2": ONE_BLOCK,
    "4": {"bk": 128},
    "5": {"bk": 256},
    "7": {"bk": 256},
    "8": {"bk": 256},
}
"""Settings of the shipped product, by number of the step of Matmul API."""


def stepwise(path: Path, left_out: list[str]) -> Iterator[Row]:
    """Rows of a table of kernels that were improved step by step."""
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            if not line.get("task_us"):
                continue
            shown = f"{line['example']} {line['soc']} {line['case']}"
            core = float(line["aicore_or_aiv_us"] or 0)
            if line["example"].startswith("matmul"):
                m, k = (int(v) for v in line["shape"].split(";")[0].split(","))
                b = TensorMeta(shape=(k, m), dtype="float16", strides=(1, k))
                program, arguments = products.matmul, {"a": tensor("float16", m, k), "b": b}
                settings = TILINGS[line["case"].split()[0]]
            elif line["example"].startswith("add") and re.match(r"^[24] ", line["case"]):
                shape = [int(v) for v in line["shape"].split("+")[0].split(",")]
                program, arguments = elementwise.add, {"x": tensor("float16", *shape), "y": tensor("float16", *shape)}
                settings = {"n": 4096, "buffers": 1 if line["case"].startswith("2") else 2}
            else:
                known = "no kernel in tiles"
                left_out.append(f"{shown}: {known if line['block_num'] else 'shape or SoC not stated'}")
                continue
            shares = {
                "/".join(pipes): float(line[column]) / core
                for column, pipes in PIPE_TIMES.items()
                if line.get(column) and core
            }
            soc = soc_of(line["soc"])
            yield Row(
                line["example"],
                shown,
                soc,
                int(line["block_num"]),
                program,
                arguments,
                settings,
                float(line["task_us"]),
                shares,
            )


def compared(row: Row) -> Compared:
    device = load_device(row.soc)
    estimated = estimate(bind(row.program, row.arguments, row.settings), device, state="warm", cores=row.cores)
    errors = {}
    for names, measured in row.shares.items():
        predicted = max(estimated.pipes.get(name, 0.0) for name in names.split("/"))
        errors[names] = predicted - measured
    return Compared(row, estimated, estimated.time_us / row.measured_us - 1, errors)


BUILT_IN = (
    ("add", "x=f16[4096,4096] y=f16[4096,4096]", "aten::add(f16[4096,4096], f16[4096,4096])"),
    ("add", "x=bf16[4096,1024] y=bf16[4096,1024]", "aten::add(bf16[4096,1024], bf16[4096,1024])"),
    ("add", "x=f32[8192,8192] y=f32[8192,8192]", "aten::add(f32[8192,8192], f32[8192,8192])"),
    ("cast", "x=f32[4096,4096] dtype=float16", "aten::_to_copy(f32[4096,4096], dtype=torch.float16)"),
    ("cast", "x=bf16[8192,8192] dtype=float32", "aten::_to_copy(bf16[8192,8192], dtype=torch.float32)"),
    ("softmax", "x=f16[4096,1024]", "aten::_softmax(f16[4096,1024], -1, False)"),
    ("softmax", "x=f32[32768,1024]", "aten::_softmax(f32[32768,1024], -1, False)"),
    ("rms_norm", "x=bf16[4096,1024] w=bf16[1024]", "npu::npu_rms_norm(bf16[4096,1024], bf16[1024])"),
    ("rms_norm", "x=bf16[16384,4096] w=bf16[4096]", "npu::npu_rms_norm(bf16[16384,4096], bf16[4096])"),
    ("layer_norm", "x=f16[4096,1024] w=f16[1024] b=f16[1024]",
     "aten::native_layer_norm(f16[4096,1024], [1024], f16[1024], f16[1024], 1e-5)"),
    ("swiglu", "x=bf16[4096,8192]", "npu::npu_swiglu(bf16[4096,8192])"),
    ("transpose", "x=f16[4096,4096]", "aten::clone(f16[4096,4096]{1,4096}, memory_format=torch.contiguous_format)"),
    ("matmul", "a=f16[512,512] b=f16[512,512]", "aten::mm(f16[512,512], f16[512,512])"),
    ("matmul", "a=bf16[4096,1024] b=bf16[1024,3072]", "aten::mm(bf16[4096,1024], bf16[1024,3072])"),
    ("matmul", "a=f16[2048,2048] b=f16[2048,2048]", "aten::mm(f16[2048,2048], f16[2048,2048])"),
    ("matmul", "a=f16[8192,8192] b=f16[8192,8192]", "aten::mm(f16[8192,8192], f16[8192,8192])"),
)  # fmt: skip
"""Program, case, and the op that the kernel model has the vendor's kernels for."""


def beside_built_in() -> list[tuple[str, str, str, float, float]]:
    """(program, case, device, predicted by the program, by the kernel model) in microseconds, the programs tuned."""
    from opreplay.replay.tile import programs
    from opreplay.replay.tile.cases import parse_case, to_tune
    from opreplay.replay.tile.language.places import TileError
    from opreplay.replay.tile.study import kernels_us

    known = [getattr(programs, name) for name in programs.__all__]
    out = []
    for name, case, call in BUILT_IN:
        for soc in ("910b2", "910b4"):
            device = load_device(soc)
            kernels = kernels_us(call, device)
            if kernels is None:
                sys.exit(f"no rule knows {call}")
            best = float("inf")
            for tuned in to_tune(parse_case(f"{name} {case}", known)):
                try:
                    estimated = estimate(bind(tuned.program, tuned.arguments, tuned.settings), device)
                except TileError:
                    continue
                best = min(best, estimated.time_us)
            out.append((name, case, soc, best, kernels))
    return out


def show_built_in() -> None:
    rows = beside_built_in()
    for name, case, soc, tile_us, kernel_us in rows:
        error = 100 * (tile_us / kernel_us - 1)
        print(f"{name:10} {case:44} {soc:6} {tile_us:10.1f} {kernel_us:10.1f} {error:+6.1f} %")
    errors = [abs(tile_us / kernel_us - 1) for *_, tile_us, kernel_us in rows]
    print(f"\n{len(rows)} kernels: median difference {100 * statistics.median(errors):.1f} %")


def slopes(rows: list[Compared]) -> list[float]:
    """Measured over predicted ratio of the times of any two tilings of one product, of all such pairs."""
    out: list[float] = []
    for first, second in itertools.combinations(rows, 2):
        if first.row.group == second.row.group == "matmul_high_performance" and first.row.soc == second.row.soc:
            out.append((1 + second.error) / (1 + first.error))
    return out


def summary(rows: list[Compared]) -> dict[str, Any]:
    many = [abs(entry.error) for entry in rows if entry.row.cores >= MANY_CORES]
    every = [abs(entry.error) for entry in rows]
    shares = [abs(e) for entry in rows for e in entry.share_errors.values()]
    groups: dict[str, list[float]] = {}
    for entry in rows:
        groups.setdefault(entry.row.group, []).append(entry.error)
    return {
        "kernels": len(every),
        "many_cores": len(many),
        "many_cores_median": statistics.median(many) if many else None,
        "many_cores_worst": max(many, default=None),
        "median": statistics.median(every) if every else None,
        "worst": max(every, default=None),
        "slope_worst": max((max(ratio, 1 / ratio) - 1 for ratio in slopes(rows)), default=None),
        "share_points": 100 * statistics.mean(shares) if shares else None,
        "groups": {name: {"n": len(e), "median": statistics.median(map(abs, e))} for name, e in groups.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="../shared/ascend", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--built-in", action="store_true", help="programs beside the kernel model instead")
    options = parser.parse_args()
    if options.built_in:
        show_built_in()
        return
    left_out: list[str] = []
    entries: list[Compared] = []
    for path in sorted(options.folder.glob("tile_kernels*.csv")):
        read = stepwise if "example" in path.open().readline() else tiled
        entries += [compared(row) for row in read(path, left_out)]
    if not entries:
        sys.exit(f"no rows of tile_kernels*.csv in {options.folder}")
    totals = summary(entries)
    if options.json:
        listed = [
            {"kernel": entry.row.shown, "soc": entry.row.soc, "measured_us": entry.row.measured_us, "time_us":
            entry.made.time_us, "error": entry.error, "bound": entry.made.bound, "share_errors": entry.share_errors}
            for entry in entries
        ]  # fmt: skip
        print(json.dumps({**totals, "rows": listed, "left": left_out}))
        return
    for entry in entries:
        shares = "  ".join(
            f"{name.split('/')[0]} {100 * (e + entry.row.shares[name]):.0f}/{100 * entry.row.shares[name]:.0f}"
            for name, e in entry.share_errors.items()
        )
        print(
            f"{entry.row.shown[:64]:64} {entry.row.soc:6} {entry.row.cores:3} "
            f"{entry.row.measured_us:10.1f} {entry.made.time_us:10.1f}"
            f" {100 * entry.error:+6.1f} % {entry.made.bound:8} {shares}"
        )
    many = f"median {100 * totals['many_cores_median']:.1f} %, worst {100 * totals['many_cores_worst']:.1f} %"
    print(
        f"\n{totals['kernels']} kernels: median {100 * totals['median']:.1f} %, worst {100 * totals['worst']:.1f} %; "
        f"{totals['many_cores']} of them on {MANY_CORES} cores or more: {many}; "
        f"busy shares differ by {totals['share_points']:.1f} points"
    )
    if totals["slope_worst"] is not None:
        pairs = len(slopes(entries))
        print(f"slopes between tilings of one product: within {100 * totals['slope_worst']:.0f} % for {pairs} pairs")
    for name, group in totals["groups"].items():
        print(f"  {name}: {group['n']} kernels, median {100 * group['median']:.1f} %")
    print(f"left out, {len(left_out)}: " + "; ".join(left_out))
    print("Assumed:", " ".join(ASSUMED.split()))


if __name__ == "__main__":
    main()
