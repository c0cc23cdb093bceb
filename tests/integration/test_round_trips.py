"""Plans as JSON, TraceLens files through plans and back: exact, for all ops of real traces and for made-up ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.plan_file import dump_plan, parse_plan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.tracelens import read_tracelens_ir, write_tracelens_ir
from opreplay.replay.resolve.by_argument_name import resolve_named
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.resolve.policy import Policy
from opreplay.traces import read_trace
from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.errors import FormatError
from opreplay.traces.model import TensorMeta, contiguous_strides
from opreplay.traces.samples import SAMPLES, sample_path

pytestmark = pytest.mark.slow

POLICY = Policy()
SHARED = (
    "cpu_only_rank34",
    "h100_owlv2_large",
    "mi210_gpu_only",
    "mi300_resnet_ddp_act_checkpoint",
    "mi300_sglang_prefilldecode",
    "mi300_vllm_piecewise_exec",
    "npu_alexnet_trace_view",
    "nvidia_rank_non_gpu",
    "param_linear_et",
)
"""One of each kind; benchmarks/round_trips.py takes all."""


def plan_of(path: Path) -> ReplayPlan:
    return with_outputs(build_plan(read_trace(path), select="all"), policy=POLICY)


def known_strides(meta: TensorMeta) -> tuple[int, ...] | None:
    strides = contiguous_strides(meta.shape) if meta.strides is None else meta.strides
    return strides if max(strides, default=0) < 2**63 else None


def as_tracelens_has_it(op: ReplayOp) -> tuple[ReplayArg, ...]:
    """Arguments without what the format cannot say; strides that are not known are those of a contiguous tensor."""
    made = []
    for arg in op.args:
        tensors = tuple(
            meta and TensorMeta(shape=meta.shape, dtype=meta.dtype, strides=known_strides(meta)) for meta in arg.tensors
        )
        made.append(msgspec.structs.replace(arg, tensors=tensors, mutated=False))
    return tuple(made)


def check(plan: ReplayPlan, folder: Path) -> None:
    assert parse_plan(dump_plan(plan)) == plan
    assert dump_plan(parse_plan(dump_plan(plan))) == dump_plan(plan)
    first, second, third, fourth = (folder / f"{i}.json" for i in range(4))
    calls = [op for op in plan.ops if op.reason is None]
    assert write_tracelens_ir(plan, first, force=True) == len(plan.ops) - len(calls)
    read = read_tracelens_ir(first)
    assert [(op.name, op.args) for op in read.ops] == [(op.name, as_tracelens_has_it(op)) for op in calls]
    write_tracelens_ir(read, second, force=True)
    assert second.read_bytes() == first.read_bytes()
    resolved = parse_plan(dump_plan(resolve_named(read, POLICY)))
    write_tracelens_ir(resolved, third, force=True)
    assert third.read_bytes() == first.read_bytes()
    ways = [(op.name, op.overload, op.resolved_by, op.via, op.reason) for op in resolved.ops]
    assert ways == [(op.name, op.overload, op.resolved_by, op.via, op.reason) for op in calls]
    made_anew = tuple(msgspec.structs.replace(op, origin=None) for op in resolved.ops)
    write_tracelens_ir(msgspec.structs.replace(resolved, ops=made_anew), fourth, force=True)
    assert fourth.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_samples(name: str, tmp_path: Path) -> None:
    check(plan_of(sample_path(name)), tmp_path)


@pytest.mark.parametrize("name", SHARED)
def test_public_traces(name: str, shared_traces: Path, tmp_path: Path) -> None:
    check(plan_of(shared_traces / f"{name}.json.gz"), tmp_path)


SIZES = st.integers(0, 2**62)
METAS = st.lists(SIZES, max_size=4).flatmap(
    lambda shape: st.builds(
        TensorMeta,
        shape=st.just(tuple(shape)),
        dtype=st.sampled_from(sorted(ITEMSIZE_BYTES)),
        strides=st.none() | st.tuples(*[SIZES] * len(shape)),
        storage_offset=SIZES,
        storage=st.none() | st.integers(0, 3),
    )
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["inf", "-inf", "nan"])
INTS = st.integers(-(2**63), 2**63 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": INTS,
    "bool": st.booleans(),
    "float": FLOATS,
    "Scalar": FLOATS | INTS | st.booleans() | st.just("1+2j"),
    "str": st.text(max_size=6),
    "ScalarType": st.sampled_from(["torch.bfloat16", "torch.float8_e4m3fn", "torch.bool"]),
    "Layout": st.sampled_from(["torch.strided", "torch.jagged"]),
    "Device": st.sampled_from(["cpu", "cuda:0"]),
    "MemoryFormat": st.sampled_from(["torch.channels_last", "torch.preserve_format"]),
    "Generator": st.none(),
    "complex": st.just("1+2j"),
    "int[]": st.lists(INTS, max_size=3).map(tuple),
    "bool[]": st.lists(st.booleans(), max_size=3).map(tuple),
    "float[]": st.lists(FLOATS, max_size=3).map(tuple),
    "Scalar[]": st.lists(INTS | FLOATS, max_size=3).map(tuple),
    "str[]": st.lists(st.text(max_size=3)).map(tuple),
}


@st.composite
def calls(draw: st.DrawFn) -> ReplayOp:
    """An op with any arguments that the IR knows, keyword-only ones last."""
    args: list[ReplayArg] = []
    names = draw(st.lists(st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True), unique=True, max_size=5))
    cut = draw(st.integers(0, len(names)))
    for i, name in enumerate(names):
        kind = draw(st.sampled_from([*VALUES, "Tensor", "Tensor[]"]))
        keyword_only = i >= cut
        if kind in VALUES:
            value = draw(st.none() | VALUES[kind])
            args.append(ReplayArg(name=name, type=kind, value=value, keyword_only=keyword_only))
            continue
        many = draw(st.lists(st.none() | METAS, max_size=3)) if kind == "Tensor[]" else [draw(METAS)]
        value = () if kind == "Tensor[]" and not many else None
        args.append(ReplayArg(name=name, type=kind, tensors=tuple(many), value=value, keyword_only=keyword_only))
    recorded = Recorded(host_us_total=draw(st.floats(0, 1e9)), host_us_median=0.0)
    return ReplayOp(id="a" * 12, name="some::op", count=1, recorded=recorded, args=tuple(args), resolved_by="torch.ops")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls())
def test_any_call(tmp_path: Path, op: ReplayOp) -> None:
    plan = ReplayPlan(source="t", device_us_total=0.0, host_us_total=0.0, ops=(op,))
    assert parse_plan(dump_plan(plan)) == plan
    path = tmp_path / "ir.json"
    write_tracelens_ir(plan, path, force=True)
    (read,) = read_tracelens_ir(path).ops
    assert read.args == as_tracelens_has_it(op)
    text = path.read_text()
    write_tracelens_ir(
        msgspec.structs.replace(plan, ops=(msgspec.structs.replace(read, origin=None),)), path, force=True
    )
    assert path.read_text() == text


JSON_TENSOR = st.just({"shape": [4, 4], "dtype": "float", "strides": [4, 1], "init": "normal"})
JSON_VALUES = st.none() | st.booleans() | st.integers(-3, 99) | st.floats() | st.text(max_size=4) | JSON_TENSOR
JSON_VALUES |= st.lists(JSON_VALUES, max_size=3)
DECLARED = st.sampled_from(
    [
        "Tensor",
        "Tensor?",
        "Tensor[]",
        "int",
        "int[1]?",
        "float",
        "bool",
        "Scalar",
        "ScalarType?",
        "Device?",
        "str",
        "MemoryFormat?",
        "number",
        "List[int]",
        "Generator?",
        "complex",
        "Layout",
    ]
)
REAL_CALLS = (
    ("aten::to", ("self", "dtype", "non_blocking", "copy", "memory_format")),
    ("aten::sum", ("self", "dim", "keepdim")),
    ("aten::add", ("self", "other", "alpha")),
    ("aten::linspace", ("start", "end", "steps", "dtype", "layout")),
    ("aten::relu_", ("self",)),
    ("no_such::op", ("x",)),
    ("a label", ("x", "y")),
    ("aten::cat", ("tensors", "dim")),
)


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    """A call of a real op by its argument names, with types and values that may or may not fit."""
    name, names = draw(st.sampled_from(REAL_CALLS))
    args = [{"arg_name": n, "arg_type": draw(DECLARED), "value": draw(JSON_VALUES)} for n in names]
    if draw(st.booleans()):
        args[0] |= {"arg_type": "Tensor", "value": draw(JSON_TENSOR)}
    cut = draw(st.integers(0, len(args)))
    return {"op_name": name, "replay_ir": {"list_pos_args": args[:cut], "list_kwargs": args[cut:]}}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries())
def test_whatever_is_read_can_be_resolved_saved_and_written_back(tmp_path: Path, entry: dict[str, Any]) -> None:
    path = tmp_path / "ir.json"
    text = json.dumps([entry], indent=2) + "\n"
    path.write_text(text)
    try:
        plan = read_tracelens_ir(path)
    except FormatError:
        return
    saved = parse_plan(dump_plan(with_outputs(resolve_named(plan, POLICY), policy=POLICY)))
    write_tracelens_ir(saved, path, force=True)
    assert path.read_text() == text


def test_text_that_is_no_unicode_is_kept_where_nothing_reads_it_and_refused_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "ir.json"
    entry = {"op_name": "aten::relu", "replay_ir": {"list_pos_args": [], "list_kwargs": []}, "note": "\ud800"}
    path.write_text(json.dumps([entry]))
    plan = parse_plan(dump_plan(resolve_named(read_tracelens_ir(path), POLICY)))
    write_tracelens_ir(plan, path, force=True)
    assert json.loads(path.read_text()) == [entry]
    path.write_text(json.dumps([{**entry, "op_name": "aten::\ud800"}]))
    with pytest.raises(FormatError, match="op_name"):
        read_tracelens_ir(path)
