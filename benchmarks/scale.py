# pyright: strict
"""Time and memory of a folder of 1,000 traces, and of traces and results of 100,000 different ops.

    python -m benchmarks.scale                                # both parts; --parts folder,ops
    python -m benchmarks.scale --parts folder --traces 100    # fewer traces

folder: `run --quick` on copies of recordings, each with other durations. Bars: 0.6 s of processor time a trace,
    600 MB for all processes together.
ops: each command on traces and results of 1,000, 10,000 and 100,000 ops. Bars: from the second to the third step, time
    grows at most 12 times as much as from the first to the second; at most 1.5 GB. Chromium opens each page, if it is
    installed.

A figure with ! misses its bar; then the exit status is 1. `--write` keeps the figures for docs/scaling.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.costs import Cost, cost_of
from opreplay.replay.results.reading import ResultFile, read_result_file
from opreplay.replay.results.records import OpResult
from opreplay.replay.results.summary import summary_of
from opreplay.traces.samples import SAMPLES, sample_path

SCRIPT = Path(sys.executable).parent / "opreplay"
RECORDED = Path(__file__).with_suffix(".json")
PUBLIC = Path(__file__).resolve().parents[2] / "shared" / "traces"
RECORDINGS = ("h100_bert_small", "h100_falconsai_vit", "h100_qwen1.5_0.5b")
TRACE_S, FOLDER_MB, GROWTH, OPS_MB = 0.6, 600, 12, 1500
"""Bars."""
FRAME = "import opreplay, sys; print(len(opreplay.read_results(sys.argv[1]).frame()))"
SEGMENTS = 64
"""Parts of a recording that are stretched differently."""


def retimed(trace: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return a copy of a Chrome trace with other durations, in which each event keeps its parent and its order.

    Start and end of each event go through one increasing function of time: a line of `SEGMENTS` slopes in 0.8 to 1.25.
    """
    draw = random.Random(seed)
    events: list[dict[str, Any]] = trace["traceEvents"]
    times = [float(event["ts"]) for event in events if "ts" in event and event.get("ph") in ("X", "i", "s", "f")]
    first, last = min(times), max(times)
    width = max(last - first, 1.0) / SEGMENTS
    slopes = [draw.uniform(0.8, 1.25) for _ in range(SEGMENTS + 1)]
    starts = [0.0]
    for slope in slopes:
        starts.append(starts[-1] + slope * width)

    def moved(ts: float) -> float:
        place = min(max(int((ts - first) / width), 0), SEGMENTS)
        return round(first + starts[place] + slopes[place] * (ts - first - place * width), 3)

    def copy(event: dict[str, Any]) -> dict[str, Any]:
        if "ts" not in event or not first <= float(event["ts"]) <= last:
            return event
        start = moved(float(event["ts"]))
        if "dur" not in event:
            return {**event, "ts": start}
        return {**event, "ts": start, "dur": round(moved(float(event["ts"]) + float(event["dur"])) - start, 3)}

    return {**trace, "traceEvents": [copy(event) for event in events]}


def write_folder(folder: Path, traces: int) -> int:
    """Write so many copies of the bundled samples, and of public recordings where those are; return the bytes."""
    public = [PUBLIC / f"{name}.json.gz" for name in RECORDINGS]
    paths = [*(sample_path(sample) for sample in SAMPLES), *(path for path in public if path.exists())]
    recordings = [json.loads(gzip.decompress(path.read_bytes())) for path in paths]
    size = 0
    for seed, recording in zip(range(traces), cycle(recordings)):
        data = json.dumps(retimed(recording, seed)).encode()
        size += len(data)
        (folder / f"trace{seed:04}.json.gz").write_bytes(gzip.compress(data, 1))
    return size


