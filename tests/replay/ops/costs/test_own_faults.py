"""Rules list kernels or say that arguments do not fit; whatever else they raise is a fault that ends a command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.main import opreplay
from opreplay.replay.ascend import list_devices, load_device, lower, simulate_op
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.replay.job.predicting import Faults, OpPredictor
from opreplay.replay.ops.op_view import OpView
from opreplay.replay.ops.table import cost_of
from opreplay.replay.resolve.schema import OpSpec, specs_of
from opreplay.traces.errors import InternalError
from opreplay.traces.model import TensorMeta
from opreplay.traces.samples import sample_path
from tests.replay.ops.names import costed_ops

pytestmark = pytest.mark.slow

RECORDED = Recorded(host_us_total=1.0, host_us_median=1.0)
MM = (
    ReplayArg(name="self", type="Tensor", tensors=(TensorMeta(shape=(64, 32), dtype="bfloat16"),)),
    ReplayArg(name="mat2", type="Tensor", tensors=(TensorMeta(shape=(32, 16), dtype="bfloat16"),)),
)
UNNAMED = ("nccl:all_reduce", "c10d::allreduce_", "triton_poi_x", "fbgemm::ToFP8", "record_param_comms")
"""Ops that a pattern, or no schema, describes."""
WORDS = (
    "self", "other", "input", "weight", "query", "q", "key", "k", "value", "kv_cache", "key_cache", "value_cache",
    "block_tables", "seq_lens", "indices", "grad_output", "x", "out", "a", "b", "w1", "w2", "hidden_states", "gamma",
    "router_logits", "topk_ids", "topk_weights", "offsets", "cu_seqlens_q", "x1", "x2", "cos", "sin",
)  # fmt: skip
NUMBERS = (
    "dim", "max_seqlen_k", "num_heads", "window_size_left", "n", "head_num", "block_size", "scale", "topk", "sizes",
    "input_layout", "mode",
)  # fmt: skip

sizes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 7, 16, 32]), max_size=6).map(tuple)
dtypes = st.sampled_from(["bfloat16", "float32", "int64", "int32", "int8", "bool", "float8_e4m3fn", "no_such_type"])
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-100, 100),
    st.floats(),
    st.sampled_from(["BSH", "TND", "ii->i", "no such"]),
    st.lists(st.one_of(st.none(), st.integers(-5, 5), st.floats(), st.text(max_size=2)), max_size=3).map(tuple),
)


@st.composite
def metas(draw: st.DrawFn) -> TensorMeta:
    shape = draw(sizes)
    steps = st.one_of(st.none(), st.lists(st.sampled_from([0, 1, 7, 64]), max_size=6).map(tuple))
    return TensorMeta(shape=shape, dtype=draw(dtypes), strides=draw(steps))


@st.composite
def ops(draw: st.DrawFn) -> ReplayOp:
    """A call of an op that has a rule, its arguments of any kind under the names of its schema."""
    name = draw(st.sampled_from([*costed_ops(), *UNNAMED]))
    specs = overloads(name)
    names = (
        [arg.name for arg in draw(st.sampled_from(specs)).args] if specs else draw(_some(WORDS)) + draw(_some(NUMBERS))
    )
    tensors = [i for i, arg in enumerate(names) if draw(st.integers(0, 9)) < (8 if arg not in NUMBERS else 1)]
    args = tuple(
        ReplayArg(name=arg, type="Tensor", tensors=tuple(draw(st.lists(st.none() | metas(), min_size=1, max_size=2))))
        if i in tensors
        else ReplayArg(name=arg, type="Scalar", value=draw(values))
        for i, arg in enumerate(names)
    )
    results = draw(st.none() | st.lists(st.none() | metas(), max_size=2).map(tuple))
    return ReplayOp(id="0" * 12, name=name, count=1, recorded=RECORDED, args=args, outputs=results)


def overloads(name: str) -> tuple[OpSpec, ...]:
    return specs_of(name) if "::" in name else ()


def _some(words: Sequence[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(words), max_size=6, unique=True)


def mm() -> ReplayOp:
    return ReplayOp(id="e" * 12, name="aten::mm", count=1, recorded=RECORDED, args=MM)


def broken(*_: object, **__: object) -> Any:
    return torch.no_such_attribute  # type: ignore[attr-defined]


@given(ops())
@settings(max_examples=600, deadline=None)
def test_a_rule_gives_kernels_or_says_that_arguments_do_not_fit(op: ReplayOp) -> None:
    lowered = lower(op)  # raises InternalError for anything else
    assert lowered.known or lowered.notes


@pytest.mark.parametrize("shape", [(), (0,), (4, 0), (0, 4), (2, 3, 4), (2, 4, 8, 8, 8)], ids=str)
@pytest.mark.parametrize("place", range(8))
def test_every_rule_takes_tensors_of_any_rank(place: int, shape: tuple[int, ...]) -> None:
    for name in costed_ops()[place::8]:
        for spec in overloads(name):
            meta = TensorMeta(shape=shape, dtype="bfloat16")
            args = tuple(
                ReplayArg(name=arg.name, type=arg.kind, tensors=(meta,))
                if arg.kind.startswith("Tensor")
                else ReplayArg(name=arg.name, type=arg.kind)
                for arg in spec.args
            )
            lower(ReplayOp(id="0" * 12, name=name, count=1, recorded=RECORDED, args=args))


def test_arguments_that_do_not_fit_are_costed_by_bytes_and_the_note_says_why() -> None:
    lowered = lower(ReplayOp(id="0" * 12, name="aten::mm", count=1, recorded=RECORDED, args=MM[:1]))
    assert not lowered.known
    assert [note for note in lowered.notes if "mat2" in note]


@pytest.mark.parametrize("error", [AttributeError, KeyError, ValueError, TypeError, ZeroDivisionError, StopIteration])
def test_a_fault_in_a_helper_of_rules_is_an_error_that_names_op_and_rule(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error("a slip")

    rule = cost_of("aten::mm")
    assert rule is not None
    monkeypatch.setattr(OpView, "need", fails)
    with pytest.raises(InternalError, match=f"(?s)aten::mm.*{error.__name__}.*{Path(__file__).name}") as raised:
        lower(mm())
    assert rule.__name__ in str(raised.value)
    assert raised.value.exit_code == ExitCode.INTERNAL


def test_other_ops_keep_their_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = {name: load_device(name) for name in list_devices()[:2]}
    relu = ReplayOp(id="f" * 12, name="aten::relu", count=1, recorded=RECORDED, args=MM[:1])
    monkeypatch.setattr(OpView, "need", broken)
    faults = Faults()
    broken_op, other = map(OpPredictor(devices=devices), (mm(), relu))
    faults.add([broken_op, other])
    assert (broken_op.simulated, len(broken_op.why), len(broken_op.errors)) == ({}, 2, 2)
    assert set(other.simulated) == set(devices)
    assert list(faults.by_op) == ["e" * 12]
    with pytest.raises(InternalError, match="aten::mm"):
        faults.conclude()


@pytest.mark.parametrize(
    "command", [("simulate",), ("plan",), ("op", "--no-measure"), ("run", "--set", "op_time=10ms")]
)
def test_a_command_ends_with_an_error_and_keeps_what_was_done(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpView, "need", broken)
    measured = tmp_path / "run.jsonl"
    more: list[str] = ["--set", "no_cache=true"] if command[0] in ("simulate", "op") else []
    if command[0] == "run":
        more = ["--include", "aten::rms_norm", "--include", "aten::mul", "--output", str(measured)]
    inputs = "aten::mm(f32[64,32], f32[32,16])" if command[0] == "op" else sample_path("transformer_infer")
    result = CliRunner().invoke(opreplay, [*command, str(inputs), *more])
    assert result.exit_code == ExitCode.INTERNAL, result.output
    assert "no_such_attribute" in result.stderr
    if command[0] == "run":
        rows = [json.loads(line) for line in measured.read_text().splitlines()]
        ops = [row for row in rows if row.get("name")]
        assert {row["status"] for row in ops} == {"replayed"}
        assert any(not row["simulated"] for row in ops)


def test_a_fault_in_a_cost_names_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise TypeError("no such size")

    monkeypatch.setattr("opreplay.replay.ascend.simulate.op.family_of", broken)
    product = ReplayOp(id="abc", name="aten::mm", count=1, recorded=RECORDED, args=MM)
    with pytest.raises(InternalError, match=r"cost of aten::mm \(abc\) on 910b3"):
        simulate_op(product, load_device("910b3"))
