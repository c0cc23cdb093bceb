"""Merged files: device time goes to ops of its own process or to none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opreplay.traces import Trace, read_trace, summarize
from opreplay.traces.errors import UsageError
from opreplay.traces.processes.select import busiest_process, of_process, split_processes
from tests.traces.events import DIMS, document, flow, kernel, launch, note, op, write

CASES = Path(__file__).parents[1] / "cases"
Event = dict[str, Any]
Style = Callable[[Event, int, bool], None]


def profile(rank: int, *, shift: float, delay: float = 12, calls: int = 6, first_id: int = 0) -> list[Event]:
    """One process: `calls` products and their kernels, all named after the rank."""
    events: list[Event] = []
    for call in range(calls):
        at, ident = 100 * call + shift, first_id + call + 1
        correlation = {"External id": ident, "correlation": ident}
        events += [
            op(f"aten::rank{rank}", at, 30, ident, **DIMS),
            launch(at + 5, ident),
            kernel(f"rank{rank}", at + 5 + delay, 20 + rank, **correlation),
        ]
    return [note(f"step of rank {rank}", shift, 50), *events]


def merged(style: Style, *profiles: list[Event]) -> list[Event]:
    """One file after the other, process ids as the style says."""
    out: list[Event] = []
    for rank, events in enumerate(profiles):
        for event in events:
            style(event, rank, event["cat"] in ("kernel", "gpu_memcpy"))
            out.append(event)
    return out


def prefix(event: Event, rank: int, on_device: bool) -> None:
    event["pid"] = f"[TP{rank:02d}] {event['pid']}"


def offset(event: Event, rank: int, on_device: bool) -> None:
    event["pid"] += 1_000_000 * rank


def by_nature(event: Event, rank: int, on_device: bool) -> None:
    event["pid"] += rank
    if on_device:
        event["args"]["device"] = rank


def same_device(event: Event, rank: int, on_device: bool) -> None:
    event["pid"] += 0 if on_device else rank


def same_process(event: Event, rank: int, on_device: bool) -> None:
    event["tid"] += 1_000_000 * rank


def only_devices(event: Event, rank: int, on_device: bool) -> None:
    if on_device:
        by_nature(event, rank, on_device)


def read(folder: Path, events: list[Event], **options: Any) -> Trace:
    return read_trace(write(folder, document(events)), **options)


def owners(trace: Trace) -> list[tuple[str, str | None]]:
    """(kernel, op that owns it) in file order."""
    names = [trace.kernel_names[int(name)] for name in trace.kernels.name]
    rows = trace.kernels.owner.tolist()
    ops = [None if row < 0 else trace.signatures[int(trace.ops.signature[row])].name for row in rows]
    return list(zip(names, ops, strict=True))


def right(pairs: list[tuple[str, str | None]]) -> int:
    """How many kernels have the op of their rank; fails for one with another rank's."""
    assert all(op is None or op.endswith(name) for name, op in pairs), pairs
    return sum(op is not None for _, op in pairs)


@pytest.mark.parametrize("shift", [0, 3, 30, 3000])
@pytest.mark.parametrize("style", [prefix, offset, by_nature, same_device, same_process])
def test_kernels_are_owned_by_ops_of_their_own_process(tmp_path: Path, style: Style, shift: float) -> None:
    trace = read(tmp_path, merged(style, profile(0, shift=0), profile(1, shift=shift), profile(2, shift=2 * shift)))
    assert right(owners(trace)) == 18
    assert trace.graphs is None
    assert trace.info.merged is not None
    assert [(p.ops, p.device_events) for p in trace.info.merged.processes] == [(6, 6)] * 3
    assert len(np.unique(trace.kernels.device)) == 3


@pytest.mark.parametrize("style", [prefix, offset, by_nature, same_device])
def test_files_sorted_by_time(tmp_path: Path, style: Style) -> None:
    events = merged(style, profile(0, shift=0), profile(1, shift=30))
    trace = read(tmp_path, sorted(events, key=lambda event: float(event["ts"])))
    assert right(owners(trace)) == 12


@pytest.mark.parametrize("style", [prefix, by_nature, same_device])
def test_ids_that_overlap_in_part(tmp_path: Path, style: Style) -> None:
    events = merged(style, profile(0, shift=0), profile(1, shift=30, first_id=3))
    assert right(owners(read(tmp_path, events))) == 12


