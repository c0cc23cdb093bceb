"""Throughput and peak memory of `read_trace` and `trim` on a big file made from a real trace, beside `orjson.loads`.

    python benchmarks/trace_reading.py --trace ../shared/traces/h100_owlv2_large.json.gz --size 1G

The big file repeats the trace's events with shifted times and ids. Each reader runs in a fresh process, which reports
its own peak resident memory (VmHWM) and processor time (which on a busy machine tells more than the rate), that of its
worker processes beside it. Nothing is kept: the big file goes to a temporary folder and is deleted.

Bars: 600 MB/s a process, 450 for traces dense in ops, 5 times `orjson`; two processes 1 GB/s; gzip at most 30 %
more time; at most 250 MB of memory for 1 GB of trace, 400 MB for 4 GB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "traces"
DEFAULT_TRACES = ("h100_owlv2_large", "mtia_inference_rank0")

_READ = """
import resource, sys, time
from opreplay.traces import read_trace, summarize
start, cpu = time.perf_counter(), time.process_time()
trace = read_trace(sys.argv[1], processes=int(sys.argv[2]))
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
workers = resource.getrusage(resource.RUSAGE_CHILDREN)
summary = summarize(trace)
result = dict(events=summary.events, cpu_ops=summary.cpu_ops, kernels=summary.kernels, unique_ops=summary.unique_ops,
              owner_ops=summary.owner_ops, bytes=summary.bytes_read, losses=summary.losses,
              workers_s=workers.ru_utime + workers.ru_stime)
"""
_TRIM = """
import sys, time
from pathlib import Path
from opreplay.traces.trim import Wanted, first_time_ns, op_spans, trim
path, kind = sys.argv[1:3]
start, cpu = time.perf_counter(), time.process_time()
if kind == "between":
    first = first_time_ns(path)
    wanted = Wanted(spans=((first, first + 100_000_000),))
else:
    wanted = Wanted(of_threads=op_spans(path, ["aten::mm"]))
