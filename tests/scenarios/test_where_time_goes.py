"""`inspect --by`: where the time of a trace goes, as a table, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from opreplay.traces.samples import sample_path
from tests.scenarios.conftest import kernel
from tests.scenarios.events import owner

Console = Callable[..., Result]


def test_one_table_in_three_formats(console: Console) -> None:
    trace = sample_path("transformer_infer")
    text = console("inspect", trace, "--by", "op", "--top", 2).stdout
    assert "host time by op and shape" in text
    assert "for more, use --top N" in text
    facts = json.loads(console("inspect", trace, "--by", "op", "--format", "json", "--top", 3).stdout)
    assert len(facts["rows"]) == 3 < facts["all_rows"]
    rows = list(csv.DictReader(io.StringIO(console("inspect", trace, "--by", "op", "--format", "csv").stdout)))
    assert len(rows) == facts["all_rows"]
    assert abs(sum(float(row["share"]) for row in rows) - 1) < 1e-6
    assert rows[0]["name"] == facts["rows"][0]["name"]
    assert "GEMM" in console("inspect", trace, "--by", "category").stdout
    assert "no kernels" in console("inspect", trace, "--by", "kernel").stdout
    assert "with_stack=True" in " ".join(console("inspect", trace, "--by", "module").stdout.split())
    assert console("inspect", trace, "--by", "phase").exit_code == 0


def test_the_first_screen_of_a_cpu_trace_has_its_ops(console: Console) -> None:
    text = console("inspect", sample_path("transformer_infer")).stdout
    assert "Ops by own time on the host" in text
    assert "work" in text


def test_a_rate_above_the_peak_is_marked(console: Console, trace_of: Callable[..., Path]) -> None:
    """34 GB through an H100 in 5 µs are other sizes than those of the work; a product in 20 µs is possible."""
    trace = trace_of(*owner("aten::mul", 1, [[2**33], [2**33]], 5.0), *owner("aten::mm", 2, [[512, 512]] * 2, 20.0))
    told = " ".join(console("inspect", trace, "--by", "op").stdout.split())
    assert "! aten::mul: above the peak" in told


def test_the_recorded_device_can_be_named(console: Console, trace_of: Callable[..., Path]) -> None:
    trace = trace_of(*owner("aten::mm", 1, [[512, 512]] * 2, 20.0), device=None)
    facts = json.loads(console("inspect", trace, "--by", "op", "--format", "json").stdout)
    assert (facts["peak"], facts["rows"][0]["peak_share"]) == (None, None)
    assert "--peak" in console("inspect", trace, "--by", "op").stdout
    facts = json.loads(console("inspect", trace, "--peak", "MI300X", "--format", "json", "--by", "op").stdout)
    assert facts["peak"]["device"] == "MI300X"
    assert 0 < facts["rows"][0]["peak_share"] < 1
    assert "MI300X" in console("inspect", trace, "--peak", "RTX", code=2).stderr


def test_the_roofline_has_a_row_for_each_op_and_shape(console: Console, trace_of: Callable[..., Path]) -> None:
    """Those that lose most time first: a product at 27 % of the peak before a longer one at 95 %."""
    trace = trace_of(
        *owner("aten::mm", 1, [[4096, 4096]] * 2, 146.0),
        *owner("aten::mm", 2, [[2048, 2048]] * 2, 65.0),
        *owner("vllm::unified_attention_with_output", 3, [[64, 32, 64], [64, 8, 64], [64, 8, 64]], 10.0),
    )
    facts = json.loads(console("inspect", trace, "--by", "roofline", "--format", "json").stdout)
    small, attention, large = facts["rows"]
    assert (small["flops"], small["bytes"], small["bound"]) == (2 * 2048**3, 3 * 2 * 2048**2, "compute")
    assert small["lost_us"] == pytest.approx(65.0 - 2 * 2048**3 / 989e6)
    assert large["peak_share"] == pytest.approx(2 * 4096**3 / 146e-6 / 989e12)
    assert (attention["lost_us"], attention["flops"]) == (None, None)
    assert "annotation" in attention["why"]
    assert facts["complete_share"] == pytest.approx(211 / 221)
    same = json.loads(console("inspect", trace, "--by", "op", "--format", "json").stdout)
    assert same == facts


def test_kernels_are_shown_where_ops_own_little(console: Console, trace_of: Callable[..., Path]) -> None:
    alone = kernel("gemm_of_a_graph", 900.0, 90.0, 99)
    trace = trace_of(*owner("aten::mm", 1, [[512, 512]] * 2, 20.0), alone)
    text = console("inspect", trace).stdout
    assert "gemm_of_a_graph" in text
    facts = json.loads(console("inspect", trace, "--format", "json").stdout)
    assert facts["top_kernels"][0]["name"] == "gemm_of_a_graph"
