"""Every data-dependent op of the public traces has an initializer and does work, and batches add up to what is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.proof_of_work import audit_iterations, audit_ops
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.register import canonical_name
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.selection import OpFilter
from opreplay.traces import read_trace
from tests.replay.ops.names import counted_ops

pytestmark = pytest.mark.slow

WORDS = (
    "embedding",
    "index",
    "gather",
    "scatter",
    "attention",
    "mha_",
    "paged",
    "moe",
    "expert",
    "topk_",
    "cache",
    "kv_",
    "rotary",
    "loss",
)
"""Ops with one of these in their names are looked at."""
FAMILIES = re.compile(
    r"embedding(?!_grad)|::index|gather|scatter|attention|mha_|paged|moe|expert|topk_|reshape_and_cache|store_cache|"
    r"set_kv_buffer|rotary|nll_loss|cross_entropy"
)
WITHOUT_INDICES = re.compile(r"^(nccl|c10d)|all_?gather|reduce_scatter|^autograd|^triton|^fb::")
MOST = 1 << 18
"""Larger tensors of whole numbers are left to the benchmark."""
REGISTRY = built_in()


def names_of_families(plan: ReplayPlan) -> set[str]:
    """Ops that by their name and their whole-number arguments belong to a data-dependent family."""
    whole = ("int32", "int64")
    return {
        canonical_name(op.called)
        for op in plan.ops
        if op.reason is None
        and FAMILIES.search(op.name)
        and not WITHOUT_INDICES.search(op.name)
        and any(meta is not None and meta.dtype in whole for arg in op.args for meta in arg.tensors)
    }


def test_public_traces(shared_traces: Path) -> None:
    offenders, counted, iterations = [], 0, 0
    wanted = (*counted_ops(), *(f"*{word}*" for word in WORDS))
    for path in sorted(shared_traces.glob("*.json.gz")):
        trace = read_trace(path)
        plan = build_plan(trace, select="all", filters=OpFilter(include=wanted))
        offenders += [f"{path.name}: no counter for {name}" for name in names_of_families(plan) - set(counted_ops())]
        for one in audit_ops(plan, REGISTRY, most=MOST):
            counted += one.work is not None
            if one.initializer is None:
                offenders.append(f"{path.name}: {one.op.name} has no initializer {one.problem or ''}")
            elif one.work is not None and (one.work.idle or one.work.warnings):
                offenders.append(f"{path.name}: {one.op.name} does {one.work}")
        for iteration in audit_iterations(trace, plan, REGISTRY):
            iterations += iteration.name is not None
            if not iteration.equal:
                offenders.append(f"{path.name}: {iteration}")
    assert not offenders, "\n".join(offenders)
    assert counted > 80
    assert iterations >= 3


def event(name: str, ts: int, dims: list[Any], types: list[str], values: list[str]) -> dict[str, Any]:
    args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": values}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 5, "args": args}


@pytest.mark.parametrize(
    ("note", "told"),
    [
        ("execute_48_context_2(sq44sk60sqsq1096sqsk1448)_generation_4(sq4sk70sqsq4sqsk70)", (48, 130)),
        ("execute_context_2(44_60)_generation_4(4)", (48, None)),
        ("execute_context_2(44)_generation_4(4)", (48, None)),
        ("step[DECODE bs=48]", (None, None)),
        ("execute_new_2_cached_4", (None, None)),
    ],
)
def test_each_annotated_iteration_is_compared(tmp_path: Path, note: str, told: tuple[int | None, int | None]) -> None:
    layer = event(
        "vllm::unified_attention_with_output",
        10,
        [[48, 4, 8], [48, 2, 8], [48, 2, 8], [48, 4, 8], [], [], []],
        ["c10::BFloat16"] * 4 + [""] * 3,
        [""] * 7,
    )
    mark = {"ph": "X", "cat": "user_annotation", "name": note, "pid": 1, "tid": 1, "ts": 1, "dur": 100}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [mark, layer]}))
    trace = read_trace(path)
    (found,) = audit_iterations(trace, build_plan(trace, select="all"), REGISTRY)
    assert found.told == told
    assert found.encoded[0] == 48
    assert found.equal


def test_an_iteration_without_attention_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    mark = {"ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=4]", "pid": 1, "tid": 1, "ts": 1, "dur": 100}
    lookup = event("aten::neg", 5, [[4]], ["float"], [""])
    path.write_text(json.dumps({"traceEvents": [mark, lookup]}))
    trace = read_trace(path)
    (found,) = audit_iterations(trace, build_plan(trace, select="all"), REGISTRY)
    assert found.name is None
    assert found.equal
