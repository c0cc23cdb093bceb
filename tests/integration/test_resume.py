"""The installed command killed in the middle of a real run, and told to go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from opreplay.replay.results.reading import read_result_file
from opreplay.traces.samples import sample_path

SCRIPT = Path(sys.executable).parent / "opreplay"
SAMPLE = sample_path("transformer_infer")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPT.exists(), reason="opreplay is not installed beside this Python"),
]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_killed_in_the_middle_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    arguments = [
        SCRIPT,
        "run",
        SAMPLE,
        "--top",
        "8",
        "--set",
        "op_time=50ms",
        "--set",
        "max_op_memory=500MB",
        "-o",
        path,
    ]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = monotonic() + 100
        while not path.exists() or path.read_bytes().count(b"\n") < 3:
            assert monotonic() < deadline
            assert process.poll() is None
            sleep(0.01)
        workers = children_of(process.pid)
        process.kill()
    assert workers
    deadline = monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and monotonic() < deadline:
        sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    before = {result.id: result for result in read_result_file(path).results}
    done = subprocess.run([*arguments, "--resume"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    file = read_result_file(path)
    assert file.summary is not None
    assert len(file.results) == file.summary.ops == 8
    assert [result for result in file.results if result.id in before] == list(before.values())
    other = subprocess.run([*arguments, "--resume", "--set", "seed=5"], capture_output=True, text=True, timeout=120)
    assert other.returncode == 2
    assert "cannot resume: seed (0 before, 5 now) differ" in other.stderr
    longer = subprocess.run(
        [*arguments, "--resume", "--set", "op_time=7ms"], capture_output=True, text=True, timeout=120
    )
    assert "--set op_time (" in longer.stderr
    assert " before, 0.007 now)" in longer.stderr
    assert other.stdout == "", "the report of the first run is none of the second"


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX")
def test_a_full_disk_ends_with_a_hint_and_whole_lines(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "r.jsonl"
    done = subprocess.run(
        [SCRIPT, "run", SAMPLE, "--top", "4", "--set", "op_time=5ms", "--set", "max_op_memory=500MB", "-o", path],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "80"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY)),
    )
    assert done.returncode == 4, (done.returncode, done.stderr)
    assert "--resume" in done.stderr
    assert path.read_bytes().endswith(b"\n")
