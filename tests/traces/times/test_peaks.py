"""Peaks follow from what a device is made of: units, clock, operations a clock; pins of its memory and their rate."""

from __future__ import annotations

import pytest

from opreplay.traces.times.peaks import PEAKS, TF32, peak_named

ROWS = {
    # units, GHz, operations a clock and unit in 16 bits, in TF32 and in float32; bits of the bus, Gbit/s a pin
    "A100": (108, 1.41, 2048, 1024, 128, 5120, 2.43),
    "L40": (142, 2.49, 512, None, 256, 384, 18.0),
    "L40S": (142, 2.52, 1024, 512, 256, 384, 18.0),
    "MI355X": (256, 2.4, 4096, None, 256, 8192, 8.0),
    "MI325X": (304, 2.1, 2048, 1024, 256, 8192, 6.0),
    "MI300X": (304, 2.1, 2048, 1024, 256, 8192, 5.2),
    "MI300A": (228, 2.1, 2048, 1024, 256, 8192, 5.2),
    "MI250X": (110, 1.7, 1024, None, 256, 4096, 3.2),
    "MI250": (104, 1.7, 1024, None, 256, 4096, 3.2),
    "MI210": (104, 1.7, 1024, None, 256, 4096, 3.2),
    "MI100": (120, 1.502, 1024, None, 256, 4096, 2.4),
}
"""From the vendors' white papers. The L40 accumulates float32 at half the L40S' rate, as its datasheet says."""


@pytest.mark.parametrize("name", ROWS)
def test_a_peak_is_what_the_device_is_made_of(name: str) -> None:
    units, ghz, half, tf32, single, bits, gbits = ROWS[name]
    peak = dict(PEAKS)[name]
    per_clock = {"float16": half, TF32: tf32, "float32": single}
    for dtype, operations in per_clock.items():
        if operations is not None:
            assert peak.tflops[dtype] == pytest.approx(units * ghz * operations / 1e3, rel=0.013), dtype
    assert (TF32 in peak.tflops) == (tf32 is not None)
    assert peak.gb_per_s == pytest.approx(bits / 8 * gbits, rel=0.025)


def test_eight_bit_floats_run_twice_as_fast_where_the_device_has_them() -> None:
    assert peak_named("H100").rate_of("float8_e4m3fn") == 2 * 989.0
    assert peak_named("A100").rate_of("float8_e4m3fn") is None
    assert peak_named("A100").rate_of("bfloat16") == 312.0
