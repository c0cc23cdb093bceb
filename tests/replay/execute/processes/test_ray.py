"""Lanes on a real Ray cluster of this machine: shares of devices, faults, a worker killed in the middle."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.ray import RayLanes, Share, connect, share_of
from opreplay.replay.ir.model import Recorded, ReplayOp
from opreplay.replay.results.reading import read_result_file
from opreplay.traces.errors import EnvironmentRefused, UsageError
from tests.running import outcomes_of

# Ray leaves sockets and deprecations of its own behind.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
LIMIT_S = 3.0


def fake_op(index: int, name: str) -> ReplayOp:
    recorded = Recorded(host_us_total=1, host_us_median=1)
    return ReplayOp(id=f"{index:012x}", name=f"fake::{name}", count=1, recorded=recorded)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two CPUs for all tests of this file; starting one takes seconds."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'opreplay[ray]'")
    ray.init(
        num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False, logging_level="ERROR"
    )
    yield ray
    ray.shutdown()


def lanes(**more: Any) -> RayLanes:
    return RayLanes(WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=10**6), limit_s=LIMIT_S, **more)


def busy_workers() -> list[int]:
    """Process ids of actors that measure right now; Ray writes what a worker does into its title."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::LaneActor.measure"):
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize(
    ("device", "threads", "share"),
    [
        ("cpu", None, Share(cpus=1)),
        ("cpu", 4, Share(cpus=4)),
        ("cuda", None, Share(cpus=1, gpus=1)),
        ("npu", 2, Share(cpus=2, npus=1)),
    ],
)
def test_a_lane_asks_for_the_device_that_it_measures_on(device: str, threads: int | None, share: Share) -> None:
    assert share_of(device, threads) == share


def test_ray_chooses_which_device_a_lane_gets() -> None:
    with pytest.raises(UsageError, match="not cuda:1"):
        share_of("cuda:1", None)


def test_as_many_lanes_as_fit() -> None:
    assert Share(cpus=2).lanes_in({"CPU": 7.0}) == 3
    assert Share(cpus=1, gpus=1).lanes_in({"CPU": 7.0, "GPU": 2.0}) == 2
    assert Share(cpus=1, npus=1).lanes_in({"CPU": 7.0}) == 0
    assert Share(cpus=1, npus=1).options()["resources"] == {"NPU": 1}


def test_every_op_has_one_outcome_and_faults_cost_theirs(cluster: Any) -> None:
    engine = lanes()
    facts = engine.start()
    assert (facts["engine"], facts["lanes"], facts["device"]) == ("ray", 2, "fake")
    names = ["1us", "2us", "abort", "3us", "raise", "4us"]
    found = {op.name: out for op, out in outcomes_of(engine, [fake_op(i, n) for i, n in enumerate(names)])}
    engine.close()
    assert len(found) == len(names)
    assert {name: out.status for name, out in found.items() if out.status != "replayed"} == {
        "fake::abort": "failed",
        "fake::raise": "failed",
    }


def test_a_worker_killed_in_the_middle_costs_a_second_try(cluster: Any) -> None:
    engine = lanes(lanes=2)
    engine.start()
    killed: list[int] = []

    def kill() -> None:
        deadline = monotonic() + 60
        while not killed and monotonic() < deadline:
            sleep(0.3)
            for pid in busy_workers():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    ops = [fake_op(0, "hang"), *(fake_op(i, f"{i}us") for i in range(1, 8))]
    found = {op.name: outcome for op, outcome in outcomes_of(engine, ops)}
    killer.join()
    engine.close()
    assert killed
    assert len(found) == len(ops), "no op is lost"
    assert found["fake::hang"].attempts == 2
    assert str(found["fake::hang"].reason).startswith("budget: time")
    assert {found[f"fake::{i}us"].status for i in range(1, 8)} == {"replayed"}


def test_lanes_that_find_no_room_hold_up_nothing(cluster: Any) -> None:
    engine = lanes(lanes=3)
    assert engine.start()["lanes"] == 3
    ops = [fake_op(i, f"{i}us") for i in range(1, 10)]
    started = monotonic()
    assert {out.status for _, out in outcomes_of(engine, ops)} == {"replayed"}
    assert monotonic() - started < 30
    engine.close()


