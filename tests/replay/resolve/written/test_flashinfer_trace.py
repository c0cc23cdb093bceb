"""Folders of FlashInfer-Trace read into plans: exact round trips, foreign definitions, and whatever is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opreplay.replay.export.flashinfer_trace import flashinfer_trace, write_flashinfer_trace
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.inputs import FLASHINFER_TRACE, open_input, plan_dialect
from opreplay.replay.resolve.by_argument_name import resolve_named
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.written.flashinfer_trace import read_flashinfer_trace
from opreplay.traces import read_trace
from opreplay.traces.errors import FormatError
from opreplay.traces.samples import SAMPLES, sample_path

DEFINITION: dict[str, Any] = {
    "name": "gemm",
    "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "K": {"type": "const", "value": 8}},
    "inputs": {"A": {"shape": ["M", "K"], "dtype": "float16"}, "eps": {"shape": None, "dtype": "float32"}},
    "outputs": {"C": {"shape": ["M", "K"], "dtype": "float16"}},
    "reference": "import os\ndef run(A, eps):\n    os.abort()\n",
}
LINE: dict[str, Any] = {
    "definition": "gemm",
    "workload": {
        "uuid": "1",
        "axes": {"M": 4},
        "inputs": {"A": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-5}},
    },
    "solution": None,
    "evaluation": None,
}


def folder(path: Path, definition: dict[str, Any] = DEFINITION, line: dict[str, Any] = LINE) -> Path:
    for part, name, value in (("definitions", "gemm.json", definition), ("workloads", "gemm.jsonl", line)):
        (path / part / "gemm").mkdir(parents=True, exist_ok=True)
        (path / part / "gemm" / name).write_text(json.dumps(value) + "\n")
    return path


def calls_of(plan: ReplayPlan) -> Counter[tuple[Any, ...]]:
    calls: Counter[tuple[Any, ...]] = Counter()
    for op in plan.ops:
        calls[op.called, op.overload, op.args] += op.count
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_a_round_trip_is_exact(sample: str, tmp_path: Path) -> None:
    plan = with_outputs(build_plan(read_trace(sample_path(sample))))
    exported = flashinfer_trace(plan, built_in(), memory_bytes=1 << 26)
    write_flashinfer_trace(exported, tmp_path / "out")
    assert exported.workloads
    again = open_input(str(tmp_path / "out"))
    assert isinstance(again, ReplayPlan)
    again = resolve_named(again, Policy())
    assert [op.reason for op in again.ops if op.reason] == []
    left_out = {op.id for op in exported.left_out}
    said = tuple(op for op in plan.ops if op.id not in left_out)
    assert calls_of(again) == calls_of(msgspec.structs.replace(plan, ops=said))


def test_a_foreign_definition_gives_sizes_and_runs_nothing(tmp_path: Path) -> None:
    (op,) = read_flashinfer_trace(folder(tmp_path)).ops
    assert op.name == "flashinfer::gemm"
    assert op.reason is not None
    assert op.reason.kind == "library missing"
    assert [(arg.name, arg.value, [(m.shape, m.dtype) for m in arg.tensors if m]) for arg in op.args] == [
        ("A", None, [((4, 8), "float16")]),
        ("eps", 1e-5, []),
    ]
    assert plan_dialect(str(tmp_path)) is FLASHINFER_TRACE


def changed_line(**inputs: Any) -> dict[str, Any]:
    return {**LINE, "workload": {**LINE["workload"], "inputs": {**LINE["workload"]["inputs"], **inputs}}}


@pytest.mark.parametrize(
    ("definition", "line"),
    [
        ({**DEFINITION, "axes": {"M": {"type": "var"}}}, LINE),
        ({**DEFINITION, "axes": {**DEFINITION["axes"], "M": {"type": "const", "value": -1}}}, LINE),
        ({**DEFINITION, "inputs": {"A": {"shape": ["M"], "dtype": "evil"}}}, LINE),
        (DEFINITION, {**LINE, "definition": "other"}),
        (DEFINITION, changed_line(eps={"type": "scalar"})),
        (DEFINITION, changed_line(eps={"type": "scalar", "value": 1 << 80})),
        (DEFINITION, changed_line(A={"type": "safetensors", "path": "../x.safetensors", "tensor_key": "A"})),
        (DEFINITION, changed_line(A={"type": "safetensors", "path": "/etc/hostname", "tensor_key": "A"})),
        (DEFINITION, {**LINE, "opreplay": {"layouts": {"A": {"strides": [1]}}}}),
        ({"name": 1}, LINE),
    ],
)
def test_what_does_not_fit_is_refused(definition: dict[str, Any], line: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        read_flashinfer_trace(folder(tmp_path, definition, line))


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps(DEFINITION))
    path = folder(tmp_path / "in")
    (path / "definitions" / "gemm" / "other.json").symlink_to(outside)
    with pytest.raises(FormatError, match="inside"):
        read_flashinfer_trace(path)


@pytest.mark.parametrize("text", [b'{"definition": "g\xff"}', b"[" * 200_000, b'{"workload": ' * 200_000])
@pytest.mark.parametrize("part", ["definitions/gemm/gemm.json", "workloads/gemm/gemm.jsonl"])
def test_damaged_text_is_refused_by_name(tmp_path: Path, part: str, text: bytes) -> None:
    (folder(tmp_path) / part).write_bytes(text)
    with pytest.raises(FormatError, match=r"gemm\.json"):
        read_flashinfer_trace(tmp_path)
