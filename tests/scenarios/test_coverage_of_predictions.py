"""The first line of `simulate` says how much of the recorded time rules, bytes and nothing stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from opreplay.replay.ascend.simulate.coverage import coverage
from opreplay.replay.report.coverage import coverage_text
from tests.scenarios.events import owner

SHAPE = [4096, 1024]


def test_labels_are_not_simulated_and_opaque_ops_are_said_to_be(
    console: Callable[..., Result], trace_of: Callable[..., Path]
) -> None:
    """28.6 ms of a compiled backward pass were predicted as 1.49 µs, with "0.7 % uncalibrated"."""
    trace = trace_of(
        *owner("aten::add", 1, [SHAPE, SHAPE], 4100.0),
        *owner("mylib::opaque", 2, [SHAPE], 5200.0),
        *owner("CompiledFunctionBackward", 3, [SHAPE], 700.0),
    )
    done = console("simulate", trace, "--soc", "910b3")
    told = "simulated 41.0 % of device time by rules, 52.0 % by bytes only, 7.0 % not predicted"
    assert told in done.stdout.splitlines()
    assert "52.0 % by bytes only; 7.0 % not predicted" in done.stdout.splitlines()[0], "beside the number"
    facts = json.loads(console("simulate", trace, "--soc", "910b3", "--format", "json").stdout)
    by_name = {op["name"]: op["simulated"] for op in facts["unique_ops"]}
    assert by_name["CompiledFunctionBackward"] == {}
    assert by_name["mylib::opaque"]["910b3"]["by"] == "bytes"
    assert facts["covered_share"] == pytest.approx(0.93)
    opaque_us, add_us = (by_name[name]["910b3"]["time_us"] for name in ("mylib::opaque", "aten::add"))
    share = facts["socs"]["910b3"]["uncalibrated_share"]
    assert share == pytest.approx(opaque_us / (opaque_us + add_us)), "of the predicted time"
    assert facts["socs"]["910b3"]["coverage"]["bytes"] == pytest.approx(0.52), "of the recorded time"
    plan = " ".join(console("plan", trace, "--soc", "910b3").stdout.split())
    assert "52.0 % by bytes only; 7.0 % not predicted" in plan


def test_nothing_is_covered_by_no_prediction() -> None:
    text = coverage_text(coverage([(0.5, None)]), "device time")
    assert text == "0 % of device time by rules, 50.0 % not predicted, 50.0 % outside the selected ops"


@pytest.mark.parametrize("command", ["plan", "run", "simulate"])
def test_ops_that_a_filter_leaves_out_are_told_from_those_without_prediction(
    console: Callable[..., Result], trace_of: Callable[..., Path], tmp_path: Path, command: str
) -> None:
    trace = trace_of(
        *owner("aten::add", 1, [SHAPE, SHAPE], 3000.0),
        *owner("aten::mul", 2, [SHAPE, SHAPE], 6000.0),
        *owner("CompiledFunctionBackward", 3, [SHAPE], 1000.0),
    )
    how = ("--quick", "--dry-run") if command == "run" else ()
    first = console(command, trace, "--soc", "910b3", "--exclude", "aten::mul", *how).stdout
    assert "60.0 % outside the selected ops" in first
    assert "10.0 % not predicted" in first
    whole = console(command, trace, "--soc", "910b3", *how).stdout.splitlines()[0]
    assert "10.0 % not predicted" in whole
    assert "selected" not in whole


def test_products_that_the_device_has_no_path_for_are_said_to_be(
    console: Callable[..., Result], trace_of: Callable[..., Path]
) -> None:
    """A cube multiplies neither float64 nor 8-bit floats; float64 was as fast as float32 without a word."""
    trace = trace_of(
        *owner("aten::mm", 1, [[1024, 1024]] * 2, 60.0, ["double", "double"]),
        *owner("sgl_kernel::fp8_scaled_mm", 2, [[1024, 1024]] * 2, 20.0, ["c10::Float8_e4m3fn"] * 2),
        *owner("aten::add", 3, [[1024, 1024]] * 2, 10.0, ["double", "double"]),
        *owner("aten::mm", 4, [[1024, 1024]] * 2, 10.0),
    )
    told = "no unit multiplies float64, float8_e4m3fn: 2 ops = 80.0 % of the recorded time predicted as another dtype"
    for command in ("simulate", "plan"):
        assert f"910b3: {told}" in " ".join(console(command, trace).stdout.split()), command
    facts = json.loads(console("simulate", trace, "--format", "json").stdout)
    found = {(op["name"], op["inputs"][:2]): op["simulated"]["910b3"] for op in facts["unique_ops"]}
    assert [one["no_path"] for one in found.values()] == ["float64", "float8_e4m3fn", "", ""]
    wide = found["aten::mm", "f6"]
    assert (wide["confidence"], wide["extrapolated"]) == ("uncalibrated", True)
    assert wide["high_us"] >= 3 * wide["time_us"]
    alone = console("op", "aten::mm(f64[64,64], f64[64,64])", "--no-measure").stdout
    assert "910b3 has no unit that multiplies float64" in alone
    assert "no unit multiplies float64" in " ".join(
        console("compare", trace, "--times", "recorded:910b3").stdout.split()
    )