def test_work_launched_before_has_no_op_of_another_process(tmp_path: Path) -> None:
    """Rank 1's first kernel has an id that only rank 0 launched in the recording."""
    late = [event for event in profile(1, shift=0, first_id=5) if 6 not in event["args"].values()]
    early = kernel("rank1", -50, 20, **{"External id": 6, "correlation": 6})
    trace = read(tmp_path, merged(prefix, profile(0, shift=0), [*late, early]))
    pairs = owners(trace)
    assert right(pairs) == len(pairs) - 1
    assert pairs[-1] == ("rank1", None)


def test_work_that_either_process_may_have_launched_before(tmp_path: Path) -> None:
    """One device, ids that do not repeat: the kernel of rank 1's past has an id that rank 0 launched, too."""
    events = [*profile(0, shift=0, calls=20), *profile(1, shift=30, calls=20, first_id=100)]
    for number, event in enumerate(events):
        event["pid"] += 0 if event["cat"] == "kernel" else number // (len(events) // 2)
    early = kernel("rank1", -50, 20, **{"External id": 6, "correlation": 6})
    pairs = owners(read(tmp_path, [*events, early]))
    assert right(pairs) >= 39
    assert pairs[-1] == ("rank1", None)


def test_kernels_long_before_their_launch_are_of_another_process(tmp_path: Path) -> None:
    events = [*profile(0, shift=100_000, calls=20), kernel("rank1", 0, 20, **{"External id": 3, "correlation": 3})]
    trace = read(tmp_path, events)
    assert owners(trace)[-1] == ("rank1", None)
    assert right(owners(trace)) == 20
    links = trace.info.links
    assert (links.displaced, links.displaced_device_ns, links.displaced_by_ns) == (1, 20_000, 100_205_000)
    assert (links.repeated_ids, links.before_launch, links.launched_before) == (0, 0, 0)


def test_nothing_tells_the_processes_apart(tmp_path: Path) -> None:
    """Sorted by time, on one device, launched at the same time: no owner, and it is counted."""
    events = merged(same_device, profile(0, shift=0), profile(1, shift=0))
    trace = read(tmp_path, sorted(events, key=lambda event: float(event["ts"])))
    assert right(owners(trace)) == 0
    assert trace.info.merged is not None
    assert (trace.info.merged.uncertain_events, trace.info.merged.uncertain_us) == (12, 246.0)


def test_a_device_far_behind_is_not_guessed_by_time(tmp_path: Path) -> None:
    """Every kernel starts after both launches of its id, in a file sorted by time."""
    profiles = profile(0, shift=0, delay=400), profile(1, shift=30, delay=380)
    events = sorted(merged(same_device, *profiles), key=lambda event: float(event["ts"]))
    assert right(owners(read(tmp_path, events))) == 0


@pytest.mark.parametrize(("shift", "certain"), [(0, 0), (3000, 12)])
def test_one_process_and_thread_id_in_two_containers(tmp_path: Path, shift: float, certain: int) -> None:
    trace = read(tmp_path, merged(only_devices, profile(0, shift=0), profile(1, shift=shift)))
    assert right(owners(trace)) == certain
    assert trace.info.links.repeated_ids == 12 - certain


def test_clocks_that_differ_give_no_owner_by_time(tmp_path: Path) -> None:
    """All kernels seem to start before their launch: those of the later process fit the launches of the other one."""
    profiles = profile(0, shift=0, delay=-60), profile(1, shift=70, delay=-60)
    events = sorted(merged(same_device, *profiles), key=lambda event: float(event["ts"]))
    assert right(owners(read(tmp_path, events))) == 0


def test_arrows_with_ids_of_their_own_tell_the_device(tmp_path: Path) -> None:
    profiles = [profile(rank, shift=0) for rank in (0, 1)]
    for rank, events in enumerate(profiles):
        for event in [event for event in events if event["cat"] == "kernel"]:
            ident = event["args"]["correlation"] + 100 * rank
            events += [flow("s", ident, event["ts"] - 12), flow("f", ident, event["ts"], pid=0, tid=20)]
    events = [event for pair in zip(*profiles, strict=True) for event in pair]
    for number, event in enumerate(events):
        event["pid"] += number % 2
        if event["cat"] == "kernel":
            event["args"]["device"] = number % 2
    assert right(owners(read(tmp_path, events))) == 12


def test_activity_is_kept_apart(tmp_path: Path) -> None:
    trace = read(tmp_path, merged(prefix, profile(0, shift=0), profile(1, shift=0)), activity=True)
    assert trace.activity is not None
    ids = trace.activity.calls.correlation
    assert len(np.unique(ids)) == len(ids) == 12
    assert set(trace.activity.correlation.tolist()) == set(ids.tolist())


