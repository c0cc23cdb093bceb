"""Calls around one call: labels give way to what is inside them, and autograd's numbers join forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from opreplay.replay.resolve.guess.values import NOT_INSIDE, Relatives
from opreplay.replay.resolve.relatives import RelativesIndex
from opreplay.traces import read_trace

X = torch.randn(4, 6)


def around(
    step: Callable[[], object], folder: Path, name: str, parent: str = "", *, gradients: bool = True
) -> Relatives:
    """What surrounds the first call of `name`, below a `parent` where one is given."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = read_trace(path, gradients=gradients)
    index = RelativesIndex(trace)
    rows = [row for row, at in enumerate(trace.ops.signature.tolist()) if trace.signatures[at].name == name]
    rows.sort(key=lambda row: int(trace.ops.start_ns[row]))
    found = [index.around(row) for row in rows]
    return next(one for one in found if not parent or (one.parent is not None and one.parent.name == parent))


def step() -> None:
    x = X.clone().requires_grad_(True)
    torch.tanh(x.view(24)).sum().backward()


def test_a_call_is_followed_by_the_node_that_goes_back_through_it(tmp_path: Path) -> None:
    view = around(step, tmp_path, "aten::view")
    assert view.following[0].name == "ViewBackward0"
    assert view.following[0].dims is not None
    assert view.following[0].dims[0] == (24,)
    assert view.levels[0] == NOT_INSIDE
    assert view.following[1].name == "aten::tanh"


def test_a_part_of_a_node_knows_the_forward_call(tmp_path: Path) -> None:
    back = around(step, tmp_path, "aten::reshape", "ViewBackward0")
    assert back.forward is not None
    assert back.forward.name == "aten::view"
    assert back.forward.dims is not None
    assert back.forward.dims[0] == (4, 6)
    assert back.before is not None
    assert back.before().following[1].name == "aten::tanh"


def test_labels_are_named_and_give_way_to_the_first_call_inside(tmp_path: Path) -> None:
    made = around(step, tmp_path, "aten::tanh_backward")
    assert made.labels[0] == "autograd::engine::evaluate_function: ViewBackward0"
    assert made.following[0].name == "ViewBackward0"
    assert made.ancestors[0].name == "TanhBackward0"


def test_without_autograds_numbers_nothing_is_joined(tmp_path: Path) -> None:
    view = around(step, tmp_path, "aten::view", gradients=False)
    assert view.following[0].name == "aten::tanh"
    assert view.forward is None


def test_the_last_call_with_a_number_recorded_the_node(tmp_path: Path) -> None:
    """Calls that no gradient goes through have the number of the next that one does."""

    def two() -> None:
        x = X.clone().requires_grad_(True)
        torch.tanh(torch.zeros(3))
        torch.tanh(x).sum().backward()

    plain = around(two, tmp_path, "aten::tanh")
    assert plain.following[0].name == "aten::tanh"
    assert plain.forward is None


def test_places_count_calls_of_one_name(tmp_path: Path) -> None:
    with torch.no_grad():
        made = around(lambda: torch.matmul(X.expand(3, 4, 6), torch.randn(3, 6, 2)), tmp_path, "aten::bmm")
    assert made.places == (0,)
    assert made.ancestors[0].name == "aten::matmul"
