"""Equations of recorded einsums: the guess does the same product, though its letters and their order may differ."""

from __future__ import annotations

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
