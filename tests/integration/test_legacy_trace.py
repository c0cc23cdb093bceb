"""A training step of a residual network as torch 1.9 recorded it: names, no values of scalars, no strides."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.forked_children import opreplay_here

pytestmark = pytest.mark.slow


Argument = tuple[list[int], str]


def f(*shape: int) -> Argument:
    """A float32 tensor."""
    return list(shape), "float"


NONE: Argument = ([], "")
NUMBER: Argument = ([], "Int")
FLAG: Argument = ([], "Bool")
REAL: Argument = ([], "Double")
LIST: Argument = ([], "")


@dataclass
class Call:
    """A recorded op, what it calls, and the time of its kernel."""

    name: str
    arguments: list[Argument]
    children: list[Call] = field(default_factory=list)
    kernel_us: int = 0


X, Y = (2, 8, 14, 14), (2, 16, 7, 7)
"""Into and out of a convolution of stride 2."""
W = (16, 8, 3, 3)
REST = [LIST, LIST, LIST, NUMBER, FLAG, FLAG, FLAG]
STATS = [f(16)] * 2

STEP = [
    Call("aten::cudnn_convolution", [f(*X), f(*W), *REST], kernel_us=40),
    Call("aten::cudnn_batch_norm", [f(*Y), *[f(16)] * 4, FLAG, REAL, REAL], kernel_us=20),
    Call("aten::clamp_min_", [f(*Y), NUMBER], kernel_us=5),
    Call("aten::max_pool2d_with_indices", [f(*Y), LIST, LIST, LIST, LIST, FLAG], kernel_us=5),
    Call("aten::mean", [f(2, 16, 3, 3), LIST, FLAG, NONE], kernel_us=4),
    Call("aten::addmm", [f(10), f(2, 16), f(16, 10), NUMBER, NUMBER], kernel_us=6),
    Call("aten::_log_softmax", [f(2, 10), NUMBER, FLAG], kernel_us=3),
    Call("aten::nll_loss_forward", [f(2, 10), ([2], "long int"), NONE, NUMBER, NUMBER], kernel_us=3),
    Call("aten::nll_loss_backward", [f(), f(2, 10), ([2], "long int"), NONE, NUMBER, NUMBER, f()], kernel_us=3),
    Call("aten::_log_softmax_backward_data", [f(2, 10), f(2, 10), NUMBER, f(2, 10)], kernel_us=3),
    Call("aten::mm", [f(10, 2), f(2, 16)], kernel_us=6),
    Call(
        "aten::max_pool2d_with_indices_backward",
        [f(2, 16, 3, 3), f(*Y), LIST, LIST, LIST, LIST, FLAG, ([2, 16, 3, 3], "long int")],
        kernel_us=9,
    ),
    Call("aten::threshold_backward", [f(*Y), f(*Y), NUMBER], kernel_us=6),
    Call(
        "aten::cudnn_batch_norm_backward",
        [f(*Y), f(*Y), f(16), f(16), f(16), *STATS, REAL, ([0], "unsigned char")],
        kernel_us=30,
    ),
    Call(
        "aten::cudnn_convolution_backward",
        [f(*X), f(*Y), f(*W), *REST, LIST],
        [
            Call("aten::cudnn_convolution_backward_input", [LIST, f(*Y), f(*W), *REST], kernel_us=90),
            Call("aten::cudnn_convolution_backward_weight", [LIST, f(*Y), f(*X), *REST], kernel_us=80),
        ],
    ),
    Call("aten::add_", [f(*W), f(*W), NUMBER], kernel_us=3),
]


def events(calls: list[Call]) -> list[dict[str, Any]]:
    """The step as trace events, each call 100 µs or as long as what is inside."""
    made: list[dict[str, Any]] = []
    ids = iter(range(1, 10_000))

    def emit(call: Call, start: int) -> int:
        end = start + 10
        number = next(ids)
        for child in call.children:
            end = emit(child, end)
        if call.kernel_us:
            made.append(
                {
                    "ph": "X",
                    "cat": "Runtime",
                    "name": "cudaLaunchKernel",
                    "pid": 1,
                    "tid": 1,
                    "ts": end,
                    "dur": 5,
                    "args": {"correlation": number},
                }
            )
            made.append(
                {
                    "ph": "X",
                    "cat": "Kernel",
                    "name": "kernel",
                    "pid": 0,
                    "tid": 7,
                    "ts": end + 1000,
                    "dur": call.kernel_us,
                    "args": {"correlation": number, "external id": number, "device": 0, "stream": 7},
                }
            )
            end += 10
        arguments = {"Input Dims": [a[0] for a in call.arguments], "Input type": [a[1] for a in call.arguments]}
        made.append(
            {
                "ph": "X",
                "cat": "Operator",
                "name": call.name,
                "pid": 1,
                "tid": 1,
                "ts": start,
                "dur": end - start,
                "args": {"External id": number, **arguments},
            }
        )
        return end + 10

    now = 100
    for call in calls:
        now = emit(call, now)
    return made


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "resnet.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events(STEP)}))
    return path


def opreplay(*args: object) -> str:
    done = opreplay_here(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_op_is_replayed_with_the_window_it_had(trace: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    first = opreplay("plan", trace, "--meta", "--output", plan).splitlines()[0]
    assert "17 of 17 ops" in first, first
    ops = {op["name"]: op for op in json.loads(plan.read_text())["ops"]}
    for name in ("cudnn_convolution_backward_input", "cudnn_convolution_backward_weight"):
        op = ops[f"aten::{name}"]
        assert op["via"] == "aten::convolution_backward"
        values = {arg["name"]: arg.get("value") for arg in op["args"]}
        assert values["stride"] == [2, 2]
        assert values["padding"] == [1, 1]
        assert values["groups"] == 1
        size = {"cudnn_convolution_backward_input": ("self_size", X)}.get(name, ("weight_size", W))
        assert values[size[0]] == list(size[1])
    norm = {arg["name"]: arg.get("value") for arg in ops["aten::cudnn_batch_norm"]["args"]}
    assert (norm["exponential_average_factor"], norm["epsilon"], norm["training"]) == (0.1, 1e-5, True)
    assert ops["aten::_log_softmax_backward_data"]["overload"] == "until_1_10"


def test_it_runs_and_is_simulated_by_rules(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    opreplay(
        "run", trace, "--soc", "910b3", "--set", "op_time=5ms", "--set", "threads=1", "--output", out, "--max-failed", 0
    )
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    results = {row["name"]: row for row in rows if "name" in row and "status" in row}
    assert all(row["status"] == "replayed" for row in results.values())
    backward = {name: row for name, row in results.items() if "convolution_backward" in name}
    assert len(backward) == 2


def test_a_bundle_calls_what_torch_has_today(trace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    opreplay("export", trace, "-o", folder)
    names = {op["name"] for op in json.loads((folder / "ops.json").read_text())["ops"]}
    assert "aten::convolution_backward" in names
    assert not any("backward_input" in name for name in names)
