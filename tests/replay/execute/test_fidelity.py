"""What ran against what was recorded: kernels, child ops, times."""

from __future__ import annotations

import msgspec
import pytest

from opreplay.replay.execute.attempt import attempt, compare_kernels
from opreplay.replay.execute.executors.base import Profile
from opreplay.replay.execute.executors.fake import FakeExecutor
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.model import Recorded, RecordedKernel, ReplayOp
from opreplay.replay.report.run.facts import fidelity_cell, fidelity_notes
from opreplay.replay.results.records import OpResult


def kernel(name: str, count: int = 1, total_us: float = 10.0) -> RecordedKernel:
    return RecordedKernel(name=name, count=count, total_us=total_us)


def op(*kernels: RecordedKernel, children: tuple[str, ...] | None = None, count: int = 4) -> ReplayOp:
    recorded = Recorded(
        host_us_total=80.0,
        host_us_median=20.0,
        device_us_total=sum(k.total_us for k in kernels),
        kernels=kernels,
        children=children,
    )
    return ReplayOp(id="a" * 12, name="fake::10us", count=count, recorded=recorded)


def test_the_same_kernels_match_and_times_are_of_kernels() -> None:
    found = compare_kernels(
        op(kernel("gemm", 4, 40.0), kernel("copy", 8, 16.0)),
        Profile(kernels=(kernel("gemm", 1, 20.0), kernel("copy", 2, 8.0)), has_device=True),
        99.0,
    )
    assert (found.kernels, found.missing, found.extra) == ("match", (), ())
    assert found.time_ratio == pytest.approx(28.0 / 14.0)


@pytest.mark.parametrize(
    ("here", "missing", "extra"),
    [(("other",), ("gemm",), ("other",)), ((), ("gemm",), ()), (("gemm", "copy"), (), ("copy",))],
)
def test_other_kernels_differ(here: tuple[str, ...], missing: tuple[str, ...], extra: tuple[str, ...]) -> None:
    found = compare_kernels(op(kernel("gemm", 4)), Profile(kernels=tuple(map(kernel, here)), has_device=True), 1.0)
    assert (found.kernels, found.missing, found.extra) == ("differ", missing, extra)


def test_another_number_of_launches_differs() -> None:
    found = compare_kernels(op(kernel("gemm", 8)), Profile(kernels=(kernel("gemm"),), has_device=True), 1.0)
    assert found.kernels == "differ"


def test_kernels_of_another_device_are_not_compared() -> None:
    found = compare_kernels(op(kernel("gemm")), Profile(children=("aten::mm",)), 1.0)
    assert (found.kernels, found.children, found.time_ratio) == ("other device", "not recorded", None)


def test_child_ops_and_host_times_of_a_trace_without_device() -> None:
    same = compare_kernels(op(children=("aten::t", "aten::addmm")), Profile(children=("aten::t", "aten::addmm")), 30.0)
    assert (same.kernels, same.children, same.time_ratio) == ("not recorded", "match", pytest.approx(1.5))
    other = compare_kernels(op(children=("aten::t", "aten::addmm")), Profile(children=("aten::addmm", "aten::x")), 30.0)
    assert (other.children, other.missing, other.extra) == ("differ", ("aten::t",), ("aten::x",))
    order = compare_kernels(op(children=("aten::t", "aten::addmm")), Profile(children=("aten::addmm", "aten::t")), 30.0)
    assert (order.children, order.missing) == ("differ", ())


def test_only_what_was_asked_for_is_profiled() -> None:
    made = op(children=("fake::child",))
    assert attempt(FakeExecutor(), made, seed=0, options=MeasureOptions()).fidelity is None
    found = attempt(FakeExecutor(), made, seed=0, options=MeasureOptions(check_kernels=True)).fidelity
    assert found is not None
    assert found.children == "match"
    assert found.time_ratio == pytest.approx(0.5, rel=0.05)


def test_a_profiler_that_fails_costs_the_comparison_only() -> None:
    class Broken(FakeExecutor):
        def profile(self, prepared: object, op: ReplayOp) -> Profile:
            raise RuntimeError("another profiler is running")

    outcome = attempt(Broken(), op(), seed=0, options=MeasureOptions(check_kernels=True))
    assert outcome.status == "replayed"
    assert outcome.fidelity is not None
    assert "another profiler" in outcome.fidelity.note


def test_reports_say_how_faithful_the_replay_was() -> None:
    same = compare_kernels(op(children=("aten::t",)), Profile(children=("aten::t",)), 30.0)
    other = compare_kernels(op(children=("aten::t",)), Profile(children=("aten::x",)), 10.0)
    base = OpResult(id="a" * 12, name="aten::linear", count=1, status="replayed")
    results = [msgspec.structs.replace(base, fidelity=f) for f in (same, other, None)]
    notes = fidelity_notes(results)
    assert notes[0].startswith("fidelity of 2 ops: child ops: 1 match, 1 differ; times 1.00× the recorded times")
    assert "aten::linear (-aten::t, +aten::x)" in notes[1]
    assert fidelity_cell(results[0]) == "child ops match, time 1.5×"
    assert fidelity_cell(results[2]) == ""
    assert fidelity_notes(results[2:]) == []
