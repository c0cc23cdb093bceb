"""Lengths and indices follow the distribution that the options name, and stay in range."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.initializers.base import InitContext, InitializerError
from opreplay.initializers.draws.distributions import LengthDistribution, draw_indices, length_distribution
from opreplay.replay.ops.inputs import built_in
from opreplay.traces.errors import UsageError


def context(
    op: str = "aten::embedding", args: dict[str, Any] | None = None, seed: int = 0, **options: Any
) -> InitContext:
    generator = torch.Generator().manual_seed(seed)
    return InitContext(op=op, args=args or {}, generator=generator, seed=seed, options=options)


def saved(path: Path, value: object) -> str:
    path.write_text(json.dumps(value))
    return str(path)


@given(
    st.integers(1, 1 << 40),
    st.integers(0, 300),
    st.sampled_from([0.0, 0.5, 1.0, 1.2, 4.0]),
    st.sampled_from(["int32", "int64"]),
)
@settings(max_examples=60, deadline=None)
def test_indices_stay_in_range(bound: int, count: int, exponent: float, dtype: str) -> None:
    if dtype == "int32":
        bound = min(bound, 2**31 - 1)
    tensor = torch.full((count,), -1, dtype=getattr(torch, dtype))
    draw_indices(context(distribution="zipf", exponent=exponent), tensor, bound)
    if count:
        assert 0 <= int(tensor.min()) <= int(tensor.max()) < bound
    if count > 1 and bound > 1:
        assert int(tensor.min()) < int(tensor.max())


def test_zipf_has_popular_indices_all_over_the_range() -> None:
    tensor = torch.empty(200_000, dtype=torch.int64)
    how = draw_indices(context(distribution="zipf", exponent=1.0), tensor, 50_000)
    counts = torch.bincount(tensor, minlength=50_000)
    top = counts.topk(16)
    assert how == "Zipf, exponent 1, in [0, 50000)"
    assert int(top.values[0]) > 5 * int(top.values[-1])
    assert top.values.sum() > 0.2 * len(tensor)
    assert top.indices.max() - top.indices.min() > 25_000
    even = torch.empty_like(tensor)
    draw_indices(context(), even, 50_000)
    assert int(torch.bincount(even).max()) < 30


def test_a_histogram_of_indices_is_spread_over_the_range(tmp_path: Path) -> None:
    tensor = torch.empty(40_000, dtype=torch.int64)
    file = saved(tmp_path / "h.json", [3, 0, 1, 0])
    draw_indices(context(distribution="histogram", histogram=file), tensor, 1000)
    parts = torch.bincount(tensor // 250, minlength=4)[:4] / len(tensor)
    assert torch.allclose(parts, torch.tensor([0.75, 0.0, 0.25, 0.0]), atol=0.02)


@pytest.mark.parametrize("op", ["aten::embedding", "aten::embedding_bag", "aten::index_put_", "aten::scatter_add_"])
def test_rules_take_the_distribution(op: str) -> None:
    n = 20_000
    args = {
        "aten::embedding": {"weight": torch.empty(1000, 1), "indices": torch.zeros(n, dtype=torch.int64)},
        "aten::embedding_bag": {"weight": torch.empty(1000, 1), "indices": torch.zeros(n, dtype=torch.int64)},
        "aten::index_put_": {"self": torch.empty(1000, 1), "indices": [torch.zeros(n, dtype=torch.int64)]},
        "aten::scatter_add_": {"self": torch.empty(1000), "dim": 0, "index": torch.zeros(n, dtype=torch.int64)},
    }[op]
    registry = built_in()
    rule = registry.find(context(op, args))
    assert rule is not None
    registry.configure([f"{rule.name}.distribution=zipf", f"{rule.name}.exponent=1.5"])
    report = registry.apply(rule, context(op, args))
    tensor = next(t[0] if isinstance(t, list) else t for n, t in args.items() if n in ("indices", "index"))
    assert int(torch.bincount(tensor).max()) > n / 5
    assert any("Zipf, exponent 1.5" in what for what in report.assumed.values())
    with pytest.raises(UsageError, match=r"at least 0"):
        built_in().configure([f"{rule.name}.exponent=-1"])


def test_lengths_by_distribution(tmp_path: Path) -> None:
    def draw(kind: str, count: int = 4000) -> torch.Tensor:
        file = saved(tmp_path / "l.json", [[10, 1], [200, 3], [9000, 1]])
        found = length_distribution(context(distribution=kind, histogram=file))
        return found.draw(count, 1000, torch.Generator().manual_seed(0))

    assert draw("max").unique().tolist() == [1000]
    assert int(draw("uniform").min()) >= 1
    assert abs(float(draw("uniform").double().mean()) - 500) < 25
    logs = draw("lognormal").double().log()
    assert float(logs.std()) == pytest.approx(1.0, abs=0.2)
    measured = draw("histogram")
    assert measured.unique().tolist() == [10, 200, 1000], "9000 is cut to the longest that fits"
    assert float((measured == 200).double().mean()) == pytest.approx(0.6, abs=0.05)
    assert len(LengthDistribution(kind="histogram", lengths=(1,), counts=(1.0,)).draw(0, 5, torch.Generator())) == 0


@pytest.mark.parametrize("value", [[], [1, 2], [[1, -1]], [["a", 1]], [[1, 0]], {"a": 1}, [[1, 2, 3]], [[1.5, 2]]])
def test_unfit_histograms_of_lengths(tmp_path: Path, value: object) -> None:
    file = saved(tmp_path / "h.json", value)
    with pytest.raises(InitializerError, match=r"list of \[length, count\]|zero"):
        length_distribution(context(distribution="histogram", histogram=file))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for file, said in (
        ("", "needs a file"),
        (str(tmp_path / "none"), "cannot read"),
        (saved(tmp_path / "big", "x" * (2 << 20)), "over the limit"),
    ):
        with pytest.raises(InitializerError, match=said):
            length_distribution(context(distribution="histogram", histogram=file))
    zeros = context(distribution="histogram", histogram=saved(tmp_path / "h", [0, 0]))
    with pytest.raises(InitializerError, match="list of counts"):
        draw_indices(zeros, torch.zeros(3, dtype=torch.int64), 9)
