"""Traces to plans: grouping, selection, order, reasons, and what real traces give."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from opreplay.replay.ascend.simulate.coverage import clock_of, recorded_shares
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ir.plan_file import dump_plan, parse_plan
from opreplay.replay.ir.verify import verify
from opreplay.replay.plan.build import build_plan, signature_id
from opreplay.replay.plan.selection import OpFilter
from opreplay.traces import read_trace
from opreplay.traces.errors import UsageError
from opreplay.traces.links.annotations import Phase
from opreplay.traces.model import Annotation, KernelTable, OpSignature, OpTable, Trace, TraceInfo
from opreplay.traces.samples import sample_path

LABEL = OpSignature(name="autograd::engine::evaluate_function: MmBackward0")
MM = OpSignature(
    name="aten::mm", dims=((4, 8), (8, 2)), types=("float", "float"), strides=((8, 1), (2, 1)), concrete=("", "")
)
MATMUL = OpSignature(
    name="aten::matmul", dims=((4, 8), (8, 2)), types=("float", "float"), strides=((8, 1), (2, 1)), concrete=("", "")
)
BARE = OpSignature(name="aten::relu")
TRITON = OpSignature(name="triton_poi_fused_add_0", dims=((4,),), types=("float",))


def trace(rows: list[tuple[OpSignature, int, int]], kernels: list[tuple[str, int, int]] = ()) -> Trace:  # type: ignore[assignment]
    """rows: (signature, start, duration) in ns on one thread; kernels: (name, duration in ns, owner row)."""
    signatures = list(dict.fromkeys(row[0] for row in rows))
    names = list(dict.fromkeys(kernel[0] for kernel in kernels))
    zeros = np.zeros(len(kernels), dtype=np.int32)
    return Trace(
        info=TraceInfo(path="/some/where/t.json", dialect="kineto", bytes_read=0, events=len(rows)),
        signatures=tuple(signatures),
        ops=OpTable(
            signature=np.array([signatures.index(row[0]) for row in rows], dtype=np.uint32),
            start_ns=np.array([row[1] for row in rows], dtype=np.int64),
            dur_ns=np.array([row[2] for row in rows], dtype=np.int64),
            track=np.zeros(len(rows), dtype=np.int64),
        ),
        tracks=(("1", "1"),),
        kernel_names=tuple(names),
        kernels=KernelTable(
            name=np.array([names.index(k[0]) for k in kernels], dtype=np.uint32),
            category=np.zeros(len(kernels), dtype=np.uint8),
            start_ns=np.zeros(len(kernels), dtype=np.int64),
            dur_ns=np.array([k[1] for k in kernels], dtype=np.int64),
            device=zeros,
            stream=zeros,
            owner=np.array([k[2] for k in kernels], dtype=np.int64),
        ),
        annotations=(),
    )


TWO_CALLS = [
    (LABEL, 0, 100_000),
    (MATMUL, 1000, 50_000),
    (MM, 2000, 30_000),
    (MATMUL, 60_000, 30_000),
    (MM, 61_000, 9_000),
]
GEMMS = [("gemm", 5000, 2), ("gemm", 7000, 4), ("copy", 1000, 4), ("lost", 400, -1)]


def summary(plan: ReplayPlan) -> list[tuple[str, int, float]]:
    return [(op.name, op.count, op.recorded.device_us_total) for op in plan.ops]


def test_owners_are_grouped_and_summed() -> None:
    plan = build_plan(trace(TWO_CALLS, GEMMS))
    assert summary(plan) == [("aten::mm", 2, 13.0)]
    (op,) = plan.ops
    assert (op.resolved_by, op.overload, op.reason) == ("jit", "", None)
    assert (op.recorded.device_us_median, op.recorded.host_us_total) == (6.5, 39.0)
    assert [(k.name, k.count, k.total_us) for k in op.recorded.kernels] == [("gemm", 2, 12.0), ("copy", 1, 1.0)]
    assert (plan.device_us_total, plan.source) == (13.4, "t.json")


@pytest.mark.parametrize(
    ("select", "kernels", "expected"),
    [
        ("owner", [], [("aten::matmul", 2, 0.0)]),
        ("top", GEMMS, [("aten::matmul", 2, 13.0)]),
        ("leaf", GEMMS, [("aten::mm", 2, 13.0)]),
        ("all", GEMMS, [("aten::mm", 2, 13.0), (LABEL.name, 1, 0.0), ("aten::matmul", 2, 0.0)]),
    ],
)
def test_selections(select: str, kernels: list[tuple[str, int, int]], expected: list[tuple[str, int, float]]) -> None:
    assert summary(build_plan(trace(TWO_CALLS, kernels), select=select)) == expected


@pytest.mark.parametrize(
    ("select", "host_us", "of"),
    [
        ("owner", 0.17, "host time"),
        ("top", 0.17, "host time"),
        ("leaf", 0.17, "host time"),
        ("all", 0.2, "the selected ops' host time"),
    ],
)
def test_shares_of_a_host_are_of_its_outermost_calls(select: str, host_us: float, of: str) -> None:
    rows = [(MATMUL, 0, 100), (MM, 10, 30), (BARE, 200, 70)]
    plan = build_plan(trace(rows), select=select)
    assert plan.host_us_total == pytest.approx(host_us)
    assert clock_of(plan) == of
    assert sum(recorded_shares(plan).values()) == pytest.approx(1.0 if select != "leaf" else 0.1 / 0.17)


def test_an_unknown_selection_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown selection"):
        build_plan(trace(TWO_CALLS), select="none")


def test_top_takes_all_calls_of_an_op_whose_numbers_differ() -> None:
    """Numbers that tensors are only multiplied with are no part of an op: its calls are weighed and kept together."""

    def times(number: str) -> OpSignature:
        return OpSignature(
            name="aten::mul", dims=((64,), ()), types=("float", "Scalar"), strides=((1,), ()), concrete=("", number)
        )

    rows = [(times("0.999"), 0, 40_000), (times("0.99999"), 50_000, 30_000), (MM, 100_000, 60_000)]
    (op,) = build_plan(trace(rows), select="all", filters=OpFilter(top=1)).ops
    assert (op.name, op.count, op.recorded.host_us_total) == ("aten::mul", 2, 70.0)


def test_reasons() -> None:
    rows = [
        (LABEL, 0, 10),
        (BARE, 20, 10),
        (TRITON, 40, 10),
        (OpSignature(name="os::system", dims=(), types=()), 60, 10),
    ]
    reasons = {op.name: str(op.reason) for op in build_plan(trace(rows), select="all").ops}
    assert reasons[LABEL.name] == "label, not an op"
    assert reasons["aten::relu"] == "metadata missing: shapes"
    assert reasons[TRITON.name] == "triton kernel"
    assert reasons["os::system"].startswith("policy: namespace os")


def test_filters() -> None:
    rows = [(MM, 0, 60_000), (MATMUL, 70_000, 30_000), (LABEL, 200_000, 10_000)]

    def names(**fields: object) -> list[str]:
        return [op.name for op in build_plan(trace(rows), select="all", filters=OpFilter(**fields)).ops]  # type: ignore[arg-type]

    assert names(include=("aten::*",)) == ["aten::mm", "aten::matmul"]
    assert names(include=("aten::*",), exclude=("*matmul",)) == ["aten::mm"]
    assert names(top=1) == ["aten::mm"]
    assert names(min_share=0.2) == ["aten::mm", "aten::matmul"]
    assert names(include=("nothing",)) == []


def test_an_empty_trace_gives_an_empty_plan() -> None:
    plan = build_plan(trace([]))
    assert (plan.ops, plan.device_us_total) == ((), 0.0)
    verify(plan)


def test_ids_are_stable_and_differ() -> None:
    assert signature_id(MM) == signature_id(MM)
    assert signature_id(MM) != signature_id(MATMUL)
    assert signature_id(MM) == "cd6e3a2a3608"


@pytest.mark.parametrize("name", ["transformer_infer", "cnn_train", "moe_block"])
@pytest.mark.parametrize("select", ["owner", "leaf"])
def test_bundled_samples_resolve_in_full(name: str, select: str) -> None:
    plan = build_plan(read_trace(sample_path(name)), select=select)
    verify(plan)
    unresolved = [(op.name, str(op.reason)) for op in plan.ops if op.reason is not None]
    assert len(plan.ops) > 10
    assert [u for u in unresolved if not u[1].startswith(("label", "policy"))] == []


@pytest.mark.parametrize(
    ("name", "owners", "resolved"),
    [
        ("h100_bert_small", 16, 16),
        ("h100_qwen1.5_0.5b", 35, 35),
        ("h100_falconsai_vit", 13, 13),
        ("mi300_normalization", 32, 32),
        ("mi300_resnet_ddp_act_checkpoint", 107, 101),
        ("mi300_vllm_piecewise_exec", 13, 13),
        ("mi300_sglang_prefilldecode", 35, 35),
    ],
)
def test_public_traces_resolve(shared_traces: Path, name: str, owners: int, resolved: int) -> None:
    if name == "mi300_normalization" and not hasattr(torch.ops.aten, "_fused_rms_norm"):
        pytest.skip("this torch has no aten::_fused_rms_norm (2.9 has)")
    plan = build_plan(read_trace(shared_traces / f"{name}.json.gz"))
    verify(plan)
    assert parse_plan(dump_plan(plan)) == plan
    assert len(plan.ops) == owners
    assert sum(op.reason is None for op in plan.ops) >= resolved
    kinds = {op.reason.kind for op in plan.ops if op.reason is not None}
    assert kinds <= {"collective", "metadata missing"}


def test_an_unresolved_op_keeps_its_arguments_in_their_places() -> None:
    reduce = OpSignature(
        name="c10d::allreduce_", dims=(((1024,), (8,)), (), ()), types=("TensorList", "", ""), concrete=("", "", "")
    )
    hostile = OpSignature(name="aten::relu", dims=((-4,),), types=("float",), strides=((2**70,),))
    plan = build_plan(trace([(reduce, 0, 10), (hostile, 20, 10)]), select="all")
    verify(plan)
    by_name = {op.name: op for op in plan.ops}
    tensors, *others = by_name["c10d::allreduce_"].args
    assert [(arg.tensors, arg.value) for arg in others] == [((), None)] * 2
    assert [m.shape for m in tensors.tensors if m is not None] == [(1024,), (8,)]
    assert str(by_name["c10d::allreduce_"].reason) == "collective"
    assert by_name["aten::relu"].reason is not None
    assert [(arg.tensors, arg.value) for arg in by_name["aten::relu"].args] == [((), None)]


@pytest.mark.parametrize(
    ("dims", "types", "overload", "first"),
    [
        (((9, 72), (9, 24), (5, 24), (5,)), ("float",) * 4, "", (9, 24)),  # input, weight, bias above something else
        (((9, 24), (5, 24), (5,), (9, 5)), ("float",) * 4, "out", (9, 24)),
        (((9, 1), (9, 1), (9, 1)), ("float", "bool", "bool"), "Tensor", (9, 1)),
    ],
)
def test_the_end_of_an_interpreters_stack_is_told_from_a_call_with_out(
    dims: tuple[tuple[int, ...], ...], types: tuple[str, ...], overload: str, first: tuple[int, ...]
) -> None:
    name = "aten::linear" if len(dims) == 4 else "aten::mul"
    (op,) = build_plan(trace([(OpSignature(name=name, dims=dims, types=types), 0, 10)])).ops
    assert op.overload == overload
    meta = op.args[0].tensors[0]
    assert meta is not None
    assert meta.shape == first
    assert any("the last" in assumed.what for assumed in op.assumptions) is (overload != "out")


def test_phases_take_only_the_calls_of_their_iterations() -> None:
    rows = [(MM, 0, 10_000), (MM, 100_000, 20_000), (MATMUL, 130_000, 30_000), (MM, 300_000, 40_000)]
    notes = (
        Annotation(name="execute_context_1(8)_generation_0(0)", start_ns=0, dur_ns=50_000, track=0),
        Annotation(name="execute_context_0(0)_generation_8(8)", start_ns=90_000, dur_ns=100_000, track=0),
    )
    marked = msgspec.structs.replace(trace(rows), annotations=notes)

    def calls(phase: Phase) -> dict[str, tuple[int, float]]:
        plan = build_plan(marked, select="all", filters=OpFilter(phase=phase))
        assert {op.batch and op.batch.phase for op in plan.ops} == {phase}
        return {op.name: (op.count, op.recorded.host_us_total) for op in plan.ops}

    assert calls("prefill") == {"aten::mm": (1, 10.0)}
    assert calls("decode") == {"aten::mm": (1, 20.0), "aten::matmul": (1, 30.0)}
    with pytest.raises(UsageError, match="phase mixed") as error:
        calls("mixed")
    assert error.value.hint == "There are iterations of phase prefill, decode."
    with pytest.raises(UsageError, match="phase decode") as error:
        build_plan(trace(rows), select="all", filters=OpFilter(phase="decode"))
    assert "has no such marks" in error.value.hint


def test_numbers_of_an_optimizer_that_change_from_step_to_step_make_no_new_op() -> None:
    """Adam's bias correction: each step was an op of its own, and `compare` found them only in one of two runs."""

    def signature(name: str, text: str) -> OpSignature:
        return OpSignature(
            name=name,
            dims=((8,), (8,), (8,), ()),
            types=("float", "float", "float", "Scalar"),
            concrete=("", "", "", text),
        )

    ids = {signature_id(signature("aten::addcdiv_", text)) for text in ("-0.00316228", "-0.01", "1e-05", "-2.5e-3")}
    assert len(ids) == 1
    assert signature_id(signature("aten::addcdiv_", "2")) not in ids
    plain = {signature_id(signature("aten::div", text)) for text in ("0.0316", "0.0447")}
    assert len(plain) == 1, "an optimizer that goes through its tensors one by one"
    powers = {signature_id(signature("aten::pow", text)) for text in ("2.", "0.5")}
    assert len(powers) == 2
    plan = build_plan(
        trace([(signature("aten::addcdiv_", "-0.1"), 0, 10), (signature("aten::addcdiv_", "-0.2"), 20, 30)])
    )
    (op,) = plan.ops
    assert op.count == 2
    assert op.recorded.host_us_total == pytest.approx(0.04)


NAMES = ["relu", "tanh", "abs", "exp", "sigmoid", "neg", "cos", "sin"]


@pytest.mark.parametrize("names", [NAMES, NAMES[::-1], sorted(NAMES)])
def test_ops_of_equal_times_stand_in_order_of_first_appearance(tmp_path: Path, names: list[str]) -> None:
    args = {"Input Dims": [[4, 4]], "Input type": ["float"], "Input Strides": [[4, 1]], "Concrete Inputs": [""]}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::{name}", "pid": 1, "tid": 1, "ts": 10 * at, "dur": 2, "args": args}
        for at, name in enumerate(names)
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert [op.name for op in build_plan(read_trace(path)).ops] == [f"aten::{name}" for name in names]
    chosen = build_plan(read_trace(path), filters=OpFilter(top=3)).ops
    assert [op.name for op in chosen] == [f"aten::{name}" for name in names[:3]]
