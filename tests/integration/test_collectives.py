"""`run --ranks` from the outside: collectives of a trace on real process groups, their results, and broken ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from opreplay.replay.execute.messages import RankConfig
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.ranks.crew import local_ranks
from opreplay.replay.results.reading import read_result_file
from opreplay.replay.results.records import OpResult
from tests.collectives import EVERY, collective_event, every_collective
from tests.forked_children import opreplay_here

SCRIPT = Path(sys.executable).parent / "opreplay"
GROUP = range(64)
QUICK = ("--set", "op_time=10ms", "--set", "threads=1")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPT.exists(), reason="opreplay is not installed beside this Python"),
    pytest.mark.skipif(sys.platform != "linux", reason="ranks are looked for in /proc"),
]


def written(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def command(trace: Path, out: Path, *more: str) -> list[str]:
    return [str(SCRIPT), "run", str(trace), "--output", str(out), *QUICK, *more]


def run(trace: Path, out: Path, *more: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = opreplay_here(*command(trace, out, *more)[1:], COLUMNS="200")
    assert done.returncode == code, (done.stdout[-3000:], done.stderr[-3000:])
    return done


def collectives(out: Path) -> list[OpResult]:
    return [result for result in read_result_file(out).results if result.collective is not None]


def test_every_collective_is_replayed_with_right_results(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = run(written(tmp_path / "trace.json", every_collective()), out, "--ranks", "2", "--set", "backend=gloo")
    found = collectives(out)
    assert len(found) == len(EVERY)
    for one in found:
        ran = one.collective.replayed
        assert (one.status, ran.checked, ran.ranks, ran.backend) == ("replayed", "right", 2, "gloo"), one
        assert one.measured_us > 0
        assert ran.transfer_us > 0
        assert ran.wait_us >= 0
    sizes = {(one.name, one.collective.size_bytes) for one in found}
    assert {("c10d::_allgather_base_", 400), ("c10d::alltoall_base_", 120), ("c10d::barrier", 0)} <= sizes
    reduced = next(one.collective for one in found if one.collective.size_bytes == 4000)
    assert reduced.measured.algorithm_gb_s == pytest.approx(4.0 / reduced.measured.time_us)
    assert reduced.measured.bus_gb_s == pytest.approx(reduced.measured.algorithm_gb_s)  # 2(n-1)/n of two ranks
    functional = next(one.collective.replayed for one in found if one.name == "_c10d_functional::all_reduce")
    assert functional.issue_us > 0
    assert f"replayed {len(EVERY)} of {len(EVERY)} ops" in done.stdout
    assert "busbw" in done.stdout


def test_a_large_group_is_mapped_and_the_row_says_so(tmp_path: Path) -> None:
    trace = written(
        tmp_path / "trace.json",
        [
            *collective_event("c10d::allreduce_", 0, collective="allreduce", elements=640, group=GROUP),
            *collective_event(
                "c10d::_allgather_base_", 50, collective="_allgather_base", elements=10, out=640, group=range(64)
            ),
            *collective_event("c10d::alltoall_base_", 90, collective="all_to_all", elements=640, group=GROUP),
        ],
    )
    out = tmp_path / "out.jsonl"
    run(trace, out, "--ranks", "2", "--set", "no_check=true", "--output", str(tmp_path / "out.md"))
    for one in collectives(out):
        ran = one.collective.replayed
        assert (ran.ranks, ran.ranks_recorded, ran.checked, ran.elements) == (2, 64, "not checked", 640)
        assert "a group of 64 ran on 2 ranks" in ran.mapping
        assert any(a.argument == "group" and "64" in a.what for a in one.assumptions)
    assert "64 → 2" in (tmp_path / "out.md").read_text()


def test_without_ranks_collectives_are_left_out_and_the_report_says_how(tmp_path: Path) -> None:
    event, inner = collective_event("c10d::allreduce_", 0, collective="allreduce", elements=8)
    event["args"] = {"Input Dims": [[[8]]], "Input type": ["TensorList"]}
    out = tmp_path / "out.jsonl"
    done = run(written(tmp_path / "trace.json", [event, inner]), out)
    (result,) = read_result_file(out).results
    assert result.reason is not None
    assert result.reason.kind == "collective"
    assert result.collective is None
    assert "--ranks N" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "backend=gloo"), "--ranks N"),
        (
            (
                "--set",
                "no_check=true",
            ),
            "--ranks N",
        ),
        (("--ranks", "2", "--set", "backend=nccl"), "needs --device cuda"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    trace = written(tmp_path / "trace.json", every_collective())
    assert said in run(trace, tmp_path / "out.jsonl", *options, code=2).stderr


def ranks_of(parent: int) -> list[int]:
    """Processes below `parent` that are ranks."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes()
            above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if above == parent and b"ranks.rank" in line:
            found.append(int(entry.name))
    return sorted(found)


def wait_for_first_result(process: subprocess.Popen[bytes], out: Path) -> None:
    while not (out.exists() and b'"record":"op"' in out.read_bytes()):
        assert process.poll() is None
        time.sleep(0.02)


