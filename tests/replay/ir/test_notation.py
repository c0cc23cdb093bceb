"""Calls as text: read, printed, and read again."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.replay.ir.notation import (
    CallText,
    TorchName,
    argument_texts,
    call_text,
    parse_call,
    parse_sizes,
    parse_tensor,
    parse_value,
    size_names,
    telling_arguments,
    tensor_text,
)
from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta


def test_a_call_with_all_kinds_of_arguments() -> None:
    call = parse_call(
        "aten::f.out(bf16[4096,n], [f32[2], None], (3, -4), alpha=1e-3, dtype=torch.bfloat16, mode='same', on=True,"
        ' z=1+2j, low=-inf, text="a\\"b")',
        sizes={"n": 7},
    )
    assert call == CallText(
        name="aten::f.out",
        args=(
            TensorMeta(shape=(4096, 7), dtype="bfloat16"),
            [TensorMeta(shape=(2,), dtype="float32"), None],
            [3, -4],
        ),
        kwargs={
            "alpha": 1e-3,
            "dtype": "torch.bfloat16",
            "mode": "same",
            "on": True,
            "z": 1 + 2j,
            "low": float("-inf"),
            "text": 'a"b',
        },
    )
    assert isinstance(call.kwargs["dtype"], TorchName)
    assert not isinstance(call.kwargs["mode"], TorchName)


def test_a_tensor_with_strides_offset_and_memory() -> None:
    meta = parse_tensor("float32[4,8]{1,4}+16@0")
    assert meta == TensorMeta(shape=(4, 8), dtype="float32", strides=(1, 4), storage_offset=16, storage=0)
    assert tensor_text(meta) == "f32[4,8]{1,4}+16@0"
    assert parse_tensor("f32[]") == TensorMeta(shape=(), dtype="float32")


def test_sizes_are_computed() -> None:
    sizes = {"n": 12, "heads": 3}
    assert parse_tensor("f16[2*n, n//heads, (n-2)*2, 2^10, n+1]", sizes=sizes).shape == (24, 4, 20, 1024, 13)
    assert parse_value("(n+1)*2", sizes=sizes) == 26
    assert parse_value("(n, 1)", sizes=sizes) == [12, 1]
    assert size_names("aten::mm(bf16[n,k], bf16[k,2*m], out_dtype=torch.float32, flag=True)") == ("n", "k", "m")


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("n=1,47,128", "n", (1, 47, 128)),
        ("n = 2^7..2^10", "n", (128, 256, 512, 1024)),
        ("m=1..4", "m", (1, 2, 3, 4)),
        ("m=1k,4k", "m", (1024, 4096)),
        ("m=1k..3k:1k", "m", (1024, 2048, 3072)),
        ("m=128..512:128,47,128", "m", (128, 256, 384, 512, 47)),
    ],
)
def test_sizes_of_a_sweep(text: str, name: str, values: tuple[int, ...]) -> None:
    assert parse_sizes(text) == (name, values)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mm(f32[1])", "not a call of an op"),
        ("aten::mm(f32[n])", "n in .* has no value"),
        ("aten::mm(f31[2])", "f31 is not a dtype"),
        ("aten::mm(f32[2]", "expected"),
        ("aten::mm(f32[2]) + 1", "expected the end"),
        ("aten::mm(f32[2//0])", "divides by zero"),
        ("aten::mm(f32[2^63])", "not a valid size"),
        ("aten::mm(f32[2^40*2^40])", "beyond 2\\^63"),
        ("aten::mm(f32[-2])", "negative"),
        ("aten::mm(f32[2,3]{1})", "1 strides for 2 sizes"),
        ("aten::mm(a=1, 2)", "expected name=value"),
        ("aten::mm(a=1, a=2)", "a is given twice"),
        ("aten::mm(" + "[" * 40 + ")", "nested more than"),
        ("aten::mm(__import__)", "has no value"),
    ],
)
def test_what_is_no_call_says_where(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_call(text)


@pytest.mark.parametrize("text", ["n", "n=", "n=5..2", "n=1..9:0", "=3", "n=1..100000", "n=1,x"])
def test_what_is_no_sweep_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sizes(text)


def test_an_op_is_printed_as_it_is_read() -> None:
    op = ReplayOp(
        id="0" * 12,
        name="aten::add",
        overload="Tensor",
        count=1,
        recorded=Recorded(host_us_total=1.0, host_us_median=1.0),
        args=(
            ReplayArg(
                name="self", type="Tensor", tensors=(TensorMeta(shape=(2, 3), dtype="bfloat16", strides=(1, 2)),)
            ),
            ReplayArg(name="other", type="Tensor", tensors=(None,)),
            ReplayArg(name="alpha", type="Scalar", value="inf", keyword_only=True),
            ReplayArg(name="dtype", type="ScalarType", value="torch.float32", keyword_only=True),
            ReplayArg(name="mode", type="str", value='it\'s "so"', keyword_only=True),
            ReplayArg(name="size", type="int[]", value=(1, 2), keyword_only=True),
        ),
    )
    text = call_text(op)
    assert text == (
        'aten::add.Tensor(bf16[2,3]{1,2}, None, alpha=inf, dtype=torch.float32, mode="it\'s \\"so\\"", size=[1, 2])'
    )
    read = parse_call(text)
    assert read.args[0] == op.args[0].tensors[0]
    assert read.kwargs["mode"] == 'it\'s "so"'


dims = st.lists(st.integers(0, 1 << 20), max_size=5)


@pytest.mark.slow
@given(st.sampled_from(sorted(ITEMSIZE_BYTES)), dims, st.data())
def test_every_tensor_is_read_as_printed(dtype: str, shape: list[int], data: st.DataObject) -> None:
    strides = data.draw(st.none() | st.tuples(*[st.integers(0, 1 << 20)] * len(shape)))
    meta = TensorMeta(
        shape=tuple(shape),
        dtype=dtype,
        strides=strides,
        storage_offset=data.draw(st.integers(0, 99)),
        storage=data.draw(st.none() | st.integers(0, 5)),
    )
    again = parse_tensor(tensor_text(meta))
    assert tensor_text(again) == tensor_text(meta)
    assert (again.shape, again.dtype, again.storage_offset, again.storage) == (
        meta.shape,
        meta.dtype,
        meta.storage_offset,
        meta.storage,
    )


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (parse_call, parse_tensor, parse_value, parse_sizes):
        with contextlib.suppress(UsageError):
            read(text)


def test_a_wrong_size_is_told_how_sizes_are_written() -> None:
    """The hint told how a call is written."""
    with pytest.raises(UsageError) as refused:
        parse_sizes("context=1m")
    assert "4k" in (refused.value.hint or "")
    assert "aten::mm" not in (refused.value.hint or "")


def test_a_call_without_namespace_is_told_what_to_write() -> None:
    for read in (parse_call, size_names):
        with pytest.raises(UsageError, match="not a call of an op") as raised:
            read("mm(bf16[n,n], bf16[n,n])")
        assert "aten::mm" in raised.value.hint


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        ("aten::relu(f32[8,16]{1,8})", {"op": "aten::relu", "0": "f32[8,16]{1,8}"}),
        ("aten::cat([f32[2], None], dim=1)", {"op": "aten::cat", "0": "[f32[2], None]", "dim": "1"}),
        ('x::y(mode="a, \\"(b=", k=[1, 2])', {"op": "x::y", "mode": '"a, \\"(b="', "k": "[1, 2]"}),
        ("x::y()", {"op": "x::y"}),
    ],
)
def test_the_arguments_of_a_call(call: str, texts: dict[str, str]) -> None:
    assert argument_texts(call) == texts


def test_only_calls_on_equal_tensors_are_told_apart() -> None:
    calls = [("1", "a", "t", "a(t, d=1, k=2)"), ("2", "a", "t", "a(t, d=1, k=3)"), ("3", "a", "u", "a(u, d=9, k=3)")]
    assert telling_arguments(calls) == {"1": "k=2", "2": "k=3", "3": ""}
    assert telling_arguments([("1", "a", "t", ""), ("2", "a", "t", "a(t)")]) == {"1": "", "2": ""}
    third = "0.3333333432674408"  # one of float32, with more digits than tell it there
    assert telling_arguments([("1", "a", "", f"a(x={third})"), ("2", "a", "", "a(x=2)")]) == {
        "1": "x=0.33333334",
        "2": "x=2",
    }
    alike = [("1", "a", "", f"a(x={third})"), ("2", "a", "", "a(x=0.33333334)")]
    assert telling_arguments(alike) == {"1": f"x={third}", "2": "x=0.33333334"}
