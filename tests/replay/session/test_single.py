"""Ops without a file: what an event or a call says is taken over as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import opreplay
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.traces.errors import Malformed, UsageError
from opreplay.traces.one_event import trace_of_event
from opreplay.traces.samples import sample_path

MM: dict[str, Any] = {
    "Input Dims": [[8, 4], [4, 2]],
    "Input type": ["float", "float"],
    "Input Strides": [[4, 1], [2, 1]],
    "Concrete Inputs": ["", ""],
}
T = torch.randn(6, 6)


def test_an_event_is_the_op_that_its_file_has(tmp_path: Path) -> None:
    import gzip

    events = json.loads(gzip.decompress(sample_path("transformer_infer").read_bytes()))["traceEvents"]
    by_name = {event["name"]: event for event in events if event.get("cat") == "cpu_op"}
    for name in (
        "aten::linear",
        "aten::rms_norm",
        "aten::embedding",
        "aten::scaled_dot_product_attention",
        "aten::cat",
    ):
        path = tmp_path / "one.json"
        path.write_text(json.dumps({"traceEvents": [by_name[name]]}))
        (in_file,) = opreplay.plan(path).ops
        alone = opreplay.op_of_event(by_name[name]).ir
        assert (alone.id, alone.args, alone.reason) == (in_file.id, in_file.args, in_file.reason), name


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"name": 3},
        {"name": ""},
        {"name": "a::b", "args": 7},
        {"name": "a::b", "args": {"Input Dims": {"x": 1}}},
        {"name": "a::b", "args": {"Input Dims": object()}},
        {"name": "a::b", "dur": "long"},
        {"name": "a::b", "dur": float("nan")},
        {"name": "a::b", "dur": -1},
    ],
)
def test_what_is_no_event_is_refused_with_a_hint(event: dict[str, Any]) -> None:
    with pytest.raises(Malformed) as caught:
        opreplay.op_of_event(event)
    assert "Input Dims" in caught.value.hint


def test_the_duration_is_kept() -> None:
    assert trace_of_event({"name": "aten::mm", "dur": 1.5, "args": MM}).ops.dur_ns.tolist() == [1500]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "kwargs", "overload"),
    [
        ("aten::mm", (T, T), {}, ""),
        ("aten::add", (T, T), {"alpha": 2}, "Tensor"),
        ("aten::add", (T, 2), {}, "Scalar"),
        ("aten::sum", (T, [1], True), {"dtype": torch.float64}, "dim_IntList"),
        ("aten::cat", ([T, T], 1), {}, ""),
        ("aten::softmax", (T, -1), {}, "int"),
        ("aten::linear", (T, T, None), {}, ""),
        ("aten::to", (T, torch.float16), {}, "dtype"),
        ("aten::clamp", (T, float("-inf"), 1.0), {}, ""),
        ("aten::gelu", (T,), {"approximate": "tanh"}, ""),
        ("aten::sum.dim_IntList", (T, [0]), {}, "dim_IntList"),
    ],
)
def test_a_call_is_the_overload_that_torch_takes(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], overload: str
) -> None:
    op = opreplay.op_of_call(name, *args, **kwargs)
    assert (op.name, op.ir.overload) == (name.partition(".")[0], overload)
    packet = getattr(torch.ops.aten, op.name.removeprefix("aten::"))
    wanted = packet(*args, **kwargs)
    result = op()
    assert (result.shape, result.dtype, result.stride()) == (wanted.shape, wanted.dtype, wanted.stride())


def test_strides_offsets_and_shared_memory_are_taken_over() -> None:
    whole = torch.empty(4, 96, dtype=torch.bfloat16, device="meta")
    x, y = (arg.tensors[0] for arg in opreplay.op_of_call("aten::mul", *whole.chunk(3, 1)[:2]).ir.args)
    assert x is not None
    assert y is not None
    assert (x.strides, x.storage_offset, x.storage) == ((96, 1), 0, 0)
    assert (y.strides, y.storage_offset, y.storage) == ((96, 1), 32, 0)
    a, b = (arg.tensors[0] for arg in opreplay.op_of_call("aten::mul", T, T.clone()).ir.args)
    assert a is not None
    assert b is not None
    assert a.storage is b.storage is None
    same = opreplay.op_of_call("aten::mm", T, T).prepare().args
    assert same[0].data_ptr() == same[1].data_ptr()


def test_contents_are_not_taken_over_nor_is_the_tensor_written_to() -> None:
    mine = torch.zeros(4)
    opreplay.op_of_call("aten::add_", mine, 1)()
    assert not mine.any()


@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        ("aten::mm", (), "no overload of aten::mm accepts"),
        ("aten::add", (T, object()), "an op does not accept object"),
        ("aten::save", (T,), "cannot be called"),
        ("nowhere::op", (4,), "policy"),
        ("no op", (T,), "cannot be called"),
        ("aten::mm", (T.to_sparse(), T), "dense"),
    ],
)
def test_what_cannot_be_called_is_refused(name: str, args: tuple[Any, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        opreplay.op_of_call(name, *args)
    assert caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        ("aten::mm", (T,), "no overload of aten::mm accepts"),
        ("aten::mm", (T, T, T, T), "no overload"),
        ("aten::mm", (T, "text"), "no overload"),
        ("nowhere::op", (T,), "policy"),
        ("npu::npu_roi_align", (torch.empty(2, 64, 32, 32), torch.empty(8, 5), 0.1, 7, 7, 2, 0), "torch_npu"),
    ],
)
def test_what_nothing_here_runs_says_so_when_it_is_called(name: str, args: tuple[Any, ...], why: str) -> None:
    op = opreplay.op_of_call(name, *args)
    assert why in str(op.reason)
    assert op.simulate("910b3").time_us > 0
    with pytest.raises(NotReplayable, match=why):
        op()


@pytest.mark.parametrize("sizes", [{}, {"n": 2, "m": 3}, {"n": 2.5}, {"n": "2"}, {"n": -1}])
def test_sizes_are_those_of_the_call(sizes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        opreplay.op("aten::mm(f32[4,n], f32[n,2])", **sizes)


def test_an_overload_of_torch_is_no_name() -> None:
    with pytest.raises(UsageError, match="not an op name"):
        opreplay.op_of_call(torch.ops.aten.mm.default, T, T)  # pyright: ignore[reportArgumentType]
