"""The file that measures calls: what may be in it, how calls are written, and that no text of a trace is code."""

from __future__ import annotations

import ast
import json

import pytest
import torch

from opreplay.replay.export.measure import Timed, cost_s, encode_call, file_text, left_out_lines, refusal
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls
from tests.factories import jit_op, op, tensor, value

GB = 1 << 30
FACTS = {"soc": "910b3", "socs": {}, "left_out": [], "budget_s": 60.0, "l2_bytes": 1 << 20}


def op_of(text: str) -> ReplayOp:
    plan, ids = plan_of_calls([Written(text=text)])
    return next(op for op in plan.ops if op.id == ids[0])


def timed(op: ReplayOp) -> Timed:
    return Timed(op=op, cold_us=20.0, warm_us=10.0, count=3, share=0.5)


def calls_in(text: str) -> list[dict[str, object]]:
    """The calls of a file, read without running it."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "CALLS":
            assert node.value is not None
            return [json.loads(line) for line in ast.literal_eval(node.value)]
    raise AssertionError("no CALLS")


def test_the_file_is_python_that_imports_nothing_of_ours() -> None:
    call = encode_call(timed(op_of("aten::mm(f32[8,4], f32[4,8])")), built_in(), seed=0, memory_bytes=GB)
    text = file_text([call], FACTS)
    tree = ast.parse(text)
    modules = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [module for module in modules if module.startswith("opreplay")]
    assert "msgspec" not in text
    assert "numpy" not in text
    (read,) = calls_in(text)
    assert read["text"] == "aten::mm(f32[8,4], f32[4,8])"
    assert read["predicted_us"] == {"warm": 10.0, "cold": 20.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile", ["'); import os; os.system('x') #", '"""\nraise SystemExit', "\\'", "\u202e\x1b[2J\n"]
)
def test_texts_of_a_trace_stay_texts(hostile: str) -> None:
    lines = left_out_lines([(op(f"my::{hostile}"), Reason("policy", hostile))])
    text = file_text([json.dumps({"text": hostile})], {**FACTS, "left_out": lines})
    assert not {"\u202e", "\x1b"} & set(text)
    (read,) = calls_in(text)
    assert read["text"] == hostile
    assert all(line.isprintable() for line in lines)
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.AnnAssign)]
    assert isinstance(ast.literal_eval(assigned[0].value), dict)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (jit_op("aten::mm", tensor("self", 4, 4), tensor("mat2", 4, 4)), None),
        (jit_op("vllm::thing", tensor("x", 4)), "library missing"),
        (op("my::thing", tensor("x", 4), resolved_by="executor"), "library missing"),
        (jit_op("aten::from_file", value("filename", "str", "x")), "policy"),
        (jit_op("aten::mm", tensor("self", 1 << 20, 1 << 20), tensor("mat2", 1 << 20, 4)), "budget"),
    ],
)
def test_only_ops_of_torch_and_torch_npu_that_fit_are_called(call: ReplayOp, kind: str | None) -> None:
    reason = refusal(call, GB)
    assert (reason and reason.kind) == kind


def test_ops_of_torch_npu_are_called_by_the_names_of_their_arguments() -> None:
    call = op_of("npu::npu_rotary_mul(bf16[4,8,16,128], bf16[1,1,16,128], bf16[1,1,16,128], rotary_mode='half')")
    assert refusal(call, GB) is None
    read = json.loads(encode_call(timed(call), built_in(), seed=0, memory_bytes=GB))
    assert read["text"].startswith("npu::npu_rotary_mul(")
    assert read["overload"] == ""
    named = {arg["name"]: arg["keyword_only"] for arg in read["args"]}
    assert named == {"self": False, "r1": False, "r2": False, "rotary_mode": True}


def test_the_written_call_is_the_op_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from opreplay.replay.export.script import Call

    call = op_of("aten::add.Tensor(f32[4,8]{1,4}, f32[8], alpha=2)")
    read = json.loads(encode_call(timed(call), built_in(), seed=0, memory_bytes=GB))
    ready = Call(read, read["inputs"], torch.device("cpu"), 0)
    first, second = ready.positional[:2]
    assert first.stride() == (1, 4)
    assert torch.equal(ready(), first + 2 * second)


def test_a_call_costs_its_setup_and_its_samples() -> None:
    assert cost_s(20.0, 10.0) < cost_s(20_000.0, 10_000.0) < 10.0
