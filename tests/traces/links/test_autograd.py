"""Which calls autograd recorded, from sequence numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opreplay.traces import read_trace
from opreplay.traces.samples import sample_path
from tests.scenarios.conftest import op


def numbered(name: str, ts: float, number: int | None, *, dur: float = 10.0) -> dict[str, Any]:
    event = op(name, ts, [[4, 4]], ["float"], dur=dur)
    if number is not None:
        event["args"] |= {"Sequence number": number, "Fwd thread id": 0}
    return event


def both(tmp_path: Path, *events: dict[str, Any]) -> tuple[list[bool], list[bool]]:
    """Which calls autograd recorded, and of which that is assumed not to be so."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    ops = read_trace(path, gradients=True).ops
    assert ops.gradients is not None
    assert ops.gradients_assumed is not None
    return ops.gradients.tolist(), ops.gradients_assumed.tolist()


def recorded(tmp_path: Path, *events: dict[str, Any]) -> list[bool]:
    return both(tmp_path, *events)[0]


def test_a_node_makes_the_next_number_larger(tmp_path: Path) -> None:
    """The second call is of a frozen tensor: gradients are on, and nothing is recorded."""
    calls = [numbered("aten::mul", 0, 5), numbered("aten::linear", 20, 6), numbered("aten::add", 40, 6)]
    assert recorded(tmp_path, *calls, numbered("aten::neg", 60, 7), numbered("aten::mm", 80, None)) == [
        True,
        False,
        True,
        False,  # nothing follows, and no call like it
        False,  # no number: off
    ]


def test_nodes_of_a_backward_pass_tell_nothing(tmp_path: Path) -> None:
    """They repeat the numbers of the forward pass on the same thread of a CPU."""
    backward = numbered("autograd::engine::evaluate_function: MulBackward0", 20, 5)
    node = numbered("MulBackward0", 22, 5, dur=5)
    assert recorded(tmp_path, numbered("aten::mul", 0, 5), backward, node, numbered("aten::add", 60, 6)) == [
        True,
        False,
        False,
        False,
    ]


def test_what_is_inside_counts_for_the_call_around_it(tmp_path: Path) -> None:
    outer, inner = numbered("aten::matmul", 0, 3, dur=30), numbered("aten::mm", 10, 4, dur=5)
    assert recorded(tmp_path, outer, inner, numbered("aten::add", 60, 5))[:2] == [True, True]


def test_the_last_call_counts_as_those_before_it(tmp_path: Path) -> None:
    frozen = [numbered("aten::linear", 20.0 * i, 6) for i in range(3)]
    assert recorded(tmp_path, *frozen) == [False, False, False]


def test_the_only_call_of_a_trace_is_assumed_to_require_no_gradients(tmp_path: Path) -> None:
    assert both(tmp_path, numbered("aten::matmul", 0, 7)) == ([False], [True])
    assert both(tmp_path, numbered("aten::matmul", 0, None)) == ([False], [False]), "without a number they were off"


def test_a_backward_node_tells_of_the_last_call(tmp_path: Path) -> None:
    """A loss is the last call of its thread on a GPU, where the backward pass has a thread of its own."""
    calls = [numbered("aten::linear", 0, 3), numbered("aten::mean", 20, 4)]
    node = numbered("autograd::engine::evaluate_function: MeanBackward0", 40, 4) | {"tid": 9}
    assert both(tmp_path, *calls, node) == ([True, True, False], [False] * 3)
    assert both(tmp_path, *calls, node | {"args": node["args"] | {"Sequence number": 3}})[1] == [False, True, False]


def test_a_node_that_another_thread_may_have_recorded_tells_nothing(tmp_path: Path) -> None:
    mine = [numbered("aten::mean", 20, 4)]
    others = [numbered("aten::linear", 0, 4) | {"tid": 7}, numbered("aten::relu", 20, 5) | {"tid": 7}]
    node = numbered("autograd::engine::evaluate_function: MeanBackward0", 40, 4) | {"tid": 9}
    found, assumed = both(tmp_path, *mine, *others, node)
    assert (sorted(found), sorted(assumed)) == ([False] * 3 + [True], [False] * 2 + [True] * 2)


def test_samples() -> None:
    """A training step with gradients, of which its backward and optimizer run without; inference without."""
    trained = read_trace(sample_path("cnn_train"), gradients=True)
    assert trained.ops.gradients is not None
    names = {trained.signatures[i].name for i in trained.ops.signature[trained.ops.gradients].tolist()}
    assert "aten::conv2d" in names
    assert not any("backward" in name or "_foreach" in name for name in names)
    inferred = read_trace(sample_path("transformer_infer"), gradients=True).ops.gradients
    assert inferred is not None
    assert not inferred.any()
    assert read_trace(sample_path("cnn_train")).ops.gradients is None
