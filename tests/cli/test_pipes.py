"""Pipes where a trace may be: read where something writes to them, refused where nothing does, said in folders."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.traces.reading import source
from tests.cli.commands.test_batch import write_rank


def call(*args: object) -> Result:
    return CliRunner().invoke(opreplay, list(map(str, args)))


def test_a_pipe_without_a_writer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WRITER_S", 0.05)
    pipe = tmp_path / "trace.json"
    os.mkfifo(pipe)
    for command in ("inspect", "plan", "batch", "show"):
        result = call(command, pipe)
        assert result.exit_code == 3
        assert "is a named pipe without a writer" in result.stderr


def test_a_pipe_with_a_writer_is_read(tmp_path: Path) -> None:
    content = write_rank(tmp_path / "rank0.json", 0).read_bytes()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    result = call("batch", pipe, "--dry-run")  # looks for ranks at the start of files first
    writer.join()
    assert result.exit_code == 0, result.stderr
    assert "of 2 ops" in result.stdout


@pytest.mark.slow
def test_standard_input_and_substituted_processes_are_read(tmp_path: Path) -> None:
    trace = write_rank(tmp_path / "rank0.json", 0)
    script = Path(sys.executable).with_name("opreplay")
    for line in (f"{script} inspect <(cat {trace})", f"cat {trace} | {script} inspect -"):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "ops: 3 (3 with shapes)" in done.stdout


@pytest.mark.slow
def test_plans_and_results_in_pipes_are_refused_by_their_kind(tmp_path: Path) -> None:
    trace, plan, results = write_rank(tmp_path / "rank0.json", 0), tmp_path / "plan.json", tmp_path / "r.jsonl"
    assert call("plan", trace, "-o", plan).exit_code == 0
    results.write_text('{"record":"header","schema_version":4,"opreplay_version":"0"}\n{"record":"summary"}\n')
    script = Path(sys.executable).with_name("opreplay")
    for file, kind in ((plan, "a plan of opreplay"), (results, "a result of opreplay")):
        line = f"{script} compare <(cat {file}) <(cat {file})"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 3, done.stderr
        assert kind in done.stderr
        assert "not from pipes" in done.stderr


def test_what_is_no_regular_file_in_a_folder_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    os.mkfifo(folder / "pipe.json")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / "socket.json"))
        result = call("batch", folder, "--dry-run")
        assert result.exit_code == 2
        assert "is a regular file" in result.stderr
        write_rank(folder / "rank0.json", 0)
        result = call("batch", folder, "--dry-run")
    assert result.exit_code == 0, result.stderr
    for name in ("pipe", "socket"):
        assert f"left out: {folder / name}.json: not a regular file" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_named(unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from opreplay.cli.main import main; main()", "list", "devices", "--format", "json"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert done.returncode == 4
    assert done.stderr.startswith(b"opreplay: stdout: No space left on device")