made = trim(path, path + ".part", wanted)
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
Path(path + ".part").unlink()
result = dict(events=made.of_events, kept=made.events)
"""
_ORJSON = """
import sys, time, orjson
start, cpu = time.perf_counter(), time.process_time()
with open(sys.argv[1], "rb") as file:
    trace = orjson.loads(file.read())
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
events = trace["traceEvents"] if isinstance(trace, dict) else trace
result = dict(events=len(events))
"""
_REPORT = """
import json, os
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps(dict(result, seconds=seconds, cpu_s=cpu, peak_mb=peak * 1024 / 1e6)), flush=True)
os._exit(0)  # freeing millions of objects is not what is measured
"""


def repeat_trace(source: Path, target: Path, size: int) -> int:
    """Write a trace of about `size` bytes that repeats all events of another one; returns its bytes.

    Each repetition's times are shifted by the trace's span and its ids by the largest id, so links stay within it.
    """
    opener = gzip.open if source.suffix == ".gz" else open
    with opener(source, "rb") as file:
        document = json.load(file)
    events = document["traceEvents"] if isinstance(document, dict) else document
    times = [float(e["ts"]) for e in events if "ts" in e and e.get("ph") == "X"]
    ends = [float(e["ts"]) + float(e.get("dur", 0)) for e in events if "ts" in e and e.get("ph") == "X"]
    span = int(max(ends) - min(times)) + 1000 if times else 1000
    ids = [v for e in events for v in _ids(e) if isinstance(v, int) and v < 1 << 40]
    step = max(ids, default=0) + 1
    written = 0

    def dump(value: Any) -> bytes:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2)

    with open(target, "wb") as out:
        keys = {k: v for k, v in document.items() if k != "traceEvents"} if isinstance(document, dict) else {}
        written += out.write(dump({"schemaVersion": 1, **keys})[:-2] + b',\n  "traceEvents": [\n')
        copy = 0
        while written < size:
            text = b",\n".join(dump(_shifted(event, copy * span, copy * step)) for event in events)
            written += out.write((b"" if copy == 0 else b",\n") + text)
            copy += 1
        written += out.write(b"\n  ]\n}\n")
    return written


def _ids(event: dict[str, Any]) -> list[Any]:
    args = event.get("args", {})
    return [event.get("id"), args.get("External id"), args.get("correlation")]


def _shifted(event: dict[str, Any], time_us: int, id_step: int) -> dict[str, Any]:
    out = dict(event)
    ts = event.get("ts")
    if isinstance(ts, float):
        out["ts"] = round(ts + time_us, 3)
    elif isinstance(ts, int):
        out["ts"] = ts + time_us
    if isinstance(event.get("id"), int):
        out["id"] = event["id"] + id_step
    args = event.get("args")
    if isinstance(args, dict):
        out["args"] = args = dict(args)
        for key in ("External id", "correlation"):
            if isinstance(args.get(key), int):
                args[key] += id_step
    return out


def _measure(code: str, path: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-c", code + _REPORT, str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        return {"error": (done.stderr.strip().splitlines() or ["killed"])[-1]}
    return json.loads(done.stdout)


def _bytes(text: str) -> int:
    units = {"K": 1e3, "M": 1e6, "G": 1e9}
    return int(float(text[:-1]) * units[text[-1].upper()]) if text[-1].upper() in units else int(text)


def _show(label: str, size: int, result: dict[str, Any], base: float | None) -> float:
    if "error" in result:
        print(f"  {label:<16} {result['error']}")
        return 0.0
    rate = size / result["seconds"] / 1e6
    ratio = f"{rate / base:5.2f}x" if base else "     -"
    extra = {k: v for k, v in result.items() if k not in ("seconds", "cpu_s", "workers_s", "peak_mb")}
    workers = f" + {result['workers_s']:.2f}" if result.get("workers_s") else ""
    times = f"{result['seconds']:7.2f} s ({result['cpu_s']:5.2f}{workers} CPU) {rate:6.0f} MB/s"
    print(f"  {label:<16} {times} {ratio} peak {result['peak_mb']:6.0f} MB  {extra}")
    return rate


def main() -> None:
    """Parse options, generate, measure, print a table, delete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="append", type=Path, help="repeatable; default: the two of the bar")
    parser.add_argument("--size", default="1G", help="bytes of the generated file (K, M, G are decimal)")
    parser.add_argument("--processes", type=int, default=2, help="also measure with this many (1: do not)")
    parser.add_argument("--gzip", action="store_true", help="also measure the same file compressed")
    parser.add_argument("--no-orjson", action="store_true", help="skip orjson.loads (it needs 7 times the file's size)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each reader; the fastest is shown")
    parser.add_argument("--folder", type=Path, default=None, help="where to put the big file")
    options = parser.parse_args()
    for trace in options.trace or [SHARED / f"{name}.json.gz" for name in DEFAULT_TRACES]:
        folder = Path(tempfile.mkdtemp(prefix="opreplay-bench-", dir=options.folder))
        try:
            _run(trace, folder, options)
        finally:
            shutil.rmtree(folder)


def _run(trace: Path, folder: Path, options: argparse.Namespace) -> None:
    big = folder / "big.json"
    start = time.perf_counter()
    size = repeat_trace(trace, big, _bytes(options.size))
    print(f"{trace.name}: {size / 1e9:.2f} GB generated in {time.perf_counter() - start:.0f} s")

    def best(code: str, path: Path, *arguments: str) -> dict[str, Any]:
        runs = [_measure(code, path, *arguments) for _ in range(options.repeat)]
        return min(runs, key=lambda r: r.get("seconds", 1e9))

    alone = _show("1 process", size, best(_READ, big, "1"), None)
    if options.processes > 1:
        _show(f"{options.processes} processes", size, best(_READ, big, str(options.processes)), alone)
    read_s = best(_READ, big, "1").get("cpu_s")
    for kind in ("between", "op-filter"):
        trimmed = best(_TRIM, big, kind)
        _show(f"trim --{kind}", size, trimmed, alone)
        if read_s and "cpu_s" in trimmed:
            print(f"  {'':<16} {trimmed['cpu_s'] / read_s:.2f} times the processor time of reading")
    if not options.no_orjson:
        _show("orjson.loads", size, best(_ORJSON, big), alone)
    if options.gzip:
        packed = folder / "big.json.gz"
        with open(big, "rb") as source, gzip.open(packed, "wb", compresslevel=5) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        print(f"  gzip: {packed.stat().st_size / 1e6:.0f} MB")
        _show("1 process, gzip", size, best(_READ, packed, "1"), alone)


if __name__ == "__main__":
    main()