def test_graphs_are_launched_by_calls_of_that_name(tmp_path: Path) -> None:
    graph = {**launch(10, 3), "name": "cudaGraphLaunch"}
    kernels = [kernel("k", 20, 5, correlation=3), kernel("k", 30, 5, correlation=3)]
    assert read(tmp_path, [op("aten::mm", 0, 30, 1, **DIMS), launch(10, 3), *kernels]).graphs is None
    trace = read(tmp_path, [op("aten::mm", 0, 30, 1, **DIMS), graph, *kernels])
    assert trace.graphs is not None
    assert trace.graphs.kernels.tolist() == [0, 1]


def test_a_runtime_that_repeats_ids_in_one_process(tmp_path: Path) -> None:
    """As MTIA's: launches of two threads have the same ids, ops have not."""
    events = [
        event
        for thread in (1, 2)
        for call in range(4)
        for event in (
            op(f"aten::op{thread}", 100 * call, 30, 10 * thread + call, tid=thread, **DIMS),
            launch(100 * call + 10 + thread, call + 1, tid=thread),
            kernel(f"k{thread}", 100 * call + 50, 5, **{"External id": 10 * thread + call, "correlation": call + 1}),
        )
    ]
    trace = read(tmp_path, events)
    assert trace.info.merged is None
    assert [op for _, op in owners(trace)] == [f"aten::op{thread}" for thread in (1, 2) for _ in range(4)]


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_call_of_the_driver_inside_one_of_the_runtime_has_the_same_id(tmp_path: Path, with_ids: bool) -> None:
    """Both are of one launch, not of two processes on one thread."""
    events = [
        event
        for call in range(1, 9)
        for event in (
            op(f"aten::op{call}", 100 * call, 30, call, **DIMS),
            launch(100 * call + 10, call),
            launch(100 * call + 10.5, call, cat="cuda_driver"),
            kernel(f"k{call}", 100 * call + 50, 5, correlation=call, **({"External id": call} if with_ids else {})),
        )
    ]
    trace = read(tmp_path, events)
    assert trace.info.merged is None
    assert (trace.info.links.unowned, trace.info.links.repeated_ids) == (0, 0)
    assert [name for _, name in owners(trace)] == [f"aten::op{call}" for call in range(1, 9)]


def test_one_process_stays_as_it_is(tmp_path: Path) -> None:
    trace = read(tmp_path, profile(0, shift=0))
    assert trace.info.merged is None
    assert summarize(trace).merged is None
    assert split_processes(trace) == []
    with pytest.raises(UsageError):
        of_process(trace, "7")


def test_one_process_of_a_merged_file_is_what_it_recorded(tmp_path: Path) -> None:
    events = merged(prefix, profile(0, shift=0), profile(1, shift=30, calls=4))
    trace = read(tmp_path, events, activity=True)
    assert trace.info.merged is not None
    assert busiest_process(trace.info.merged) == "[TP00] 7"
    part = of_process(trace, "TP01")
    assert part is not trace
    alone = read(tmp_path, profile(1, shift=30, calls=4), activity=True)
    for table in ("ops", "kernels"):
        for column in ("start_ns", "dur_ns"):
            assert getattr(getattr(part, table), column).tolist() == getattr(getattr(alone, table), column).tolist()
    assert part.kernels.owner.tolist() == alone.kernels.owner.tolist()
    assert part.signatures == alone.signatures
    assert [n.name for n in part.annotations] == ["step of rank 1"]
    assert part.activity is not None
    assert alone.activity is not None
    assert part.activity.calls.start_ns.tolist() == alone.activity.calls.start_ns.tolist()
    assert [name for name, _ in split_processes(trace)] == ["[TP00] 7", "[TP01] 7"]
    assert of_process(trace, "[TP00] 7").info.process == "[TP00] 7"
    assert len(of_process(trace, "TP00").ops) == 6
    for name in ("TP", "TP07", "0"):
        with pytest.raises(UsageError):
            of_process(trace, name)


@pytest.mark.parametrize(
    ("name", "times"), [("merged_pid_prefix", [10.0, 30.0]), ("merged_two_processes", [30.0, 120.0])]
)
def test_cases(name: str, times: list[float]) -> None:
    trace = read_trace(CASES / f"{name}.json")
    assert trace.info.merged is not None
    assert [process.device_us for process in trace.info.merged.processes] == times
    parts = [part for _, part in split_processes(trace)]
    assert [part.signatures[0].dims[0] for part in parts if part.signatures[0].dims] == [(64, 64), (128, 128)]
    assert [int(part.kernels.dur_ns[part.kernels.owner >= 0].sum()) / 1e3 for part in parts] == times
    assert trace.graphs is None
