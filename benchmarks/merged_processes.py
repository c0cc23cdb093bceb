"""Merge a public trace with copies of itself as other tools do, and count device time given to another process's ops.

    PYTHONPATH=. .venv/bin/python benchmarks/merged_processes.py [--traces FOLDER] [--only NAME]

Ops and kernels of each copy are renamed, so that an owner from another process shows. Bar: 0 % in every style.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from opreplay.traces import Trace, read_trace

Event = dict[str, Any]
TRACES = (
    "mi300_sglang_prefilldecode",
    "nvidia_sampled_rank0",
    "h100_qwen1.5_0.5b",
    "mi300_resnet_ddp_act_checkpoint",
    "h100_bert_small",
)
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
SHIFTS_US = (30, 3000, 0)
IDS = ("External id", "correlation", "Record function id", "Sequence number")


def on_device(event: Event) -> bool:
    """Whether an event stands under the process id of a device."""
    return event.get("cat") in (*DEVICE, "gpu_user_annotation") or (event.get("cat") == "ac2g" and event["ph"] == "f")


def prefix(event: Event, rank: int) -> None:
    """SGLang's merge_profiles."""
    event["pid"] = f"[TP{rank:02d}] {event['pid']}"


def suffix(event: Event, rank: int) -> None:
    """A rank after each id."""
    event["pid"] = f"{event['pid']}_rank{rank}"


def offset(event: Event, rank: int) -> None:
    """A number added to each id."""
    if isinstance(event.get("pid"), int):
        event["pid"] += 1_000_000 * rank


def device_ids(event: Event, rank: int) -> None:
    """Processes and devices have other ids by nature, as in PyTorch's profile_analysis --combine."""
    event["pid"] = _plus(event.get("pid"), (1 if on_device(event) else 17) * rank)
    if "device" in (arguments := event.get("args") or {}):
        arguments["device"] += rank


def device_ids_as_text(event: Event, rank: int) -> None:
    """The same with ids as text."""
    device_ids(event, rank)
    event["pid"] = str(event.get("pid"))


def one_device(event: Event, rank: int) -> None:
    """Both processes call their device 0."""
    event["pid"] = _plus(event.get("pid"), 0 if on_device(event) else 17 * rank)


def only_devices_differ(event: Event, rank: int) -> None:
    """Containers: process and thread ids are the same."""
    if on_device(event):
        device_ids(event, rank)


def other_threads(event: Event, rank: int) -> None:
    """One process id, other thread ids."""
    event["tid"] = _plus(event.get("tid"), 1_000_000 * rank)


STYLES: dict[str, Callable[[Event, int], None]] = {
    style.__name__: style
    for style in (
        prefix,
        suffix,
        offset,
        device_ids,
        device_ids_as_text,
        one_device,
        only_devices_differ,
        other_threads,
    )
}


def _plus(value: Any, more: int) -> Any:
    return value + more if isinstance(value, int) else value


def copies(
    events: list[Event], style: Callable[[Event, int], None], *, shift_us: float, ranks: int, id_shift: int
) -> Iterator[Event]:
    """Yield the events of all ranks one after the other; `id_shift` is added to the ids of each further rank."""
    for rank in range(ranks):
        for event in copy.deepcopy(events):
            if event.get("cat") in ("cpu_op", *DEVICE):
                event["name"] = f"rank{rank}::{event['name']}"
            for key in IDS:
                if isinstance((event.get("args") or {}).get(key), int):
                    event["args"][key] += id_shift * rank
            if event.get("cat") == "ac2g":
                event["id"] += id_shift * rank
            if "ts" in event and isinstance(event["ts"], (int, float)):
                event["ts"] += shift_us * rank
            style(event, rank)
            yield event


def shares(trace: Trace) -> tuple[float, float]:
    """Return the shares of the device time with an owner of another process, and of the right one."""
    kernels = trace.kernels
    of_kernel = np.array([int(name.partition("::")[0][4:]) for name in trace.kernel_names])[kernels.name]
    of_op = np.array([int(s.name.partition("::")[0][4:]) for s in trace.signatures])[trace.ops.signature]
    owned = kernels.owner >= 0
    other = owned & (of_op[np.maximum(kernels.owner, 0)] != of_kernel)
    total = float(kernels.dur_ns.sum())
    return float(kernels.dur_ns[other].sum()) / total, float(kernels.dur_ns[owned & ~other].sum()) / total


def variants(size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each way to merge copies of a trace with so many ids."""
    for name, style in STYLES.items():
        for shift in SHIFTS_US:
            yield f"{name} {shift} us", {"style": style, "shift_us": shift, "ranks": 2, "id_shift": 0, "by_time": False}
    for name in ("prefix", "offset", "device_ids", "one_device", "other_threads"):
        common = {"style": STYLES[name], "shift_us": 30}
        yield f"{name} three processes", {**common, "ranks": 3, "id_shift": 0, "by_time": False}
        yield f"{name} ids overlap in part", {**common, "ranks": 2, "id_shift": size // 2, "by_time": False}
        yield f"{name} sorted by time", {**common, "ranks": 2, "id_shift": 0, "by_time": True}


def main(arguments: list[str] | None = None) -> int:
    """Print a row per trace and style; 1 where device time went to another process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=Path(__file__).parents[2] / "shared" / "traces")
    parser.add_argument("--only", choices=TRACES)
    given = parser.parse_args(arguments)
    worst = alone = 0.0
    print(f"{'trace':32} {'style':36} {'other process':>14} {'right':>8} {'as alone':>9} graphs")
    for name in TRACES if given.only is None else (given.only,):
        with gzip.open(given.traces / f"{name}.json.gz") as file:
            document = json.load(file)
        kept = ("python_function", "cpu_instant_event")
        events = [event for event in document["traceEvents"] if event.get("cat") not in kept]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "merged.json"
            for style, how in [
                ("alone", {"style": prefix, "shift_us": 0, "ranks": 1, "id_shift": 0, "by_time": False}),
                *variants(max((event.get("args") or {}).get("correlation", 0) for event in events)),
            ]:
                by_time = how.pop("by_time")
                merged = list(copies(events, **how))
                if by_time:
                    merged.sort(key=lambda event: float(event.get("ts") or 0))
                path.write_text(json.dumps({**document, "traceEvents": merged}))
                trace = read_trace(path)
                wrong, right = shares(trace)
                alone = right if style == "alone" else alone
                graphs = 0 if trace.graphs is None else len(trace.graphs)
                worst = max(worst, wrong)
                print(f"{name:32} {style:36} {wrong:14.2%} {right:8.1%} {alone:9.1%} {graphs}", flush=True)
    return int(worst > 0)


if __name__ == "__main__":
    sys.exit(main())
