"""Several ranks of one job against machines whose rules are known: clocks, waiting, and steps after a change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.ascend import load_device
from opreplay.replay.plan.recorded.groups import signature_id
from opreplay.replay.timeline.changes import Unmatched
from opreplay.replay.timeline.job.study import JobStudy, job_timeline
from opreplay.replay.timeline.measured import MeasuredOps
from opreplay.traces import read_trace
from opreplay.traces.errors import UsageError
from opreplay.traces.samples import sample_path
from tests.replay.timeline.job_machine import Job, data_parallel

pytestmark = pytest.mark.usefixtures("forked_children")


def study(job: Job, folder: Path, **how: Any) -> JobStudy:
    traces = [(rank, read_trace(path, activity=True)) for rank, path in enumerate(job.write(folder))]
    return job_timeline(traces, **how)


def test_recorded_durations_give_the_recorded_step_on_every_rank(tmp_path: Path) -> None:
    found = study(data_parallel({1: 1.5}), tmp_path).timeline
    assert abs(found.structure_error) < 0.002
    assert all(abs(one.structure_error) < 0.005 for one in found.ranks)
    assert found.dropped_collectives == 0
    assert found.edges["collective members"].recorded == 4 * 6
    assert not found.disagreements


def test_the_path_adds_up_to_the_step_if_a_member_begins_late(tmp_path: Path) -> None:
    """Rank 1 begins a collective while its other stream works on, for no recorded reason."""
    job = Job(2)
    for machine in job.ranks:
        machine.begin()
        machine.op("aten::mm", 10.0, ("gemm", 400.0))
    job.all_reduce(300.0)
    for machine in job.ranks:
        machine.op("aten::mm", 10.0, ("gemm", 200.0))
        machine.wait_for(7, 20)
        machine.op("aten::add", 10.0, ("add", 60.0))
        machine.synchronize()
        machine.end()
    (late,) = (event for event in job.ranks[1].events if event["name"].startswith("nccl"))
    late["ts"] += 100.0
    late["dur"] -= 100.0
    found = study(job, tmp_path).timeline
    assert sum(part.us for part in found.critical_path) == pytest.approx(found.retimed_step_us)


def test_who_is_late_and_what_waiting_is(tmp_path: Path) -> None:
    found = study(data_parallel({1: 1.5}), tmp_path).timeline
    assert [one.late for one in found.ranks] == [0, 4, 0]
    assert all(one.transfer_us == pytest.approx(300.0, abs=1.0) for one in found.collectives)
    assert found.ranks[1].waiting_us == pytest.approx(0.0, abs=1.0)
    # Three kernels of 150 µs take half as long again on the late rank. Then the others begin a collective when the one
    # before is done, 300 µs after the late rank began it, which needs 675 µs for the next one.
    assert found.ranks[0].waiting_us == pytest.approx(225.0 + 3 * 375.0, rel=0.01)
    assert found.ranks[1].late_us == pytest.approx(225.0 + 3 * 375.0, rel=0.01)


@pytest.mark.parametrize("numbered", [True, False])
def test_clocks_that_differ_are_put_right(tmp_path: Path, numbered: bool) -> None:
    clocks = {1: 1234.5, 2: -20_000.0}
    found = study(data_parallel({1: 1.5}, clocks_us=clocks, numbered=numbered), tmp_path).timeline
    assert [one.clock.shift_us for one in found.ranks] == pytest.approx([0.0, -1234.5, 20_000.0], abs=0.5)
    assert [one.late for one in found.ranks] == [0, 4, 0]
    assert all(one.transfer_us == pytest.approx(300.0, abs=1.0) for one in found.collectives)
    assert {one.matched_by for one in found.collectives} == {"sequence" if numbered else "order"}
    inferred = found.edges["collective members"].inferred
    assert (inferred == 0) == numbered


@pytest.mark.parametrize(
    ("change", "really"),
    [
        ("gemm=0.5x", {"slow": {0: 0.5, 1: 0.75, 2: 0.5}}),
        ("gemm=2x", {"slow": {0: 2.0, 1: 3.0, 2: 2.0}}),
        ("nccl*=0.1x", {"slow": {1: 1.5}, "transfer_us": 30.0}),
        ("nccl*=4x", {"slow": {1: 1.5}, "transfer_us": 1200.0}),
    ],
)
def test_a_change_gives_the_step_that_the_job_would_take(tmp_path: Path, change: str, really: dict[str, Any]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    foreseen = study(data_parallel({1: 1.5}), tmp_path / "a", what_if=[change]).timeline.what_if[0]
    after = study(data_parallel(**really), tmp_path / "b").timeline
    assert foreseen.step_us == pytest.approx(after.recorded_step_us, rel=0.02)


def test_a_change_of_ranks_has_the_range_of_what_is_not_known(tmp_path: Path) -> None:
    """A rank waits for nothing that is recorded while another one works: what-ifs hold with and without that wait."""
    job = data_parallel({1: 1.5})
    (known,) = study(job, tmp_path, what_if=["gemm=0.5x"]).timeline.what_if
    assert known.low_us == known.high_us == known.step_us
    job = Job(2)
    for _ in range(3):
        for machine, us, wait_us in zip(job.ranks, (200.0, 600.0), (450.0, 0.0), strict=True):
            machine.begin()
            for at in range(12):
                machine.free[7] = machine.free.get(7, 0.0) + (wait_us if at % 3 == 2 else 0.0)
                machine.op("aten::mm", 10.0, ("gemm", us))
        job.all_reduce(100.0)
        for machine in job.ranks:
            machine.synchronize()
            machine.end()
    found = study(job, tmp_path, what_if=["gemm=0"], step=1).timeline.what_if[0]
    assert found.low_us < 0.5 * found.step_us, "without the wait"
    assert found.high_us == found.step_us


def test_without_waiting_is_the_step_of_the_slowest_alone(tmp_path: Path) -> None:
    found = study(data_parallel({1: 1.5}), tmp_path)
    alone = found.graph.steps_us(found.graph.scheduled(held_together=False))
    assert alone[1] == pytest.approx(found.timeline.recorded_step_us, rel=0.01)
    assert alone[0] == pytest.approx(alone[2])
    assert alone[0] < 0.9 * alone[1]


def test_sizes_that_disagree_are_reported(tmp_path: Path) -> None:
    job = Job(2)
    for machine in job.ranks:
        machine.begin()
    job.all_reduce(50.0)
    job.all_reduce(50.0, r1=2000)
    for machine in job.ranks:
        machine.synchronize()
        machine.end()
    found = study(job, tmp_path).timeline
    assert [(one.collective, one.what, one.values) for one in found.disagreements] == [
        (1, "elements in", {"0": "1000", "1": "2000"}),
        (1, "elements out", {"0": "1000", "1": "2000"}),
    ]


def test_some_ranks_of_a_job(tmp_path: Path) -> None:
    paths = data_parallel({1: 1.5}).write(tmp_path)
    found = job_timeline([(rank, read_trace(paths[rank], activity=True)) for rank in (0, 2)]).timeline
    assert {one.missing for one in found.collectives} == {1}
    assert any("2 of 3 ranks were given" in note for note in found.notes)
    # The late one is not there, so its lateness looks like transfer: said, not hidden.
    assert found.collectives[0].transfer_us > 400.0


def test_a_call_that_one_given_rank_lacks_is_no_missing_rank(tmp_path: Path) -> None:
    job = data_parallel()
    events = job.ranks[2].events
    calls = [event for event in events if event["name"] == "ncclDevKernel_AllReduce"]
    for last in (calls[3], calls[7]):  # of each step
        events.remove(last)
    found = study(job, tmp_path).timeline
    assert sorted(one.missing for one in found.collectives) == [0, 0, 0, 1]
    assert not any("ranks were given" in note for note in found.notes)


def test_what_is_refused(tmp_path: Path) -> None:
    trace = read_trace(data_parallel().write(tmp_path)[0], activity=True)
    with pytest.raises(UsageError, match="waits for no other rank"):
        job_timeline([(0, trace)])
    with pytest.raises(UsageError, match="same rank"):
        job_timeline([(0, trace), (0, trace)])


def test_a_change_that_matches_on_no_rank_is_a_line_that_says_so(tmp_path: Path) -> None:
    made = study(data_parallel(), tmp_path, what_if=["nothing_like_it=0"])
    change = (made.timeline if hasattr(made, "timeline") else made).what_if[0]
    assert (change.matched, change.gain_us) == (0, 0.0)
    assert "matches nothing" in change.assumptions[0]


def test_the_command_takes_files_or_a_folder(tmp_path: Path) -> None:
    folder_of_job = tmp_path / "job"
    folder_of_job.mkdir()
    paths = data_parallel({1: 1.5}).write(folder_of_job)
    (folder_of_job / "notes.json").write_text("{}")
    target = tmp_path / "out.json.gz"
    args = ["--ranks", "--format", "json", "--what-if", "gemm=0.5x"]
    folder = CliRunner().invoke(opreplay, ["timeline", str(folder_of_job), *args])
    files = CliRunner().invoke(opreplay, ["timeline", *paths, *args, "--timeline", str(target)])
    assert folder.exit_code == files.exit_code == 0, folder.stderr + files.stderr
    assert "notes.json left out" in folder.stderr
    found = json.loads(files.stdout)
    assert found == json.loads(folder.stdout)
    assert {
        "recorded_step_us",
        "retimed_step_us",
        "structure_error",
        "critical_path",
        "what_if",
        "socs",
    } <= found.keys()
    assert [one["rank"] for one in found["ranks"]] == [0, 1, 2]
    assert target.exists()
    shown = CliRunner().invoke(opreplay, ["timeline", str(folder_of_job), "--ranks"]).stdout
    assert "rank 1: last in 4 collectives" in shown
    assert CliRunner().invoke(opreplay, ["timeline", *paths]).exit_code == 2
    assert CliRunner().invoke(opreplay, ["timeline", paths[0], "--ranks"]).exit_code == 2


def test_ranks_on_the_host_alone() -> None:
    traces = [(rank, read_trace(sample_path(f"ddp_step_rank{rank}"), activity=True)) for rank in (0, 1)]
    found = job_timeline(traces).timeline
    assert abs(found.structure_error) < 0.01
    assert [one.kind for one in found.collectives] == ["all_reduce", "all_reduce"]
    assert [one.elements for one in found.collectives] == [524_800, 527_360]
    # Rank 0 began its step 13 ms later; rank 1 waited for it in both.
    assert [one.late for one in found.ranks] == [2, 0]
    assert found.ranks[1].waiting_us > 20_000.0


def gloo_rank(folder: Path, rank: int, threads: tuple[int, ...], late_us: float, groups: list[list[int]]) -> str:
    """A rank on its host: three steps with one all-reduce each, which gloo ran on these threads."""

    def event(cat: str, name: str, tid: int, ts: float, dur: float, dims: Any = ()) -> dict[str, Any]:
        kind = "TensorList" if name.startswith("c10d::") else "float"
        args = {"Input Dims": dims, "Input type": [kind] * len(dims)} if dims else {}
        return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}

    events: list[dict[str, Any]] = []
    for number, thread in enumerate(threads):
        at = 10_000.0 * number
        events += [
            event("user_annotation", f"ProfilerStep#{number}", 1, at, 9000.0),
            event("cpu_op", "aten::mm", 1, at + 100.0, 1000.0 + late_us, [[64, 64], [64, 64]]),
            event("cpu_op", "c10d::allreduce_", 1, at + 1200.0 + late_us, 20.0, [[[1000]]]),
            event("user_annotation", "gloo:all_reduce", thread, at + 1250.0 + late_us, 4750.0 - late_us, [[1000]]),
            event("cpu_op", "aten::relu_", 1, at + 6100.0, 500.0, [[1000]]),
        ]
    config = [{"pg_name": str(at), "ranks": ranks} for at, ranks in enumerate(groups)]
    info = {"backend": "gloo", "rank": rank, "world_size": 2, "pg_config": config}
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}))
    return str(path)


@pytest.mark.parametrize("groups", [[[0, 1]], [[0, 1], [0], [1]]])
def test_ranks_whose_gloo_threads_change(tmp_path: Path, groups: list[list[int]]) -> None:
    paths = [
        gloo_rank(tmp_path, 0, (2, 2, 3), 0.0, groups),
        gloo_rank(tmp_path, 1, (3, 2, 2), 1500.0, groups),
    ]
    done = CliRunner().invoke(opreplay, ["timeline", *paths, "--ranks", "--step", "1", "--format", "json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(one["late_rank"], one["waiting_us"]) for one in found["collectives"]] == [(1, 1500.0)]
    assert [(one["waiting_us"], one["unmatched"]) for one in found["ranks"]] == [(1500.0, 0), (0.0, 0)]
    assert any("name none" in note for note in found["notes"]) == (len(groups) > 1)


def test_measured_times_of_ranks_on_their_hosts(tmp_path: Path) -> None:
    """As quick on both, the ranks no longer wait; a collective takes its measured transfer."""
    paths = [gloo_rank(tmp_path, rank, (2, 2, 3), 1500.0 * rank, [[0, 1]]) for rank in (0, 1)]
    traces = [(rank, read_trace(path, activity=True)) for rank, path in enumerate(paths)]
    product = next(signature_id(one) for one in traces[0][1].signatures if one.name == "aten::mm")
    work = {("all_reduce", 1000, "float32"): 200.0}
    before = job_timeline(traces, step=1).timeline
    found = job_timeline(traces, step=1, measured=MeasuredOps(us={product: 400.0}, collectives=work)).timeline.measured
    assert found is not None
    assert (found.ops, found.collectives, found.collectives_recorded) == (2, 2, 0)
    assert found.waiting_us == pytest.approx(0.0, abs=1.0)
    assert before.waiting_us == 1500.0
    gone = (1000.0 + 1500.0 - 400.0) + (3250.0 - 200.0)
    assert found.step_us == pytest.approx(before.retimed_step_us - gone, rel=0.01)
    kept = job_timeline(traces, step=1, measured=MeasuredOps(us={product: 400.0})).timeline.measured
    assert kept is not None
    assert (kept.collectives, kept.collectives_recorded) == (0, 2)
    assert any("run --ranks N" in note for note in kept.notes)
    with pytest.raises(Unmatched, match="none of the ops"):
        job_timeline(traces, measured=MeasuredOps(us={}))


@pytest.mark.slow
def test_results_of_a_run_are_put_into_the_ranks(tmp_path: Path) -> None:
    paths = [gloo_rank(tmp_path, rank, (2, 2, 3), 1500.0 * rank, [[0, 1]]) for rank in (0, 1)]
    out, run = tmp_path / "out.jsonl", ["--set", "op_time=2ms", "--set", "threads=1"]
    assert CliRunner().invoke(opreplay, ["run", paths[0], "-o", str(out), *run]).exit_code == 0
    done = CliRunner().invoke(opreplay, ["timeline", *paths, "--ranks", "--measured", str(out), "--format", "json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["measured"]["ops"] == 4
    shown = CliRunner().invoke(opreplay, ["timeline", *paths, "--ranks", "--measured", str(out)]).stdout
    assert "4 calls and 0 collectives as measured" in " ".join(shown.split())


def test_the_head_says_what_gloo_ran_beside_the_calls(tmp_path: Path) -> None:
    path = gloo_rank(tmp_path, 0, (2, 2, 3), 0.0, [[0, 1]])
    shown = CliRunner().invoke(opreplay, ["plan", path, "--ranks", "2"]).stdout
    assert "not included: 14.2 ms of collectives on gloo's own threads" in " ".join(shown.split())


def test_ranks_on_a_simulated_device(tmp_path: Path) -> None:
    """Kernels of no known op keep pace with those that are; a predicted collective is transfer alone."""
    device = load_device("910b3")
    found = study(data_parallel({1: 1.5}), tmp_path, devices=[device], what_if=["gemm=0.5x"]).timeline
    one = found.socs["910b3"]
    assert one.step_us == pytest.approx(max(one.by_rank_us.values()))
    assert one.waiting_us > 0.0
    assert found.what_if[0].socs_us["910b3"] < one.step_us


def test_ranks_on_the_host_are_put_on_a_device_one_at_a_time() -> None:
    traces = [(rank, read_trace(sample_path(f"ddp_step_rank{rank}"), activity=True)) for rank in (0, 1)]
    with pytest.raises(UsageError, match="one at a time"):
        job_timeline(traces, devices=[load_device("910b3")])


def test_two_sampled_ranks_of_many(shared_traces: Path) -> None:
    paths = [shared_traces / f"nvidia_sampled_rank{rank}.json.gz" for rank in (0, 1)]
    found = job_timeline([(rank, read_trace(path, activity=True)) for rank, path in enumerate(paths)]).timeline
    assert abs(found.structure_error) < 0.01
    assert found.world_size == 128
    assert any("2 of 128 ranks" in note for note in found.notes)
    assert all(one.late_rank == 1 for one in found.collectives)
