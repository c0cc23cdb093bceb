"""What a recorded device is: by its name, else by its properties where these leave but one; its number, as text too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opreplay.replay.timeline.timeline import step_of
from opreplay.traces import read_trace
from opreplay.traces.dialects.kineto import run_facts
from opreplay.traces.times.busy import device_busy
from opreplay.traces.times.peaks import peak_of
from tests.traces.events import document, kernel, launch, note, op, write

CDNA3 = {"name": "", "computeMajor": 9, "computeMinor": 4, "numSms": 304, "warpSize": 64}


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        (CDNA3 | {"totalGlobalMem": 206141652992}, "MI300X"),
        (CDNA3 | {"totalGlobalMem": 274743689216}, "MI325X"),
        (CDNA3 | {"totalGlobalMem": 206141652992, "numSms": 80}, None),
        (CDNA3 | {"totalGlobalMem": 206141652992, "name": "AMD Instinct MI210"}, "MI210"),
        (CDNA3 | {"totalGlobalMem": "192 GiB"}, None),
        (CDNA3, None),
    ],
    ids=["192 GiB", "256 GiB", "other compute units", "a name goes first", "text", "no memory"],
)
def test_a_device_without_a_name(device: dict[str, object], peak: str | None) -> None:
    keys = {"deviceProperties": json.dumps([device, device]).encode()}
    facts = run_facts(keys, set(), has_kernels=True, ascend=False)
    known = peak_of(facts.device_names)
    assert (known and known.device) == peak
    assert facts.vendor == "amd"


def two_devices(device: Callable[[int], Any], stream: Any, *, of_pid: bool) -> list[dict[str, Any]]:
    """Work of 60 us on each of two devices at the same times."""
    events: list[dict[str, Any]] = [note("ProfilerStep#1", 0, 1000)]
    for call in range(20):
        at, ids = 100 * (call // 2), {"External id": call + 1, "correlation": call + 1}
        events += [op("aten::mm", at + 2 * (call % 2), 2, call + 1), launch(at + 2 * (call % 2) + 1, call + 1)]
        event = kernel("gemm", at + 8, 60, **ids)
        event |= {"pid": device(call % 2), "tid": stream} if of_pid else {}
        event["args"] |= {} if of_pid else {"device": device(call % 2), "stream": stream}
        for key in ("device", "stream") if of_pid else ():
            del event["args"][key]
        events.append(event)
    return events


@pytest.mark.parametrize("of_pid", [True, False])
@pytest.mark.parametrize(
    ("device", "stream"),
    [
        (lambda number: number, 7),
        (lambda number: f"cuda:{number}", "stream 7"),
        (lambda number: f"GPU {number}", "Stream #7 (Compute)"),
        (lambda number: f"{number}", "7"),
        (lambda number: f"{number}.0", "7.0"),
    ],
)
def test_devices_and_streams_that_are_text(
    tmp_path: Path, device: Callable[[int], Any], stream: Any, of_pid: bool
) -> None:
    trace = read_trace(write(tmp_path, document(two_devices(device, stream, of_pid=of_pid))), activity=True)
    assert sorted({*zip(trace.kernels.device.tolist(), trace.kernels.stream.tolist(), strict=True)}) == [(0, 7), (1, 7)]
    assert [busy.busy_us for busy in device_busy(trace)] == [600.0, 600.0]
    step = step_of(trace)
    assert step is not None
    assert not step.doubts.impossible


@pytest.mark.parametrize("device", ["the GPU", -1, None, 1.5])
def test_a_device_without_a_number_is_none_of_the_host(tmp_path: Path, device: Any) -> None:
    """Device -1 stood for collectives of a host thread, whose track was then looked for."""
    events = two_devices(lambda _: device, 900, of_pid=False)
    step = step_of(read_trace(write(tmp_path, document(events[:2] + events[3:4])), activity=True))
    assert step is not None
    assert (step.busy_us, step.bound) == (60.0, "host")
