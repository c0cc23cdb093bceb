"""16-bit products that this CPU cannot do in reasonable time are replayed in float32, and say so."""

from __future__ import annotations

import msgspec
import pytest
import torch

from opreplay.replay.arguments import float32 as widen
from opreplay.replay.arguments.float32 import without_kernel
from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta

CPU = torch.device("cpu")


def product(size: int, dtype: str, *, name: str = "aten::mm") -> ReplayOp:
    meta = TensorMeta(shape=(size, size), dtype=dtype)
    args = tuple(ReplayArg(name=n, type="Tensor", tensors=(meta,)) for n in ("self", "mat2"))
    recorded = Recorded(host_us_total=1.0, host_us_median=1.0)
    return ReplayOp(
        id="0" * 12, name=name, count=1, recorded=recorded, resolved_by="jit", overload="", args=args, outputs=(meta,)
    )


@pytest.fixture
def no_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widen, "_native", lambda dtype: False)


@pytest.mark.usefixtures("no_halves")
def test_a_slow_product_becomes_float32_and_says_so() -> None:
    op, assumption = widen.as_float32(product(1024, "bfloat16"), torch.ops.aten.mm.default, CPU)
    assert {m.dtype for arg in op.args for m in arg.tensors if m} == {"float32"}
    assert op.outputs == (TensorMeta(shape=(1024, 1024), dtype="float32"),)
    assert assumption is not None
    assert "multiplies bfloat16 only in a slow loop" in assumption.what


@pytest.mark.usefixtures("no_halves")
@pytest.mark.parametrize(
    ("op", "function"),
    [
        (product(64, "bfloat16"), torch.ops.aten.mm.default),
        (product(1024, "float32"), torch.ops.aten.mm.default),
        (product(1024, "float16", name="aten::add"), torch.ops.aten.add.Tensor),
    ],
    ids=["quick", "float32 already", "no product"],
)
def test_everything_else_is_replayed_as_recorded(op: ReplayOp, function: torch._ops.OpOverload) -> None:
    assert widen.as_float32(op, function, CPU) == (op, None)


def test_a_cpu_with_16_bit_products_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widen, "_native", lambda dtype: True)
    op = product(1024, "bfloat16")
    assert widen.as_float32(op, torch.ops.aten.mm.default, CPU) == (op, None)


@pytest.mark.usefixtures("no_halves")
def test_the_executor_reports_the_assumption() -> None:
    executor = TorchExecutor("cpu", lambda op: torch.ops.aten.mm.default, memory_bytes=1 << 28)
    prepared = executor.prepare(product(1024, "bfloat16"), seed=0)
    assert prepared.call().dtype == torch.float32
    assert any("float32" in a.what for a in prepared.assumptions)
    executor.close()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_op_without_a_kernel_for_its_type_is_computed_in_float32(dtype: str) -> None:
    """CUDA pools volumes in 16 bits; the CPU has no such kernel."""
    meta = TensorMeta(shape=(1, 2, 4, 4, 4), dtype=dtype)
    args = (
        ReplayArg(name="self", type="Tensor", tensors=(meta,)),
        ReplayArg(name="kernel_size", type="int[]", value=(2, 2, 2)),
    )
    op = msgspec.structs.replace(product(4, dtype, name="aten::avg_pool3d"), args=args, outputs=None)
    executor = TorchExecutor("cpu", lambda op: torch.ops.aten.avg_pool3d.default, memory_bytes=10**7)
    outcome = attempt(executor, op, seed=0, options=MeasureOptions(op_time_s=0.0, max_samples=1))
    executor.close()
    assert outcome.status == "replayed"
    (note,) = outcome.assumptions
    assert note.what == f"computed in float32, because torch has no {dtype} kernel of this op for this device"


def test_other_errors_of_narrow_ops_stay_errors() -> None:
    assert without_kernel(product(4, "float16"), RuntimeError("mat1 and mat2 must have the same dtype")) is None
    assert without_kernel(product(4, "float32"), NotImplementedError("not implemented for 'Half'")) is None