def test_ranks_of_a_launcher_are_joined_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    """Two processes with torch's variables, as torchrun, srun or Ray start them; rank 0 alone reports."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = tmp_path / "out.jsonl"
    arguments = command(several(tmp_path), out, "--ranks", "2", "--set", "op_limit=20s", "--set", "op_time=0.4s")
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(arguments, env={**ENVIRONMENT, **told, "RANK": str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(2)
    ]
    try:
        wait_for_first_result(ranks[0], out)
        (child,) = ranks_of(ranks[1].pid)
        os.kill(child, signal.SIGKILL)
        assert [process.wait(120) for process in ranks] == [1, 0]
    finally:
        for process in ranks:
            process.kill()
    found = collectives(out)
    assert [one.status for one in found].count("replayed") == 3
    (lost,) = [one for one in found if one.status != "replayed"]
    assert "SIGKILL" in str(lost.reason)
    assert not Path(f"/proc/{child}").exists()


def several(tmp_path: Path) -> Path:
    """Four all-reduces of different sizes."""
    events = [
        event
        for number in range(4)
        for event in collective_event(
            "c10d::allreduce_", 100.0 * number, collective="allreduce", elements=1000 + number, dur=90 - number
        )
    ]
    return written(tmp_path / "trace.json", events)


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_hangs_costs_one_collective(tmp_path: Path, harm: signal.Signals) -> None:
    """The collective in flight ends on all ranks with its reason, the next has a new group, nothing is left behind."""
    out = tmp_path / "out.jsonl"
    arguments = command(several(tmp_path), out, "--ranks", "2", "--set", "op_limit=4s", "--set", "op_time=0.4s")
    told = tmp_path / "stderr.txt"
    with told.open("wb") as stream:
        process = subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=stream)
    try:
        wait_for_first_result(process, out)
        first = ranks_of(process.pid)
        assert len(first) == 2
        os.kill(first[1], harm)
        assert process.wait(120) == 1
    finally:
        process.kill()
    found = collectives(out)
    assert [one.status for one in found].count("replayed") == 3
    (lost,) = [one for one in found if one.status != "replayed"]
    assert "rank 1" in str(lost.reason)
    assert ("SIGKILL" if harm == signal.SIGKILL else "--set op_limit") in str(lost.reason)
    assert lost.reason is not None
    assert lost.reason.kind == "rank lost"
    assert f"opreplay: warning: {lost.name} {lost.inputs}: rank lost: " in told.read_text()
    assert not any(Path(f"/proc/{pid}").exists() for pid in first)
    assert not ranks_of(process.pid)
    if harm == signal.SIGKILL:
        run(tmp_path / "trace.json", out, *arguments[arguments.index("--ranks") :], "--resume")
        again = {one.id: one for one in collectives(out)}
        assert [one.status for one in again.values()] == ["replayed"] * 4


def test_a_run_on_ranks_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """The folder in which the ranks met stayed, one more after each kill."""
    folder, out = tmp_path / "tmp", tmp_path / "out.jsonl"
    folder.mkdir()
    arguments = command(several(tmp_path), out, "--ranks", "2", "--set", "op_time=0.4s")
    process = subprocess.Popen(arguments, env={**ENVIRONMENT, "TMPDIR": str(folder)}, stdout=subprocess.DEVNULL)
    try:
        wait_for_first_result(process, out)
        ranks = ranks_of(process.pid)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ranks
    assert list(folder.iterdir()) == []


def test_a_rank_that_is_killed_while_it_starts_is_started_again() -> None:
    options = MeasureOptions()
    config = RankConfig(rank=0, world=2, backend="gloo", device="cpu", store="", memory_bytes=1 << 30, measure=options)
    ranks = local_ranks(config, limit_s=30)

    def kill_one() -> None:
        while len(ranks.pids) < 2:
            time.sleep(0.01)
        os.kill(ranks.pids[1], signal.SIGKILL)

    harm = threading.Thread(target=kill_one)
    harm.start()
    try:
        assert ranks.start()["ranks"] == 2
    finally:
        harm.join()
        ranks.close()


def test_a_plan_with_ranks_has_the_ops_of_a_run_with_ranks(tmp_path: Path) -> None:
    """Under the same ids and names; the plan can be run, and one that was made without ranks says what it lacks."""
    trace, plans, out = several(tmp_path), tmp_path / "plan.json", tmp_path / "out.jsonl"
    run(trace, out, "--ranks", "2")
    for options, replayed in ((("--ranks", "2"), True), ((), False)):
        assert opreplay_here("plan", trace, "-o", plans, "--force", *options).returncode == 0
        ops = json.loads(plans.read_text())["ops"]
        same = {(op["id"], op["name"]) for op in ops} == {(one.id, one.name) for one in collectives(out)}
        assert same == replayed
    assert "make the plan with `opreplay plan --ranks N`" in run(plans, tmp_path / "not.jsonl", "--ranks", "2").stdout