def test_a_device_that_no_worker_has_is_refused(cluster: Any) -> None:
    engine = RayLanes(
        WorkerConfig(options=RunOptions(executor="torch", device="cpu", values="/no/such/file"), memory_bytes=10**6),
        limit_s=LIMIT_S,
        lanes=1,
    )
    with pytest.raises((EnvironmentRefused, UsageError)):
        engine.start()
    engine.close()


@pytest.mark.slow
def test_the_command_reads_and_measures_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    for rank in range(3):
        events = [
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "aten::relu",
                "ts": 10 * i,
                "dur": 5,
                "pid": 1,
                "tid": 1,
                "args": {
                    "Input Dims": [[8, size]],
                    "Input type": ["float"],
                    "Input Strides": [[size, 1]],
                    "Concrete Inputs": [""],
                },
            }
            for i, size in enumerate([4, 4, 16 + rank])
        ]
        content = {"distributedInfo": {"rank": rank, "world_size": 3}, "traceEvents": events}
        (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    path = tmp_path / "r.jsonl"
    result = CliRunner().invoke(
        opreplay, ["batch", str(tmp_path), "--engine", "ray", "--workers", "1", "--set", "op_time=5ms", "-o", str(path)]
    )
    assert result.exit_code == 0, result.stderr
    file = read_result_file(path)
    assert {one.status for one in file.results} == {"replayed"}
    assert len(file.results) == 4
    assert [job.ranks for job in file.jobs] == [(0, 1, 2)]
    assert file.header.environment["engine"] == "ray"


class Ray:
    """What `connect` uses of Ray."""

    def __init__(self, made: object) -> None:
        self._made = made
        self.is_over = False

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: object) -> object:
        if isinstance(self._made, Exception):
            raise self._made
        return self._made

    def shutdown(self) -> None:
        self.is_over = True


@pytest.mark.parametrize("error", [Exception("The node timed out during startup.\nmore"), ConnectionError("no")])
def test_a_cluster_that_does_not_start_is_told_in_a_line(error: Exception) -> None:
    with pytest.raises(EnvironmentRefused, match="no Ray cluster at this machine: ") as refused:
        connect(Ray(error), None, lanes=1)
    assert "more" not in str(refused.value)


def test_a_cluster_that_others_can_reach_is_ended() -> None:
    ray = Ray(SimpleNamespace(address_info={"node_ip_address": "192.0.2.7"}))
    with pytest.raises(EnvironmentRefused, match=r"would listen on 192\.0\.2\.7"):
        connect(ray, None, lanes=1)
    assert ray.is_over
    assert connect(Ray(SimpleNamespace(address_info={"node_ip_address": "192.0.2.7"})), "192.0.2.7:6379", lanes=1)


LISTENING = r"""
import os, re
from pathlib import Path
from opreplay.replay.execute.processes.ray import RayLanes
from opreplay.replay.execute.options import RunOptions, WorkerConfig

def text(path):
    try:
        return path.read_text()
    except OSError:  # the process is gone
        return ""

def sockets_of(pid):
    for entry in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            yield from re.findall(r"socket:\[(\d+)\]", os.readlink(entry))
        except OSError:
            pass

engine = RayLanes(WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=10**6), limit_s=3.0, lanes=1)
engine.start()
stats = {int(p.name): text(p / "stat") for p in Path("/proc").glob("[0-9]*")}
parents = {pid: int(stat.rpartition(")")[2].split()[1]) for pid, stat in stats.items() if stat}
ours = {os.getpid()}
for _ in range(9):
    ours |= {pid for pid, parent in parents.items() if parent in ours}
sockets = {number for pid in ours for number in sockets_of(pid)}
for name in ("tcp", "tcp6"):
    for line in text(Path("/proc/net", name)).splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in sockets:
            print("listens", fields[1])
engine.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for sockets in /proc")
def test_a_cluster_of_our_own_cannot_be_reached_from_outside() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'opreplay[ray]'")
    # In a process of its own: Ray decides when it is imported.
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    listening = re.findall(r"^listens (\w+):", done.stdout, re.MULTILINE)
    assert listening
    assert set(listening) <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
