"""Calls under `torch.vmap`: that for one sample and that for the batch, recorded once for each transform, tell each
other's arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.relatives import RelativesIndex
from opreplay.traces import read_trace
from opreplay.traces.model import Trace

X = torch.randn(5, 4, 6)
ROWS = torch.randint(0, 6, (5, 3))


def recorded(step: Callable[[], object], folder: Path, *, dims_only: bool = True) -> Trace:
    """The trace of a step; `dims_only` removes strides and values."""
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    if dims_only:
        trace = json.loads(path.read_text())
        for event in trace["traceEvents"]:
            for column in ("Input Strides", "Concrete Inputs"):
                event.get("args", {}).pop(column, None)
        path.write_text(json.dumps(trace))
    return read_trace(path)


def values(plan: ReplayPlan, name: str, argument: str) -> dict[tuple[int, ...], Any]:
    """The value of an argument for each size of the first tensor."""
    return {_size(op): arg.value for op in plan.ops if op.name == name for arg in op.args if arg.name == argument}


def _size(op: ReplayOp) -> tuple[int, ...]:
    return next(meta.shape for arg in op.args for meta in arg.tensors if meta is not None)


@pytest.mark.parametrize(
    ("step", "name", "argument", "expected"),
    [
        (lambda x: x.sum(0).exp(), "aten::sum", "dim", {(4, 6): (0,), (5, 4, 6): (1,)}),
        (lambda x: x.new_zeros(7, 2) + 1, "aten::new_zeros", "size", {(4, 6): (7, 2), (5, 4, 6): (5, 7, 2)}),
        (lambda x: x.new_full((3,), 0.5) + 1, "aten::new_full", "size", {(4, 6): (3,), (5, 4, 6): (5, 3)}),
        (lambda x: x.cumsum(1) + 1, "aten::cumsum", "dim", {(4, 6): -1, (5, 4, 6): 2}),
        (lambda x: x.select(1, 2).exp(), "aten::select", "dim", {(4, 6): 1, (5, 4, 6): 2}),
        (lambda x: x.unsqueeze(1).exp(), "aten::unsqueeze", "dim", {(4, 6): 1, (5, 4, 6): 2}),
        (lambda x: x.permute(1, 0).exp(), "aten::permute", "dims", {(4, 6): (1, 0), (5, 4, 6): (0, 2, 1)}),
        (lambda x: x.view(3, 8).exp(), "aten::view", "size", {(4, 6): (3, 8), (5, 4, 6): (5, 3, 8)}),
    ],
)
def test_a_batch_has_the_arguments_of_one_sample_behind_its_dimension(
    step: Callable[[torch.Tensor], torch.Tensor],
    name: str,
    argument: str,
    expected: dict[tuple[int, ...], object],
    tmp_path: Path,
) -> None:
    plan = build_plan(recorded(lambda: torch.vmap(step)(X), tmp_path), select="all")
    assert values(plan, name, argument) == expected


def test_what_is_assumed_of_a_batch_is_said(tmp_path: Path) -> None:
    plan = build_plan(recorded(lambda: torch.vmap(lambda x: x.sum(0).exp())(X), tmp_path), select="all")
    (op,) = (op for op in plan.ops if op.name == "aten::sum" and _size(op) == (5, 4, 6))
    (note,) = (note for note in op.assumptions if note.argument == "dim")
    assert "one sample" in note.what


def test_the_batch_is_joined_with_another_dimension_without_being_moved(tmp_path: Path) -> None:
    """Ops that take one dimension of samples get the batch by `movedim` and `reshape`, and give it back."""
    images = torch.randn(5, 2, 3, 6, 6)
    plan = build_plan(
        recorded(lambda: torch.vmap(lambda x: torch.conv2d(x, torch.ones(4, 3, 3, 3)).exp())(images), tmp_path),
        select="all",
    )
    assert values(plan, "aten::movedim", "destination")[(5, 2, 3, 6, 6)] in (0, (0,))
    shapes = values(plan, "aten::reshape", "shape")
    assert shapes[(5, 2, 3, 6, 6)] == (10, 3, 6, 6)
    assert shapes[(10, 4, 4, 4)] == (5, 2, 4, 4, 4)


Indices = list[tuple[tuple[int, ...], str] | None]


@pytest.mark.parametrize("dims_only", [False, True])
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda x, at: x[:, at], {(4, 6): [None, ((3,), "int64")]}),
        (lambda x, at: x[torch.arange(3, dtype=torch.int32), at], {(4, 6): [((3,), "int32"), ((3,), "int64")]}),
        (lambda x, at: x[torch.tensor([1, 3])] + at.sum(), {(4, 6): [((2,), "int64")]}),
    ],
)
def test_indices_of_one_sample(
    step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    expected: dict[tuple[int, ...], Indices],
    dims_only: bool,
    tmp_path: Path,
) -> None:
    plan = build_plan(recorded(lambda: torch.vmap(step)(X, ROWS) + 1, tmp_path, dims_only=dims_only), select="all")
    for size, indices in expected.items():
        (op,) = (op for op in plan.ops if op.name == "aten::index" and _size(op) == size)
        (arg,) = (arg for arg in op.args if arg.name == "indices")
        assert [meta and (meta.shape, meta.dtype) for meta in arg.tensors] == indices


def test_indices_under_four_transforms(tmp_path: Path) -> None:
    """As score functions of flex attention are called: each transform records the call two or three times."""
    table = torch.randn(7)

    def score(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return table[i - j + 3] + b + h

    def step() -> None:
        mapped: Callable[..., torch.Tensor] = score
        for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
            mapped = torch.vmap(mapped, in_dims=dims)
        mapped(torch.arange(2), torch.arange(5), torch.arange(3), torch.arange(4))

    trace = recorded(step, tmp_path, dims_only=False)
    (op,) = (op for op in build_plan(trace, select="all").ops if op.name == "aten::index")
    (arg,) = (arg for arg in op.args if arg.name == "indices")
    assert [meta and (meta.shape, meta.dtype) for meta in arg.tensors] == [((3, 4), "int64")]


def test_the_rows_of_one_call_have_the_same_surroundings(tmp_path: Path) -> None:
    trace = recorded(lambda: torch.vmap(torch.vmap(lambda x: x.exp()))(X).sum(), tmp_path, dims_only=False)
    names = [trace.signatures[at].name for at in trace.ops.signature.tolist()]
    index = RelativesIndex(trace)
    around = [index.around(row) for row, name in enumerate(names) if name == "aten::exp"]
    of_batch = [one for one in around if one.parent is not None and one.parent.dims == ((4, 6),)]
    assert len(around) > 3
    assert len({(one.parent, one.following, one.ancestors) for one in of_batch}) == 1


def test_a_stable_sort_is_one_that_was_asked_for(tmp_path: Path) -> None:
    def step() -> None:
        torch.sort(X[0, 0])
        torch.sort(X[0], stable=True, dim=1)

    plan = build_plan(recorded(step, tmp_path), select="all")
    (asked,) = (op for op in plan.ops if op.overload == "stable" and _size(op) == (4, 6))
    assert next(arg.value for arg in asked.args if arg.name == "stable") is True
    for op in plan.ops:
        if op.overload == "stable" and _size(op) == (6,):
            assert next(arg.value for arg in op.args if arg.name == "stable") is not True
