"""Equations of recorded einsums: the guess does the same product, though its letters and their order may differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from opreplay.replay.plan.build import build_plan
from opreplay.traces import read_trace

CASES = (
    ("ij,jk->ik", (4, 5), (5, 6)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bhqk,bhkd->bhqd", (2, 3, 4, 6), (2, 3, 6, 5)),
    ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("td,edf->etf", (7, 4), (3, 4, 5)),
    ("i,j->ij", (6,), (4,)),
    ("i,j->ij", (5,), (5,)),
    ("i,i->", (5,), (5,)),
    ("bij,bij->b", (2, 3, 4), (2, 3, 4)),
    ("bnd,md->bnm", (2, 3, 4), (5, 4)),
    ("abc,cd->abd", (2, 3, 4), (4, 5)),
)


@pytest.mark.parametrize(("equation", "left", "right"), CASES)
def test_the_product_inside_tells_the_equation(
    equation: str, left: tuple[int, ...], right: tuple[int, ...], tmp_path: Path
) -> None:
    a, b = torch.randn(left), torch.randn(right)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        wanted = torch.einsum(equation, a, b)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    (op,) = (op for op in build_plan(read_trace(path), select="all").ops if op.name == "aten::einsum")
    (guessed,) = (arg.value for arg in op.args if arg.name == "equation")
    assert sorted(torch.einsum(str(guessed), a, b).shape) == sorted(wanted.shape)


@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize(
    ("equation", "sizes"),
    [
        ("...ij,jk->...ik", ((3, 4, 5), (5, 2))),
        ("ii->i", ((6, 6),)),
        ("ii->", ((6, 6),)),
        ("ijk->ik", ((4, 5, 6),)),
        ("btl,cl->bc", ((3, 2, 7), (4, 7))),
        ("pgi,gij,pgj->pg", ((9, 8, 4), (8, 4, 5), (9, 8, 5))),
        ("bts,bcs->bct", ((2, 8, 8), (2, 4, 8))),
        ("bti,btj,btk->btijk", ((2, 8, 4), (2, 8, 5), (2, 8, 6))),
        ("ijk,kjl,il->", ((4, 5, 6), (6, 5, 7), (4, 7))),
        ("iij,jk->ik", ((4, 4, 5), (5, 6))),
    ],
)
def test_the_permutations_inside_are_the_equation(
    equation: str, sizes: tuple[tuple[int, ...], ...], numbers: bool, tmp_path: Path
) -> None:
    """Of any number of operands, with sums before products, repeated labels and dots; also from sizes alone."""
    operands = [torch.randn(size) for size in sizes]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        wanted = torch.einsum(equation, *operands)
        wanted.neg()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    if not numbers:
        trace = json.loads(path.read_text())
        for event in trace["traceEvents"]:
            event.get("args", {}).pop("Concrete Inputs", None)
            event.get("args", {}).pop("Input Strides", None)
        path.write_text(json.dumps(trace))
    (op,) = (op for op in build_plan(read_trace(path), select="all").ops if op.name == "aten::einsum")
    (guessed,) = (arg.value for arg in op.args if arg.name == "equation")
    torch.testing.assert_close(torch.einsum(str(guessed), *operands), wanted)
