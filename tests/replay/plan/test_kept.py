"""Plans kept between runs: the same plan, and a new one wherever anything that decides on it has changed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from opreplay.replay import plugins
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.job.job import Job
from opreplay.replay.job.settings import Settings
from opreplay.replay.plan import kept
from opreplay.replay.plan.inputs import plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.replay.resolve.meta import forked
from opreplay.traces import Trace, read_trace
from opreplay.traces.samples import sample_path

ALL = Selection(select="owner", include=(), exclude=(), top=None, min_share=None, allow_imports={})


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(sample_path("moe_block"))


def planned(trace: Trace, selection: Selection, *, device: str, in_order: bool = False) -> ReplayPlan:
    """The plan of a job that may keep it."""
    return Job(trace, selection, Settings(device=device, order=in_order, keep=True)).plan


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, trace: Trace) -> list[str]:
    """One entry a plan that was made rather than taken from the cache; they are made once for all tests."""
    calls: list[str] = []

    def counted(self: Job) -> ReplayPlan:
        calls.append(self.settings.device)
        return plan_of(self.read, self.selection, device=self.settings.device, in_order=self.settings.order)

    monkeypatch.setattr(Job, "_planned", counted)
    # Tests before may have lost ops on meta tensors and registered functions; neither lets a plan be kept.
    monkeypatch.setattr(forked, "any_lost", lambda: False)
    monkeypatch.setattr(plugins, "registrations", tuple)
    return calls


def test_the_second_plan_is_the_first_one(made: list[str], trace: Trace) -> None:
    first = planned(trace, ALL, device="cpu", in_order=True)
    assert planned(trace, ALL, device="cpu", in_order=True) == first
    assert made == ["cpu"]


def test_whatever_changes_makes_a_new_plan(made: list[str], trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(trace, ALL, device="cpu")
    later = trace.ops.dur_ns.copy()
    later[0] += 1
    other = msgspec.structs.replace(trace, ops=msgspec.structs.replace(trace.ops, dur_ns=later))
    planned(other, ALL, device="cpu")  # one nanosecond of one op
    planned(trace, msgspec.structs.replace(ALL, top=3), device="cpu")
    planned(trace, ALL, device="cpu", in_order=True)
    assert len(made) == 4
    monkeypatch.setenv("TORCH_SETTING_OF_A_TEST", "1")
    kept._software.cache_clear()
    planned(trace, ALL, device="cpu")
    assert len(made) == 5
    kept._software.cache_clear()


def test_nothing_is_kept_for_imports_and_other_devices(made: list[str], trace: Trace) -> None:
    small = msgspec.structs.replace(ALL, top=1, allow_imports={"mine": "my_package"})
    for _ in range(2):
        planned(trace, small, device="cpu")
        planned(trace, msgspec.structs.replace(ALL, top=1), device="meta")
    assert len(made) == 4


def test_what_a_time_limit_cut_short_is_not_kept(
    made: list[str], trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opreplay.replay.resolve.meta import forked

    monkeypatch.setattr(forked, "any_lost", lambda: True)
    for _ in range(2):
        planned(trace, msgspec.structs.replace(ALL, top=1), device="cpu")
    assert len(made) == 2


def test_a_plan_survives_the_way_to_the_disk(shared_traces: Path) -> None:
    for name in ("h100_bert_small", "mi300_vllm_piecewise_exec"):
        plan = plan_of(read_trace(shared_traces / f"{name}.json.gz"), ALL, device="cpu", in_order=True)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=ReplayPlan) == plan
