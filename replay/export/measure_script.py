"""Measures the calls below on an NPU and writes their times to measured.csv. Needs torch and torch_npu, nothing else.

Each call is measured warm (in a loop, on the same tensors) and cold (a buffer larger than the L2 cache is written
before each call). Times are device times, between two events on the stream; on a CPU they are host times. At the start,
in the middle and at the end, a matrix product and a copy of fixed size are timed. If their times differ, the clock has
changed.

A row is written as soon as a call is measured. Ctrl-C keeps all rows, and the next run continues after them. Calls run
in a child process. A call that fails, crashes or hangs is reported and does not affect others.
"""

from __future__ import annotations

import argparse
import csv
import gc
import importlib.util
import json
import multiprocessing
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from opreplay.replay.export.script import NAMESPACES, OF_TORCH, Call, first_line, opened

FACTS: dict[str, Any] = {}
"""Facts about the simulated step and about calls that are not included."""
CALLS: list[str] = []
"""One JSON text per call. First come the calls whose measurement makes the predicted total most certain."""

COLUMNS = ("source", "soc", "cann", "state", "l2", "op", "torch_us", "exact", "other_us", "other", "note")
STATES = ("warm", "cold")
SAMPLES = 9
"""Number of samples of each call in each cache state. If the samples differ much, more are taken, up to
`MOST_SAMPLES`.
"""
MOST_SAMPLES = 45
STEADY = 0.05
"""Maximum spread of samples that count as steady. The spread is the interquartile range divided by the median."""
BATCH_US, MOST_CALLS = 1000.0, 100
"""Target duration, in µs, of a warm sample, in which one call is repeated, and maximum number of calls in a sample."""
HELD = 1.5
"""Factor by which the device is kept busy longer than the host needs to queue a sample."""
MOST_HELD_US = 50_000.0
DRIFT = 0.05
"""Minimum relative difference between the times of the reference calls at which the clock is reported as changed."""
START_S = 300.0
"""Maximum seconds for a child process to import torch and open the device."""
SETUP_S = 1.5
"""Assumed seconds to create the arguments of a call and for its first run."""


