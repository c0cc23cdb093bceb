"""Who knows least of an op has the widest band; copies compute nothing; what hands a value over runs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import Result

from benchmarks.device_model.tables import read_folder
from opreplay.replay.ascend.calibrate.validate import groups_of_tables
from opreplay.replay.ascend.cost.predict import MOST_BY_BYTES, UNKNOWN, predict_kernel
from opreplay.replay.ascend.devices.file import list_devices, load_device
from opreplay.replay.results.records import Simulated

Console = Callable[..., Result]
PLUGIN = """
import torch
from opreplay import tile
from opreplay.replay.ascend.lowering import lowers
from opreplay.replay.ops.op_view import kernel

for name in ("untold", "ruled", "tiled"):
    torch.library.define(f"bands_test::{name}", "(Tensor x) -> Tensor")
    torch.library.impl(f"bands_test::{name}", "CPU", torch.neg)
    torch.library.register_fake(f"bands_test::{name}", torch.empty_like)

@lowers("bands_test::ruled")
def ruled(op):
    return [kernel("NobodysKernel", [op.dense("x", at=0)], [op.dense("x", at=0)]) ,
            kernel("Mul", [op.dense("x", at=0)], [op.dense("x", at=0)])]

@tile.kernel("bands_test::tiled", reference=torch.neg)
def tiled(x, y: tile.Out):
    for r in tile.blocks(x.shape[0], 8):
        tile.store(y[r], tile.load(x[r]) * -1.0)
"""


def predicted(console: Console, *calls: str, plugin: Path | None = None, l2: str = "cold") -> list[Simulated]:
    args = ["op", *calls, "--no-measure", "--format", "json", "--l2", l2]
    args += [] if plugin is None else ["--plugin", str(plugin)]
    found = [case["simulated"]["910b3"] for case in json.loads(console(*args).stdout)["cases"]]
    return [msgspec.convert(one, Simulated) for one in found]


@pytest.mark.slow
@pytest.mark.parametrize("l2", ["cold", "warm", "sequence"])
def test_an_op_by_its_bytes_alone_has_the_widest_band(l2: str, tmp_path: Path, console: Console) -> None:
    plugin = tmp_path / "bands.py"
    plugin.write_text(PLUGIN.replace("bands_test", f"bands_{l2}"))
    calls = [f"bands_{l2}::{name}(f32[64,4096])" for name in ("untold", "tiled", "ruled")]
    calls += ["aten::mul(f32[64,4096], f32[64,4096])", "aten::exp(f32[64,4096])"]
    untold, *others = predicted(console, *calls, plugin=plugin, l2=l2)
    assert (untold.by, others[0].by) == ("bytes", "tile program")
    assert untold.high_us / untold.time_us == pytest.approx(MOST_BY_BYTES)
    for other in others:
        assert untold.high_us / untold.time_us > other.high_us / other.time_us, other.by
        if other.by != "tile program":  # whose launch in a sequence is that of a call alone
            assert untold.low_us <= other.low_us, "its bytes are the bound of every op that moves as much"


def test_the_band_of_bytes_is_what_left_out_kernels_take(shared_ascend: Path) -> None:
    """Every measured kernel, costed as if nothing were known of it: 10 % take longer than the band says."""
    found, _ = read_folder(shared_ascend, list_devices())
    groups = groups_of_tables(found)
    taken: list[float] = []
    for group in groups:
        call = msgspec.structs.replace(group.launches[0].row.call, type=UNKNOWN, attrs={})
        made = predict_kernel(call, load_device(group.soc), state=group.launches[0].state)
        taken.append(float(np.mean([one.duration_us for one in group.launches])) / made.time_us)
    assert len(taken) > 300
    assert np.quantile(taken, 0.9) == pytest.approx(MOST_BY_BYTES, rel=0.15)
    assert 1.2 < np.median(taken) < 2.0


def test_conversions_of_layout_are_no_arithmetic(console: Console) -> None:
    convolution, transposed, product = predicted(
        console,
        "aten::conv2d(f16[16,32,24,24], f16[32,32,3,3])",
        "aten::clone(f32[512,512]{1,512}, memory_format=torch.contiguous_format)",
        "aten::mm(f16[512,512], f16[512,512])",
    )
    assert "TransData" in convolution.kernels
    assert convolution.terms_us["moving"] > 0.0
    assert transposed.terms_us.get("cube", 0.0) + transposed.terms_us.get("vector", 0.0) == 0.0
    assert product.terms_us["cube"] > 0.0


def test_a_value_that_the_host_reads_is_no_work_of_the_device(console: Console) -> None:
    for one in predicted(
        console, "aten::item(f32[1])", "aten::is_nonzero(bool[1])", "aten::_local_scalar_dense(i64[1])"
    ):
        assert (one.time_us, one.kernels, one.bound) == (0.0, (), "none")


def test_a_sum_may_take_as_long_as_its_part_of_unknown_work(tmp_path: Path, console: Console) -> None:
    """Of two ops alike the one that nothing is known of may take 7.7 times its time, and so may the sum of both."""
    plugin, trace = tmp_path / "sums.py", tmp_path / "t.json"
    plugin.write_text(PLUGIN.replace("bands_test", "bands_sum").partition("@lowers")[0])
    console("op", "bands_sum::untold(f32[8])", "--no-measure", "--plugin", plugin)
    shape = {"Input Dims": [[2048, 2048]], "Input type": ["float"]}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 100 * at, "dur": 50, "args": shape}
        for at, name in enumerate(("bands_sum::untold", "aten::relu"))
    ]
    trace.write_text(json.dumps({"traceEvents": events}))
    found = json.loads(console("simulate", trace, "--format", "json", "--set", "no_cache=true").stdout)
    (step,) = found["socs"].values() if isinstance(found["socs"], dict) else found["socs"]
    (untold,) = (op["simulated"]["910b3"] for op in found["unique_ops"] if op["name"] == "bands_sum::untold")
    assert untold["by"] == "bytes"
    assert step["high_us"] >= step["total_us"] + untold["time_us"] * (MOST_BY_BYTES - 1.0) * 0.999


def test_an_op_without_a_prediction_says_what_the_host_recorded(tmp_path: Path, console: Console) -> None:
    """In a trace of a CPU there is no device time: it was "recorded 0 µs"."""
    plugin, trace = tmp_path / "fits.py", tmp_path / "t.json"
    plugin.write_text(
        PLUGIN.replace("bands_test", "bands_fit").replace("blocks(x.shape[0], 8)", "blocks(x.shape[0], 64)")
    )
    shape = {"Input Dims": [[2048, 4096]], "Input type": ["float"]}
    event = {"ph": "X", "cat": "cpu_op", "name": "bands_fit::tiled", "pid": 1, "tid": 1, "ts": 100, "dur": 50}
    trace.write_text(json.dumps({"traceEvents": [{**event, "args": shape}]}))
    text = " ".join(console("simulate", trace, "--plugin", plugin, "--set", "no_cache=true").stdout.split())
    assert "100.0 % of the time, recorded 50.0 µs on the host: no prediction for 910b3" in text