def events_of(ops: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a GPU trace with so many different calls of four ops, each with its launch and kernel."""
    kinds: tuple[tuple[str, str, Callable[[int], list[list[int]]], list[str]], ...] = (
        ("aten::mm", "sm90_xmma_gemm_f32f32_tf32f32_f32", lambda rows: [[rows, 64], [64, 128]], []),
        ("aten::relu", "vectorized_elementwise_kernel<4, relu>", lambda rows: [[rows, 64]], []),
        ("aten::add", "vectorized_elementwise_kernel<4, add>", lambda rows: [[rows, 64], [rows, 64]], ["1"]),
        ("aten::_softmax", "softmax_warp_forward<float>", lambda rows: [[rows, 64]], ["1", "False"]),
    )
    for index in range(ops):
        name, kernel, shapes_of, scalars = kinds[index % len(kinds)]
        rows, start = 1 + index // len(kinds), 40.0 * index
        shapes = shapes_of(rows)
        args = {
            "External id": index,
            "Input Dims": [*shapes, *([] for _ in scalars)],
            "Input type": [*("float" for _ in shapes), *("Scalar" for _ in scalars)],
            "Input Strides": [*([shape[1], 1] for shape in shapes), *([] for _ in scalars)],
            "Concrete Inputs": [*("" for _ in shapes), *scalars],
        }
        host: dict[str, Any] = {"ph": "X", "pid": 1, "tid": 1}
        link = {"External id": index, "correlation": index + 1}
        yield {**host, "cat": "cpu_op", "name": name, "ts": start, "dur": 20.0, "args": args}
        yield {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 5, "dur": 5.0, "args": link}
        on_device = {"ph": "X", "pid": 0, "tid": 7, "ts": start + 12, "dur": 2.0 + rows / 500}
        yield {**on_device, "cat": "kernel", "name": kernel, "args": {**link, "device": 0, "stream": 7}}


def write_trace(path: Path, ops: int) -> Path:
    """Write a trace with so many different ops."""
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events_of(ops))}))
    return path


def write_results(path: Path, measured: ResultFile, ops: int, seed: int) -> Path:
    """Write a result file of so many ops: the records of a measured one, again and again, with other ids and times."""
    draw = random.Random(seed)
    encoder = msgspec.json.Encoder()
    results = [
        another(result, index, draw.gauss(1.0, 0.02) * (1.2 if seed and index % 50 == 0 else 1.0), ops)
        for index, result in enumerate(islice(cycle(measured.results), ops))
    ]
    file = msgspec.structs.replace(measured, results=tuple(results), summary=None)
    summary = msgspec.structs.replace(summary_of(file), interrupted=False)
    lines = [measured.header, *results, summary]
    path.write_bytes(b"".join(encoder.encode(line) + b"\n" for line in lines))
    return path


def another(result: OpResult, index: int, factor: float, ops: int) -> OpResult:
    """Return the result of another op of so many: times are `factor` times those of `result`, shares are equal."""
    found = result.measurement
    if found is None or result.measured_us is None:
        raise SystemExit(f"{result.name} was not replayed: {result.reason}")
    times = ("median_us", "iqr_us", "min_us", "max_us", "ci_low_us", "ci_high_us", "relative")
    scaled = {name: factor * us for name in times if (us := getattr(found, name)) is not None}
    return msgspec.structs.replace(
        result,
        id=f"{index:012x}",
        recorded_share=1 / ops,
        measured_us=factor * result.measured_us,
        measurement=msgspec.structs.replace(found, **scaled),
    )


def checked(cost: Cost) -> Cost:
    """Return the cost of a command that succeeded. Raises SystemExit for one that failed."""
    if cost.failure:
        raise SystemExit(cost.failure)
    return cost


def folder(temp: Path, traces: int) -> dict[str, Any]:
    """Return the cost of `run --quick` on a folder of copies, and of the same once the plans are in the cache."""
    source = temp / "traces"
    source.mkdir()
    size = write_folder(source, traces)
    print(f"folder: {traces:,} traces, {size / 1e9:.2f} GB of JSON", flush=True)
    found: dict[str, Any] = {"traces": traces, "gb": size / 1e9}
    for turn in ("first", "again"):
        output = temp / f"{turn}.jsonl"
        command = [SCRIPT, "run", source, "--quick", "-o", output, "--set", "shared_device=true"]
        cost = checked(cost_of(command, limit_s=3600, env={"XDG_CACHE_HOME": str(temp / "cache")}))
        results = read_result_file(output)
        trace_s = cost.cpu_s / traces
        found[turn] = {"trace_s": trace_s, "all_mb": cost.peak_mb, "largest_mb": cost.largest_mb}
        misses = trace_s > TRACE_S or cost.largest_mb > FOLDER_MB
        print(
            f"folder: {turn}: {len(results.traces)} traces, {len(results.results)} ops, {trace_s:.3f} s a trace, "
            f"largest process {cost.largest_mb:.0f} MB, all {cost.peak_mb:.0f} MB{' !' if misses else ''}",
            flush=True,
        )
        found["missed"] = found.get("missed", False) or misses
    return found


def commands(temp: Path, ops: int) -> dict[str, list[str | Path]]:
    """Return the commands to measure by name; each page is opened right after it was written."""
    trace, before, after = temp / f"{ops}.json", temp / f"{ops}_0.jsonl", temp / f"{ops}_1.jsonl"
    found: dict[str, list[str | Path]] = {
        "inspect": [SCRIPT, "inspect", trace],
        "plan": [SCRIPT, "plan", trace, "--set", "no_cache=true"],
        "show": [SCRIPT, "show", before],
        "show -o": [SCRIPT, "show", before, "-o", temp / f"show{ops}.html"],
        "compare -o": [SCRIPT, "compare", before, after, "-o", temp / f"compare{ops}.html"],
        "frame()": [sys.executable, "-c", FRAME, before],
    }
    if (browser := shutil.which("chromium")) is not None:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={temp / 'browser'}", "--dump-dom"]
        for page in ("show", "compare"):
            found[f"{page} -o, opened by Chromium"] = [browser, *flags, (temp / f"{page}{ops}.html").as_uri()]
    return found


def of_ops(temp: Path, most: int) -> dict[str, Any]:
    """Return the cost of each command by number of ops."""
    sizes = (most // 100, most // 10, most)
    env = {"XDG_CACHE_HOME": str(temp / "cache")}
    for ops in sizes:
        write_trace(temp / f"{ops}.json", ops)
    measured = temp / "measured.jsonl"
    quick = ["--top", "100", "--set", "op_time=5ms", "--set", "shared_device=true"]
    checked(cost_of([SCRIPT, "run", temp / f"{sizes[0]}.json", "-o", measured, *quick], env=env))
    for ops in sizes:
        for seed in (0, 1):
            write_results(temp / f"{ops}_{seed}.jsonl", read_result_file(measured), ops, seed)
    by_command: dict[str, list[Cost]] = {}
    for ops in sizes:
        for name, command in commands(temp, ops).items():
            cost = checked(cost_of(command, limit_s=1800, env=env))
            by_command.setdefault(name, []).append(cost)
            print(f"ops: {ops:>7,} {name:14} {cost.cpu_s:6.1f} s {cost.peak_mb:6.0f} MB", flush=True)
    found: dict[str, Any] = {"sizes": sizes, "missed": False, "commands": {}}
    for name, (small, middle, large) in by_command.items():
        growth = (large.cpu_s - middle.cpu_s) / max(middle.cpu_s - small.cpu_s, 0.5)
        missed = growth > GROWTH or large.peak_mb > OPS_MB
        found["missed"] |= missed
        found["commands"][name] = {
            "cpu_s": [cost.cpu_s for cost in (small, middle, large)],
            "mb": [cost.peak_mb for cost in (small, middle, large)],
        }
        print(f"ops: {name}: the last step costs {growth:.1f} times the one before{' !' if missed else ''}", flush=True)
    return found


def markdown(found: Mapping[str, Any]) -> str:
    """Return the figures as a sentence on the folder and a table of commands."""
    of_folder, of_commands = found["folder"], found["ops"]
    first, again = of_folder["first"], of_folder["again"]
    head = " | ".join(f"{ops:,} ops" for ops in of_commands["sizes"][1:])
    rows = [
        (
            f"`{name}`",
            *(f"{s:.1f} s, {mb:,.0f} MB" for s, mb in list(zip(costs["cpu_s"], costs["mb"], strict=True))[1:]),
        )
        for name, costs in of_commands["commands"].items()
    ]
    return "\n".join(
        [
            f"`run --quick` on {of_folder['traces']:,} traces ({of_folder['gb']:.1f} GB): {first['trace_s']:.3f} s of "
            f"CPU time a trace, {again['trace_s']:.3f} s with cached plans; largest process "
            f"{first['largest_mb']:,.0f} MB, all {first['all_mb']:,.0f} MB.",
            "",
            f"| CPU time and memory | {head} |",
            "|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
    )


def main() -> int:
    """Measure the parts that are asked for; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description="Time and memory of a folder of traces, and of many different ops.")
    parser.add_argument("--parts", default="folder,ops")
    parser.add_argument("--traces", type=int, default=1000)
    parser.add_argument("--ops", type=int, default=100_000, help="most different ops of a trace or result file")
    parser.add_argument("--write", action="store_true", help=f"keep the figures of these parts in {RECORDED.name}")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    for part in args.parts.split(","):
        with tempfile.TemporaryDirectory() as temp:
            found[part] = folder(Path(temp), args.traces) if part == "folder" else of_ops(Path(temp), args.ops)
    if args.write:
        earlier: dict[str, Any] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        RECORDED.write_text(json.dumps({**earlier, **found}, indent=1) + "\n")
    return int(any(part["missed"] for part in found.values()))


if __name__ == "__main__":
    sys.exit(main())