class Timer:
    """Measures the time of calls on one device, with events on its stream if it supports them."""

    def __init__(self, device: torch.device, flush_bytes: int) -> None:
        self.device = device
        self.backend = getattr(torch, device.type)
        self.has_events = device.type != "cpu"
        self.buffer = torch.zeros(max(1, flush_bytes // 4), dtype=torch.float32, device=device)
        size, half = (2048, torch.bfloat16) if self.has_events else (256, torch.float32)
        self.held = torch.zeros(size, size, dtype=half, device=device)
        self.out = torch.empty_like(self.held)
        self.pair_us = self.hold_us = 0.0
        if self.has_events:
            self.hold(3)
            self.backend.synchronize()
            self.hold_us = self.between(lambda: self.hold(20)) / 20
            self.pair_us = min(self.between(lambda: None) for _ in range(9))

    def hold(self, products: int) -> None:
        """Queue work that keeps the device busy while the host queues a sample."""
        for _ in range(products):
            torch.mm(self.held, self.held, out=self.out)

    def between(self, run: Callable[[], Any]) -> float:
        """Return the time in microseconds between device events recorded before and after `run` queues its work."""
        return self.queued(run)[0]

    def queued(self, run: Callable[[], Any]) -> tuple[float, bool]:
        """Return the time as `between` does, and whether the device had to wait for the host."""
        start, end = (self.backend.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        waited = bool(start.query())
        self.backend.synchronize()
        return max(0.0, start.elapsed_time(end) * 1e3 - self.pair_us), waited

    def host_us(self, call: Callable[[], Any], calls: int) -> float:
        """Return the time in microseconds that the host needs to run, or to queue, one call."""
        self.backend.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        took = time.perf_counter() - start
        self.backend.synchronize()
        return took / calls * 1e6

    def warm(self, call: Callable[[], Any], calls: int, queue_us: float) -> tuple[float, bool]:
        """Return (time per call in a loop in microseconds, whether the device had to wait for the host)."""
        if not self.has_events:
            return self.host_us(call, calls), False

        def loop() -> None:
            for _ in range(calls):
                call()

        held_us = min(MOST_HELD_US, HELD * queue_us * (calls + 2))
        self.hold(round(held_us / max(self.hold_us, 1.0)) + 1)
        call()
        call()  # the product that held the device back has taken the caches
        took_us, waited = self.queued(loop)
        return took_us / calls, waited

    def cold(self, call: Callable[[], Any], queue_us: float) -> tuple[float, bool]:
        """Return (time in microseconds of one call after the caches were cleared, whether the device had to wait for
        the host).
        """
        if self.has_events:
            self.hold(round(min(MOST_HELD_US, HELD * queue_us) / max(self.hold_us, 1.0)) + 1)
        self.buffer.add_(1.0)
        return self.queued(call) if self.has_events else (self.host_us(call, 1), False)


def spread_of(times_us: list[float]) -> float:
    """Return the interquartile range of samples as a share of their median."""
    quarters = statistics.quantiles(times_us, method="inclusive")
    return (quarters[2] - quarters[0]) / max(quarters[1], 1e-9)


def measured(timer: Timer, call: Call, state: str, samples: int, deadline: float) -> dict[str, Any]:
    """Return median, spread and other facts about a call's time in one cache state; times in microseconds."""
    call.reset()
    queue_us = timer.host_us(call, 3)
    calls = 1
    if state == "warm":
        once_us = timer.warm(call, 1, queue_us)[0]
        calls = call.calls_a_sample(max(1, min(MOST_CALLS, round(BATCH_US / max(once_us, 1.0)))))
        call.reset()
    times_us: list[float] = []
    waits = 0
    while len(times_us) < samples or (
        spread_of(times_us) > STEADY and len(times_us) < max(samples, MOST_SAMPLES) and time.monotonic() < deadline
    ):
        if state == "warm":
            call.ready(calls)
            took_us, waited = timer.warm(call, calls, queue_us)
        else:
            call.reset()
            took_us, waited = timer.cold(call, queue_us)
        times_us.append(took_us)
        waits += waited
    return {
        "l2": state,
        "us": statistics.median(times_us),
        "spread": spread_of(times_us),
        "samples": len(times_us),
        "calls": calls,
        "host_bound": waits > len(times_us) / 2,
    }


def references(timer: Timer) -> dict[str, float]:
    """Return the rates of a matrix product and of a copy, both of fixed size. They show the current speed of the
    device.
    """
    device = timer.device
    size, half = (4096, torch.bfloat16) if timer.has_events else (512, torch.float32)
    a, b = (torch.ones(size, size, dtype=half, device=device) for _ in range(2))
    source = timer.buffer[: max(1, timer.buffer.numel() // 2)]
    target = torch.empty_like(source)
    product, copy = (lambda: torch.mm(a, b)), (lambda: target.copy_(source))
    times_us: list[float] = []
    for call in (product, copy):
        call()
        queue_us = timer.host_us(call, 1)
        times_us.append(statistics.median(timer.warm(call, 3, queue_us)[0] for _ in range(5)))
    product_us, copy_us = (max(us, 1e-3) for us in times_us)
    return {
        "tflops": 2 * size**3 / product_us / 1e6,
        "gb_per_s": 2 * source.numel() * 4 / copy_us / 1e3,
    }


def device_works(device: torch.device) -> bool:
    """Check whether the device still computes. After some faults, all further calls in the process fail."""
    try:
        return float(torch.ones(4, device=device).sum()) == 4.0
    except Exception:
        return False


def serve(channel: Any, options: dict[str, Any], wanted: list[int]) -> None:
    """Run the child process: measure calls and send each result as one message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    NAMESPACES.add("npu")
    try:
        device = opened(options["device"], threads=int(options["device"] == "cpu"))
        timer = Timer(device, options["flush_bytes"])
        facts = about(device)
    except Exception as error:
        channel.send({"kind": "no device", "why": f"{type(error).__name__}: {first_line(error)}"})
        return
    channel.send({"kind": "device", **facts})
    checks = {wanted[0], wanted[len(wanted) // 2]} if wanted else set()
    for index in wanted:
        if time.monotonic() > options["deadline"]:
            channel.send({"kind": "no time"})
            break
        if index in checks:
            channel.send({"kind": "reference", **references(timer)})
        channel.send({"kind": "begin", "index": index})
        call = json.loads(CALLS[index])
        try:
            ready = Call(call, call["inputs"], device, index)
            ready()
            ready.find_resets(call["name"].partition("::")[0] in OF_TORCH)
            timer.backend.synchronize()
            rows = [measured(timer, ready, state, options["samples"], options["deadline"]) for state in STATES]
        except Exception as error:
            channel.send({"kind": "failed", "index": index, "why": f"{type(error).__name__}: {first_line(error)}"})
            if not device_works(device):
                os._exit(3)  # a new process may still have a device that works
        else:
            channel.send({"kind": "measured", "index": index, "rows": rows})
        ready = None
        gc.collect()
        if timer.has_events:
            timer.backend.empty_cache()
    channel.send({"kind": "reference", **references(timer)})
    channel.send({"kind": "end"})


def about(device: torch.device) -> dict[str, str]:
    """Return names and versions of the device and its software."""
    name, cann = "cpu", ""
    if device.type != "cpu":
        name = str(getattr(torch, device.type).get_device_name(device))
    software = f"torch {torch.__version__}"
    if device.type == "npu":
        module = sys.modules["torch_npu"]
        software += f", torch_npu {getattr(module, '__version__', '')}"
        home = os.path.realpath(os.environ.get("ASCEND_TOOLKIT_HOME", ""))
        found = re.search(r"\d+\.\d+[.\w]*", home)
        cann = found[0] if found else ""
    return {"name": name, "software": software, "cann": cann}


def messages(options: dict[str, Any], wanted: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the messages of child processes. If a child dies or hangs, another one replaces it, and the call that it
    was running counts as failed.
    """
    context = multiprocessing.get_context("spawn")
    waiting = list(wanted)
    while True:
        ours, theirs = context.Pipe()
        child = context.Process(target=serve, args=(theirs, options, waiting), daemon=True)
        child.start()
        theirs.close()
        current: int | None = None
        left, limit_s = len(waiting), max(START_S, options["time_limit"])
        try:
            while True:
                if not ours.poll(limit_s):
                    raise TimeoutError(f"no result after {limit_s:g} s")
                message, limit_s = ours.recv(), options["time_limit"]
                if message["kind"] == "begin":
                    current = int(message["index"])
                    waiting.remove(current)
                    continue
                current = None if message["kind"] in ("measured", "failed") else current
                yield message
                if message["kind"] in ("end", "no device"):
                    child.join()
                    return
        except (EOFError, OSError) as error:  # a timeout is one
            child.kill()
            child.join()
            why = (
                str(error) if isinstance(error, TimeoutError) else f"its process ended with exit code {child.exitcode}"
            )
            if len(waiting) == left:  # before any call: another process would do no better
                yield {"kind": "no device", "why": why}
                return
            if current is not None:
                yield {"kind": "failed", "index": current, "why": why}
            if not waiting:
                return
        finally:
            if child.is_alive():
                child.kill()


def soc_of(name: str) -> str:
    """Return the name that tables use for the SoC of a device; for an unknown SoC, the name of the device itself."""
    plain = re.sub(r"[^a-z0-9-]", "", name.lower()).removeprefix("ascend")
    return FACTS["socs"].get(plain, plain)


def drop_cut_row(path: Path) -> bool:
    """Remove an incomplete last row of a table, which a killed program left. Return whether there was such a row.

    A file without any complete line is left unchanged, because it may not be a table.
    """
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if text[:whole].partition(b"\n")[0].strip() != ",".join(COLUMNS).encode() or whole == len(text):
        return False
    os.truncate(path, whole)
    return True


def read_done(path: Path) -> set[tuple[str, str, str]]:
    """Return (soc, l2, op) of each row of an earlier run. Raises ValueError if the file is not a table of
    this script.
    """
    if not path.exists() or not path.stat().st_size:
        return set()
    if drop_cut_row(path):
        print(f"the last row of {path} was incomplete: its call is measured again")
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if tuple(rows.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{path} exists and is not a table of measured calls; choose another file with --output")
        return {(row["soc"], row["l2"], row["op"]) for row in rows}


def row_of(call: dict[str, Any], row: dict[str, Any], soc: str, facts: dict[str, str], device: str) -> list[str]:
    """Return one row of the table."""
    how = "host clock" if device == "cpu" else "device events"
    state = (
        f"{how}, {row['calls']} calls in a loop" if row["l2"] == "warm" else f"{how}, cache cleared before each call"
    )
    notes = [f"spread {100 * row['spread']:.1f} %", f"{row['samples']} samples", f"on {facts['name']}"]
    notes += ["host-bound: the device waited for the host"] if row["host_bound"] else []
    source = f"measure.py, {facts['software']}"
    exact = "no" if row["host_bound"] else "yes"
    return [
        source,
        soc,
        facts["cann"],
        state,
        row["l2"],
        call["text"],
        f"{row['us']:.5g}",
        exact,
        "",
        "",
        "; ".join(notes),
    ]


def drift(found: list[dict[str, float]]) -> float:
    """Return the largest relative difference between repeated measurements of the matrix product, or of the copy."""
    if len(found) < 2:
        return 0.0
    return max(max(f[key] for f in found) / min(f[key] for f in found) - 1 for key in ("tflops", "gb_per_s"))


class Report:
    """Results of all calls, for the summary at the end."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.failed: list[tuple[str, str]] = []
        self.references: list[dict[str, float]] = []
        self.notes: list[str] = []

    def show(self, output: Path, soc: str) -> None:
        """Print the summary."""
        calls = {call["text"] for call, _ in self.rows}
        print(f"\n{len(calls)} calls measured, {len(self.failed)} failed; rows in {output}")
        if self.references:
            shown = "; ".join(f"{f['tflops']:.3g} TFLOP/s, {f['gb_per_s']:.4g} GB/s" for f in self.references)
            print(f"reference matrix product and copy: {shown}")
            changed = drift(self.references)
            steady = (
                f"reference measurements differ by {100 * changed:.0f} %: times may be wrong by as much; measure again"
            )
            steady = "steady" if changed <= DRIFT else steady
            steady = steady if len(self.references) > 1 else "not checked: there is only one reference measurement"
            print(f"clock: {steady}")
        self.show_ratios()
        unsteady = sum(row["spread"] > STEADY for _, row in self.rows)
        host_bound = sum(row["host_bound"] for _, row in self.rows)
        if unsteady:
            print(f"unsteady: {unsteady} of {len(self.rows)} times have a spread above {100 * STEADY:.0f} %")
        if host_bound:
            print(f"host-bound: {host_bound} times measure the host, not the device; `calibrate` ignores them")
        for text, why in self.failed:
            print(f"failed: {short(text)}: {why}")
        for line in [*self.notes, *FACTS["left_out"]]:
            print(line)
        print(f"next: opreplay calibrate {output} --soc {soc} --output mine.toml")

    def show_ratios(self) -> None:
        """Print the ratios of measured to predicted times, largest deviation first."""
        ratios = sorted(
            ((row["us"] / call["predicted_us"][row["l2"]], call, row) for call, row in self.rows),
            key=lambda item: -max(item[0], 1 / max(item[0], 1e-9)),
        )
        if not ratios:
            return
        median = statistics.median(ratio for ratio, *_ in ratios)
        print(f"measured / predicted: median {median:.2f}; largest deviations:")
        for ratio, call, row in ratios[:8]:
            print(f"  {ratio:8.2f}x  {row['us']:10.1f} us  {row['l2']}  {short(call['text'])}")


def short(text: str) -> str:
    """Return a call shortened to one terminal line."""
    return text if len(text) <= 90 else f"{text[:87]}..."


def seconds(text: str) -> float:
    """Parse "90", "90s" or "5m" to seconds. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(s|m|min)?", text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * (60.0 if match[2] in ("m", "min") else 1.0)


def parsed() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--device", default="", help="npu, npu:1, cuda, cpu  (default: npu where torch_npu is installed)")
    add("--output", type=Path, default=Path("measured.csv"), help="default: measured.csv")
    add("--budget", type=seconds, default=FACTS["budget_s"], help="seconds, or minutes as 5m  (default: as exported)")
    add("--samples", type=int, default=SAMPLES, help=f"minimum number of samples of each time  (default: {SAMPLES})")
    add("--calls", type=int, default=len(CALLS), help="measure only the first N calls")
    add("--soc", default="", help="name of the device in the table  (default: its own)")
    add("--flush-mb", type=float, default=0.0, help="MB written to clear the caches  (default: twice the L2 cache)")
    add("--time-limit", type=float, default=120.0, help="time limit of one call in seconds  (default: 120)")
    options = parser.parse_args()
    if options.samples < 2:
        parser.error("--samples must be at least 2")
    return parser, options


def default_device() -> str:
    """Return the device to measure: an NPU if torch_npu is installed, else CUDA if available, else the CPU."""
    if importlib.util.find_spec("torch_npu") is not None:
        return "npu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def take(
    found: Iterable[dict[str, Any]], report: Report, options: argparse.Namespace, device: str, writer: Any
) -> str | None:
    """Write rows as they arrive and print a line for each call. If nothing can be measured, return the reason;
    otherwise None.
    """
    facts: dict[str, str] = {}
    for message in found:
        kind = message["kind"]
        if kind == "no device":
            return f"no device {device!r} here: {message['why']}"
        if kind == "device":
            facts = message
            soc = options.soc or soc_of(facts["name"])
            if FACTS["soc"] and soc != FACTS["soc"]:
                report.notes = [f"the device calls itself {facts['name']}; its rows name {soc}, not {FACTS['soc']}"]
            print(f"device: {facts['name']}, {facts['software']}; rows name {soc}", flush=True)
        elif kind == "reference":
            report.references.append(message)
        elif kind == "no time":
            report.notes.append(f"the budget of {options.budget:g} s is spent; run again to continue")
        elif kind == "failed":
            text = json.loads(CALLS[message["index"]])["text"]
            report.failed.append((text, message["why"]))
            print(f"failed  {short(text)}: {message['why']}", flush=True)
        elif kind == "measured":
            call = json.loads(CALLS[message["index"]])
            for row in message["rows"]:
                writer(row_of(call, row, options.soc or soc_of(facts["name"]), facts, device.partition(":")[0]))
                report.rows.append((call, row))
            times = "  ".join(
                f"{row['l2']} {row['us']:9.1f} us ({100 * row['spread']:.0f} %)" for row in message["rows"]
            )
            print(f"{times}  predicted {call['predicted_us']['cold']:9.1f}  {short(call['text'])}", flush=True)
    return None


def main() -> int:
    parser, options = parsed()
    device = options.device or default_device()
    try:
        done = read_done(options.output)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    texts = [json.loads(line)["text"] for line in CALLS[: options.calls]]
    states_of: dict[str, set[str]] = {}
    for _, state, text in done:
        states_of.setdefault(text, set()).add(state)
    wanted = [index for index, text in enumerate(texts) if not states_of.get(text, set()).issuperset(STATES)]
    if len(wanted) < len(texts):
        print(f"{len(texts) - len(wanted)} of {len(texts)} calls are in {options.output} already")
    flush_bytes = round(options.flush_mb * 1e6) or (2 * FACTS["l2_bytes"] if device != "cpu" else 128 << 20)
    settings = {
        "device": device,
        "flush_bytes": flush_bytes,
        "samples": options.samples,
        "time_limit": options.time_limit,
        "deadline": time.monotonic() + options.budget,
    }
    report = Report()
    with options.output.open("a", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")

        def write(row: Iterable[str]) -> None:
            rows.writerow(row)
            file.flush()

        if not file.tell():
            write(COLUMNS)
        problem = None
        try:
            problem = take(messages(settings, wanted), report, options, device, write)
        except KeyboardInterrupt:
            report.notes.append("interrupted: the rows so far are kept; run again to continue")
    if problem is not None:
        parser.error(problem)
    report.show(options.output, options.soc or FACTS["soc"] or "NAME")
    return int(bool(report.failed))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted before the first call: nothing was measured")
