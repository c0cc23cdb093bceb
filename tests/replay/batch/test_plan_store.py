"""Plans of a batch's files in the user's cache: given back as they were, not found when anything about them changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opreplay.replay.batch.merge import TracePlan
from opreplay.replay.batch.plan_store import PlanStore
from opreplay.replay.batch.stamps import stamps_of
from opreplay.replay.host import kept
from opreplay.replay.ir.model import Recorded, RecordedKernel, ReplayArg, ReplayOp, ReplayPlan
from opreplay.traces.model import TensorMeta


def op_of(size: int, count: int) -> ReplayOp:
    recorded = Recorded(
        host_us_total=1.5 * count,
        host_us_median=1.5,
        device_us_total=0.5,
        device_us_median=0.5,
        kernels=(RecordedKernel(name=f"k{count}", count=count, total_us=0.5),),
        children=("aten::empty",),
    )
    meta = TensorMeta(shape=(size, 4), dtype="float32")
    args = (ReplayArg(name="self", type="Tensor", tensors=(meta,)),)
    return ReplayOp(
        id=f"{size:012x}", name="aten::relu", count=count, recorded=recorded, args=args, overload="", resolved_by="jit"
    )


def trace_of(path: Path, sizes: list[int], rank: int = 0) -> TracePlan:
    """A planned file of these sizes of ops, called as often as the rank says and once more."""
    path.write_text(f"{path.name} {sizes}")
    ops = tuple(op_of(size, rank + 1) for size in dict.fromkeys(sizes))
    plan = ReplayPlan(source=path.name, device_us_total=3.0, host_us_total=9.0, ops=ops)
    sources = stamps_of([str(path)])
    assert sources is not None
    return TracePlan(path=str(path), plan=plan, rank=rank, world_size=8, sources=sources, notes=("a note",))


def kept_in(traces: list[TracePlan], settings: str = "how") -> list[TracePlan]:
    """Return those of the plans that a new store finds."""
    store = PlanStore(settings)
    return [plan for trace in traces if (plan := store.load(trace.path, [trace.path])) is not None]


@pytest.fixture
def traces(tmp_path: Path) -> list[TracePlan]:
    traces = [trace_of(tmp_path / f"rank{n}.json", [n + 1, 9], n) for n in range(3)]
    store = PlanStore("how")
    for trace in traces:
        store.add(trace)
    return traces


def test_plans_are_given_back_as_they_were(traces: list[TracePlan]) -> None:
    assert kept_in(traces) == traces


def test_a_trace_that_changed_is_not_found(traces: list[TracePlan], tmp_path: Path) -> None:
    path = Path(traces[1].path)
    status = path.stat()
    path.write_text(path.read_text().replace("9", "8"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert kept_in(traces) == [traces[0], traces[2]]
    Path(traces[0].path).unlink()
    assert kept_in(traces) == [traces[2]]
    other = tmp_path / "kernel_details.csv"
    other.write_text("")
    assert PlanStore("how").load(traces[2].path, [traces[2].path, str(other)]) is None


def test_other_settings_find_nothing(traces: list[TracePlan]) -> None:
    assert kept_in(traces, "otherwise") == []
    assert kept_in(traces) == traces


def test_damaged_plans_are_not_found(traces: list[TracePlan]) -> None:
    folder = kept.folder()
    assert folder is not None
    for path in folder.iterdir():
        body = bytearray(path.read_bytes())
        body[len(body) // 2] ^= 1
        path.write_bytes(bytes(body))
    assert kept_in(traces) == []


def test_a_plan_of_files_that_changed_meanwhile_is_not_kept(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "a.json", [1])
    PlanStore("how").add(TracePlan(path=trace.path, plan=trace.plan))
    assert kept_in([trace]) == []


def test_undoing_forgets_what_was_added_and_names_it_where_others_were_found(
    traces: list[TracePlan], tmp_path: Path
) -> None:
    new = trace_of(tmp_path / "new.json", [5])
    store = PlanStore("how")
    store.add(new)
    assert store.undo() == []
    assert kept_in([*traces, new]) == traces
    store = PlanStore("how")
    assert store.load(traces[0].path, [traces[0].path]) == traces[0]
    store.add(new)
    assert store.undo() == [new.path]
    assert kept_in([*traces, new]) == traces
