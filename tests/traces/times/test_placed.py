"""Device rows that lie nowhere in the recording: time 0, other epochs, other units; what merely lies early or late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opreplay.traces import read_trace
from opreplay.traces.times.placed import FAR_OUTSIDE, WITHOUT_TIME, misplaced
from tests.traces.events import DIMS, document, kernel, launch, op, write

NOW_US = 1_790_000_000_000_000
SECOND_US = 1_000_000


def masks(kernels: list[tuple[float, float]], host_us: float = NOW_US) -> dict[str, list[int]]:
    """Positions of the misplaced ones of some (start, duration) beside 10 ms of host calls."""
    start, dur = np.array([(round(start * 1e3), round(dur * 1e3)) for start, dur in kernels], np.int64).T
    host = np.int64(host_us * 1000) + np.arange(0, 10_000_000, 100_000)
    found = misplaced(start, dur, host, host + 50_000)
    return {reason: np.flatnonzero(rows).tolist() for reason, rows in found.items()}


SOUND = [(NOW_US + 100, 10.0), (NOW_US + 300, 10.0), (NOW_US + 500, 10.0)]


@pytest.mark.parametrize(
    ("kernels", "found"),
    [
        (SOUND, {}),
        ([(0, 0), (0, 0), *SOUND], {WITHOUT_TIME: [0, 1]}),
        ([(0, NOW_US), *SOUND], {WITHOUT_TIME: [0]}),
        ([(4_294_967_295 * SECOND_US, 5), *SOUND], {FAR_OUTSIDE: [0]}),
        ([(1, 5), *SOUND], {FAR_OUTSIDE: [0]}),
        ([(-NOW_US, 5), *SOUND], {FAR_OUTSIDE: [0]}),
        ([(NOW_US - 45 * SECOND_US, 5), *SOUND], {}),
        ([(NOW_US + 30 * SECOND_US, 5), *SOUND], {}),
        ([(start - 3600 * SECOND_US, dur) for start, dur in SOUND], {}),
        ([(start + 3600 * SECOND_US * i, dur) for i, (start, dur) in enumerate(SOUND)], {FAR_OUTSIDE: [1, 2]}),
    ],
)
def test_misplaced(kernels: list[tuple[float, float]], found: dict[str, list[int]]) -> None:
    assert masks(kernels) == found


def test_a_kernel_at_the_zero_of_a_relative_clock_is_sound() -> None:
    assert masks([(0, 10), (50, 10)], host_us=20) == {}
    assert masks([(0, 0), (0, 0), (100, 10)], host_us=20) == {WITHOUT_TIME: [0, 1]}


def test_one_damaged_time_of_the_host_does_not_hide_them(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [op("aten::old", 0, 1, 999, **DIMS)]
    for call in range(200):
        at = NOW_US + 100 * call
        events += [op("aten::mm", at, 30, call + 1, **DIMS), launch(at + 5, call + 1)]
        start = 0 if call < 2 else at + 20
        events.append(kernel("k", start, 0 if call < 2 else 10, **{"External id": call + 1, "correlation": call + 1}))
    trace = read_trace(write(tmp_path, document(events)))
    assert trace.info.report.losses == {WITHOUT_TIME: 2}
    assert len(trace.kernels) == 198
    assert int(trace.kernels.start_ns.min()) == (NOW_US + 220) * 1000
