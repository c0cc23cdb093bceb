"""A batch of two lanes killed with SIGKILL, then continued: nothing is read, measured or reported twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opreplay.replay.results.reading import read_result_file
from opreplay.traces.samples import sample_path

pytestmark = pytest.mark.slow

SCRIPT = Path(sys.executable).parent / "opreplay"
RANKS = ("ddp_step_rank0", "ddp_step_rank1")


def command(path: Path, *more: str) -> list[str]:
    traces = [str(sample_path(name)) for name in RANKS]
    return [
        str(SCRIPT),
        "batch",
        *traces,
        "--workers",
        "2",
        "--top",
        "6",
        "--set",
        "op_time=0.3s",
        "--set",
        "shared_device=true",
        "--output",
        str(path),
        *more,
    ]


def ids(path: Path) -> list[str]:
    return [result.id for result in read_result_file(path).results]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_a_batch_that_was_killed_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    killed = subprocess.Popen(command(path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < 3:
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    before = ids(path)
    assert before
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(command(path, "--resume"), capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    assert "plans of 2 of 2 traces" in done.stderr
    after = ids(path)
    assert after[: len(before)] == before
    assert len(set(after)) == len(after)
    file = read_result_file(path)
    assert file.summary is not None
    assert not file.summary.interrupted
    assert (file.summary.ops, file.summary.failed) == (len(after), 0)
    assert [trace.rank for trace in file.traces] == [0, 1]
    assert [job.ranks for job in file.jobs] == [(0, 1)]
