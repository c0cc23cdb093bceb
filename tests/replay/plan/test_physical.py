"""A replay that moves more memory than the recorded device could is guessed too large, and says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.ir.model import Recorded, RecordedKernel, ReplayArg, ReplayOp
from opreplay.replay.plan.physical import impossible, least_bytes, peak_of
from opreplay.traces.model import TensorMeta


def _op(name: str, *metas: TensorMeta, us: float | None = 10.0, outputs: tuple[TensorMeta, ...] = ()) -> ReplayOp:
    recorded = Recorded(
        host_us_total=100.0,
        host_us_median=100.0,
        device_us_total=us or 0.0,
        device_us_median=us,
        kernels=(RecordedKernel(name="kernel", count=1, total_us=us or 0.0),) if us else (),
    )
    args = tuple(ReplayArg(name=f"a{i}", type="Tensor", tensors=(meta,)) for i, meta in enumerate(metas))
    return ReplayOp(id="0" * 12, name=name, count=1, recorded=recorded, args=args, outputs=outputs)


def _f(*shape: int, strides: tuple[int, ...] | None = None, storage: int | None = None) -> TensorMeta:
    return TensorMeta(shape=shape, dtype="float32", strides=strides, storage=storage)


def test_bytes_that_a_call_must_touch() -> None:
    assert least_bytes(_op("aten::add", _f(1000), _f(1000), outputs=(_f(1000),))) == 12_000
    assert least_bytes(_op("aten::add", _f(1000), _f(10, 1000, strides=(0, 1)))) == 8_000  # expanded: once
    assert least_bytes(_op("aten::add", _f(1000, storage=0), _f(1000, storage=0))) == 4_000  # one memory
    assert least_bytes(_op("aten::index", _f(10**9), outputs=(_f(100),))) == 400  # the rows alone
    assert least_bytes(_op("aten::zeros_like", _f(1000), outputs=(_f(1000),))) == 4_000
    assert least_bytes(_op("aten::empty_like", _f(1000), outputs=(_f(1000),))) == 0


def test_too_much_for_the_recorded_time_is_told_with_both_times() -> None:
    large = _op("aten::mul", _f(100_000_000), outputs=(_f(100_000_000),))
    why = impossible(large, "NVIDIA H100 80GB HBM3")
    assert why is not None
    assert why.startswith("more work than possible in the recorded time: 800.0 MB take at least 22")
    assert why.endswith("µs at 3.35 TB/s (4 times as fast in the last-level cache), but only 10.0 µs were recorded")
    assert impossible(large, None) is not None
    assert impossible(_op("aten::mul", _f(1000), outputs=(_f(1000),), us=0.5), "NVIDIA H100") is None
    assert impossible(_op("aten::mul", _f(100_000_000), us=250.0), "NVIDIA H100") is None


def test_what_is_not_checked() -> None:
    assert impossible(_op("vllm::unified_attention", _f(10**9)), None) is None
    assert impossible(_op("aten::mul", _f(10**9), us=None), None) is None


@pytest.mark.parametrize(
    ("name", "peak"), [("AMD Instinct MI300X", 5.3e12), ("NVIDIA A100-SXM4-80GB", 2.039e12), ("NPU", 8e12)]
)
def test_peaks_by_name(name: str, peak: float) -> None:
    assert peak_of(name)[0] == peak


def test_a_plan_marks_such_an_op(tmp_path: Path) -> None:
    """Through the console: 2 GB in 3 µs."""
    call: dict[str, Any] = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::relu",
        "pid": 1,
        "tid": 1,
        "ts": 0.0,
        "dur": 50.0,
        "args": {"External id": 7, "Input Dims": [[4096, 65536]], "Input type": ["float"]},
    }
    launch: dict[str, Any] = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 1,
        "tid": 1,
        "ts": 10.0,
        "dur": 5.0,
        "args": {"External id": 7, "correlation": 3},
    }
    kernel: dict[str, Any] = {
        "ph": "X",
        "cat": "kernel",
        "name": "relu_kernel",
        "pid": 0,
        "tid": 7,
        "ts": 30.0,
        "dur": 3.0,
        "args": {"External id": 7, "correlation": 3, "device": 0, "stream": 7},
    }
    path, out = tmp_path / "trace.json", tmp_path / "plan.json"
    path.write_text(json.dumps({"traceEvents": [call, launch, kernel]}))
    result = CliRunner().invoke(opreplay, ["plan", str(path), "--output", str(out)])
    assert result.exit_code == 0, result.output
    (op,) = json.loads(out.read_text())["ops"]
    assert any("more work than possible in the recorded time: 2147.5 MB" in note["what"] for note in op["assumptions"])


def test_products_count_for_every_op_of_which_arguments_tell_them() -> None:
    a, b = _f(8192, 8192), _f(8192, 8192)
    large = _op("aten::mm", a, b, us=500.0)
    args = (ReplayArg(name="self", type="Tensor", tensors=(a,)), ReplayArg(name="mat2", type="Tensor", tensors=(b,)))
    why = impossible(msgspec.structs.replace(large, args=args), "NVIDIA H100")
    assert why is not None
    assert "GFLOP" in why
    slower = msgspec.structs.replace(large.recorded, device_us_median=1200.0)
    assert impossible(msgspec.structs.replace(large, args=args, recorded=slower), "NVIDIA H100") is None


def test_results_count_for_ops_of_libraries() -> None:
    assert impossible(_op("mylib::gather", _f(10), outputs=(_f(10**8),)), "NVIDIA H100") is not None
    assert impossible(_op("mylib::gather", _f(10**9), outputs=(_f(1000),)), "NVIDIA H100") is None
