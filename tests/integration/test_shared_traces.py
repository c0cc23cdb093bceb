"""Counts on every public trace equal those counted with the standard library; owners equal the known numbers."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from opreplay.traces import TraceSummary, read_trace, summarize

pytestmark = pytest.mark.slow

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
LINES = (SHARED / "expected.csv").read_text().splitlines() if (SHARED / "expected.csv").exists() else []
EXPECTED = list(csv.DictReader(LINES))
OWNERS = {
    "h100_bert_small": 16,
    "h100_qwen1.5_0.5b": 35,
    "h100_falconsai_vit": 13,
    "h100_timesformer": 44,
    "h100_owlv2_large": 96,
    "mi300_resnet_ddp_act_checkpoint": 107,
    "mi300_normalization": 32,
    "mi300_vllm_piecewise_capture": 5,
    "mi300_vllm_piecewise_exec": 13,
    "mi300_sglang_prefilldecode": 35,
}
BY_CONTAINMENT = ("nvidia_trace_diff_control", "param_linear_kineto", "param_resnet_kineto", "nvidia_sampled_rank0")


def _summary(folder: Path, name: str) -> TraceSummary:
    return summarize(read_trace(folder / f"{name}.json.gz"))


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: row["file"].removesuffix(".json.gz"))
def test_counts(shared_traces: Path, row: dict[str, str]) -> None:
    name = row["file"].removesuffix(".json.gz")
    summary = _summary(shared_traces, name)
    counted = {key: int(value) for key, value in row.items() if key not in ("file", "raw_bytes")}
    assert {key: getattr(summary, key) for key in counted} == counted
    assert summary.bytes_read == int(row["raw_bytes"])
    assert summary.losses == {}
    assert summary.repairs == {}
    if name in OWNERS:
        assert summary.owner_ops == OWNERS[name]
    assert summary.links.external_id_is_correlation == (name in BY_CONTAINMENT or summary.era in ("B", "C")) or (
        summary.kernels == 0
    )


@pytest.mark.parametrize(("name", "linked", "arrows"), [("npu_alexnet", 206, 210), ("npu_timeline", 274, 274)])
def test_npu_rows_are_linked_by_flows(shared_traces: Path, name: str, linked: int, arrows: int) -> None:
    summary = _summary(shared_traces, f"{name}_trace_view")
    assert (summary.links.by_flow, summary.dialect, summary.vendor) == (linked, "ascend", "ascend")
    assert arrows - 4 <= linked <= summary.device_events


def test_containment_agrees_with_external_ids(shared_traces: Path) -> None:
    """In newer traces both kinds of evidence exist and must say the same."""
    from opreplay.traces.dialects import trace_events
    from opreplay.traces.links.device_time import LinkInput, link

    seen: list[LinkInput] = []
    original = trace_events.link
    try:
        trace_events.link = lambda data: seen.append(data) or original(data)  # type: ignore[assignment, func-returns-value]
        trace = read_trace(shared_traces / "mi300_normalization.json.gz")
    finally:
        trace_events.link = original
    data = seen[0]
    data.kernel_ext = np.full_like(data.kernel_ext, -1)
    owner, stats = link(data)
    assert stats.by_containment == len(owner)
    names = [trace.signatures[i].name for i in trace.ops.signature]
    # two of the ops launch inside a child that the profiler gave the same External id
    different = [(names[a], names[b]) for a, b in zip(owner, trace.kernels.owner, strict=True) if a != b]
    assert len(different) <= 0.02 * len(owner), different
