"""`run --mode sequence --ranks` from the outside: a step's collectives beside its calls, and ranks that break."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from opreplay.replay.report.run.sequence import VARIES
from opreplay.replay.results.reading import ResultFile, read_result_file
from tests.collectives import collective_event
from tests.forked_children import opreplay_here
from tests.integration.test_collectives import ENVIRONMENT, SCRIPT, ranks_of

QUICK = ("--mode", "sequence", "--ranks", "2", "--set", "op_time=10ms", "--set", "threads=1")
SIZE = 192

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPT.exists(), reason="opreplay is not installed beside this Python"),
    pytest.mark.skipif(sys.platform != "linux", reason="ranks are looked for in /proc"),
]


def step(path: Path) -> Path:
    """Products beside an all-reduce whose end gloo marked, a blocking broadcast, and one with a `wait_tensor`."""

    def event(name: str, ts: float, dur: float, dims: Any, kinds: Any, tid: int = 1, cat: str = "cpu_op") -> Any:
        args = {"Input Dims": dims, "Input type": kinds}
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

    def product(ts: float) -> Any:
        return event("aten::mm", ts, 90, [[SIZE, SIZE], [SIZE, SIZE]], ["float", "float"])

    async_: dict[str, Any] = {"Concrete Inputs": ["", "", "", "", "True", "-1"]}
    first: dict[str, Any] = {"Is asynchronized op": True}
    blocking: dict[str, Any] = {"Is asynchronized op": False}
    events = [
        *collective_event("c10d::allreduce_", 0, collective="allreduce", elements=200_000, op=async_, **first),
        event("gloo:all_reduce", 12, 250, [[200_000]], ["float"], tid=2, cat="user_annotation"),
        product(100),
        product(200),
        product(300),
        *collective_event("c10d::broadcast_", 400, collective="broadcast", elements=50, **blocking, Rank=1),
        *collective_event("_c10d_functional::all_reduce", 420, collective="allreduce", elements=3000, **first),
        product(440),
        event("_c10d_functional::wait_tensor", 540, 5, [[3000]], ["float"]),
        product(560),
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def run(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = opreplay_here("run", *arguments, COLUMNS="200")
    assert done.returncode == code, (done.stdout[-3000:], done.stderr[-3000:])
    return done


def assert_whole(file: ResultFile) -> None:
    """All calls and collectives were replayed, with right results."""
    assert {one.status for one in file.results if not one.name.endswith("wait_tensor")} == {"replayed"}
    found = [one.collective.replayed for one in file.results if one.collective is not None]
    assert [(one.ranks, one.checked) for one in found if one is not None] == [(2, "right")] * 3


def test_collectives_run_beside_the_calls_of_their_step(tmp_path: Path) -> None:
    """From a plan, which holds where they were asked and waited for."""
    plan, out = tmp_path / "plan.json", tmp_path / "out.jsonl"
    assert opreplay_here("plan", step(tmp_path / "trace.json"), "--ranks", "2", "-o", plan).returncode == 0
    done = run(plan, *QUICK, "-o", out)
    file = read_result_file(out)
    assert_whole(file)
    sequence = file.sequence
    assert sequence is not None
    shared = sequence.shared
    assert shared is not None
    assert (sequence.calls, sequence.calls_replayed, sequence.passes > 2) == (6, 5, True)  # the sixth waits
    assert (shared.ranks, shared.backend, shared.collectives, shared.collectives_replayed) == (2, "gloo", 3, 3)
    assert (shared.waits_recorded, shared.waits_inferred, shared.waits_unknown) == (2, 1, 0)
    assert shared.recorded_us == pytest.approx(250.0 + 10.0 + 10.0)
    assert sequence.wall_us is not None
    assert 0 < shared.hidden_us <= shared.in_flight_us <= sequence.wall_us
    assert 0 < shared.waited_us < sequence.wall_us
    assert 0 < shared.calls_alone_us < shared.wall_alone_us
    assert shared.collectives_alone_us > 0
    assert "5 of 6 calls and 3 of 3 collectives on 2 ranks (gloo)" in done.stdout
    assert "% of this time hidden behind the calls" in done.stdout
    assert "(inferred): 1" in done.stdout
    low, high = shared.hidden_share_low, shared.hidden_share_high
    assert low is not None
    assert high is not None
    assert 0.0 <= low <= high <= 1.0
    told = " ".join(done.stdout.split())
    assert ("from pass to pass" in told) == (high - low > VARIES)
    assert ("the hidden share varies" in told) == (high - low > 0.2)
    assert "a whole pass is" in told


def test_the_ranks_have_their_part_of_the_runs_time(tmp_path: Path) -> None:
    """The passes without ranks took all of --total-time, and the ranks were "out of time" before they began."""
    out = tmp_path / "out.jsonl"
    given = ("--mode", "sequence", "--ranks", "2", "--set", "op_time=6s", "--set", "total_time=16s")
    run(step(tmp_path / "trace.json"), *given, "-o", out)
    file = read_result_file(out)
    assert file.sequence is not None
    assert file.sequence.shared is not None
    assert file.sequence.shared.collectives_replayed == 3


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_breaks_costs_no_more_than_what_it_was_at(tmp_path: Path, harm: signal.Signals) -> None:
    """One that dies costs nothing, for all begin again; one that hangs what it hung at. No process is left."""
    folder, out = tmp_path / "beats", tmp_path / "out.jsonl"
    folder.mkdir()
    arguments = [str(SCRIPT), "run", str(step(tmp_path / "trace.json")), *QUICK, "--set", "op_limit=2s", "-o", str(out)]
    process = subprocess.Popen(
        arguments, env={**ENVIRONMENT, "TMPDIR": str(folder)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not (inside := [pid for pid in ranks_of(process.pid) if at_a_step(pid, folder)]):
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(inside[0], harm)
        code = process.wait(120)
    finally:
        process.kill()
    assert not any(Path(f"/proc/{pid}").exists() for pid in inside)
    assert not ranks_of(process.pid)
    file = read_result_file(out)
    assert file.sequence is not None
    assert file.sequence.shared is not None
    assert file.sequence.shared.restarts == 1
    if harm == signal.SIGKILL:
        assert_whole(file)
    lost = [one for one in file.results if one.reason is not None and one.reason.kind == "rank lost"]
    assert code == len(lost) <= 1
    assert all("stopped" in str(one.reason) for one in lost)


def at_a_step(pid: int, folder: Path) -> bool:
    """Whether a rank has opened the file in which it says what it is at."""
    try:
        return str(folder) in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def test_what_does_not_go_with_it(tmp_path: Path) -> None:
    trace = step(tmp_path / "trace.json")
    out = tmp_path / "out.jsonl"
    assert "supports only the CPU" in run(trace, *QUICK, "--device", "cuda", "-o", out, code=2).stderr
    launched = {**ENVIRONMENT, "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [str(SCRIPT), "run", str(trace), *QUICK, "-o", str(out)], capture_output=True, text=True, env=launched
    )
    assert done.returncode == 2
    assert "starts its own ranks" in " ".join(done.stderr.split())
