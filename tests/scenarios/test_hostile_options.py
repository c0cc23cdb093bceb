"""Options files that somebody left in a folder to cost memory, threads or time: refused at once, with a sentence.

Each text stands alone in an `opreplay.toml` that nobody trusted, beside a trace.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.traces.samples import catalog
from opreplay.traces.toml_text import MOST_DEPTH, parse_toml

MOST_CPU_S, MOST_MEMORY_BYTES = 2.0, 200 << 20
SAMPLE = sorted(Path(catalog.__file__).parent.glob("*.json.gz"))[0]
SIMULATE = ("simulate", "trace.json.gz")
INSPECT = ("inspect", "trace.json.gz")
RUN = ("run", "trace.json.gz", "--top", "1")
TIMELINE = ("timeline", "trace.json.gz")
EXPORT = ("export", "trace.json.gz", "--format", "chakra", "-o", "out.et")

USAGE = """
import json, os, subprocess, sys
script = os.path.join(os.path.dirname(sys.executable), "opreplay")
process = subprocess.Popen([script, *sys.argv[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime]))
"""
"""Runs opreplay from a small process, since the peak memory of a child begins with that of its parent; prints its exit
code, peak memory in bytes and processor time in seconds."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace and files that no device is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("OPREPLAY_CONFIG", raising=False)
    place = tmp_path / "cloned"
    place.mkdir()
    shutil.copy(SAMPLE, place / "trace.json.gz")
    os.mkfifo(place / "fifo.toml")
    (place / "device.toml").symlink_to("/dev/zero")
    (place / "outside.toml").symlink_to("/etc/passwd")
    (place / "folder.toml").mkdir()
    with (place / "huge.toml").open("wb") as file:
        file.truncate(20 << 30)
    monkeypatch.chdir(place)
    return place


HOSTILE: dict[str, tuple[str, tuple[str, ...], str]] = {
    "device": ('soc = ["/dev/zero"]', SIMULATE, "outside"),
    "link to a device": ('soc = ["device.toml"]', SIMULATE, "outside"),
    "link to a file": ('soc = ["outside.toml"]', SIMULATE, "outside"),
    "folder above": ('soc = ["../other.toml"]', SIMULATE, "outside"),
    "fifo": ('soc = ["fifo.toml"]', SIMULATE, "not a regular file"),
    "fifo of run": ('soc = ["fifo.toml"]', RUN, "not a regular file"),
    "directory": ('soc = ["folder.toml"]', TIMELINE, "directory"),
    "sparse file": ('soc = ["huge.toml"]', SIMULATE, "over the limit"),
    "cluster": ('cluster = "fifo.toml"', SIMULATE, "not a regular file"),
    "clock": ('clock = "/dev/zero"', EXPORT, "outside"),
    "clock that waits": ('clock = "fifo.toml"', EXPORT, "not a regular file"),
    "NUL in a name": ('soc = "a\\u0000.toml"', SIMULATE, "outside"),
    "long name": (f'kernel-details = "{"a" * 300}"', INSPECT, "only a trusted file"),
    "long device": (f'soc = "{"a/" * 5000}"', SIMULATE, "cannot read"),
    "histogram": ("init-arg = 'indices.histogram=/dev/zero'", RUN, "outside"),
    "lanes": ("lanes = 1000000", RUN, "per processor"),
    "threads": ("threads = 1000000", RUN, "per processor"),
    "ranks": ("[run]\nranks = 1024", RUN, "per processor"),
    "time of an op": ('op-time = "1e300s"', RUN, "only a trusted file"),
    "endless time": ('op-time = "1e400s"', RUN, "is not a time"),
    "cores": ("cores = 9223372036854775807", ("tile", "rms_norm"), "only a trusted file"),
    "dotted key": (".".join("a" * 8000) + " = 1", INSPECT, "parts"),
    "quoted dotted key": (".".join(["'a'"] * 4000) + " = 1", INSPECT, "parts"),
    "dotted table": (f"[{'.'.join('a' * 4000)}]\n" + "k = 1\n" * 1000, INSPECT, "parts"),
    "long": ("#" * (17 << 10), INSPECT, "over the limit"),
    "keys": ("".join(f"k{number} = 1\n" for number in range(1500)), INSPECT, "no command"),
    "twice": ("".join(f"a-{number} = 1\n" for number in range(1000)) + "x_y = 1\nx-y = 2\n", INSPECT, "twice"),
    "digits": (f"top = {'9' * 5000}", INSPECT, "bits"),
    "digits in a text": (f"top = '{'9' * 5000}'", INSPECT, "whole number"),
    "power": (f"top = '{'9' * 3000}^60'", INSPECT, "whole number"),
    "hexadecimal": (f"top = 0x{'f' * 15000}", INSPECT, "bits"),
    "infinite": ("top = inf", INSPECT, "not a text or number"),
    "not a number": ("top = nan", INSPECT, "not a text or number"),
    "part of one": ("top = 1.5", INSPECT, "whole number"),
    "infinite factor": ("host-scale = inf", TIMELINE, "not a text or number"),
    "deep list": ("soc = " + "[" * 8000, SIMULATE, "deep"),
    "closed deep list": ("top = " + "[" * 200 + "]" * 200, INSPECT, "deep"),
}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(opreplay, list(arguments))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_found_file_is_refused(folder: Path, name: str) -> None:
    text, command, why = HOSTILE[name]
    (folder / "opreplay.toml").write_text(text)
    started = time.process_time()
    done = invoke(*command)
    assert time.process_time() - started < MOST_CPU_S
    assert done.exit_code == 2, done.stderr
    assert why in done.stderr.replace("\n", " "), done.stderr
    assert len(done.stderr) < 2000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparse file", "clock that waits", "lanes", "dotted key", "keys", "deep list"])
def test_a_refusal_costs_little(folder: Path, name: str) -> None:
    text, command, _ = HOSTILE[name]
    (folder / "opreplay.toml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", USAGE, *command], capture_output=True, text=True, check=True, timeout=120
    )
    code, memory_bytes, cpu_s = json.loads(done.stdout)
    assert code == 2
    assert memory_bytes < MOST_MEMORY_BYTES
    assert cpu_s < MOST_CPU_S


@pytest.mark.parametrize("name", ["dotted key", "keys", "digits", "deep list"])
def test_a_table_of_pyproject_is_bounded_too(folder: Path, name: str) -> None:
    text, command, why = HOSTILE[name]
    (folder / "pyproject.toml").write_text("[tool.opreplay]\n" + text)
    done = invoke(*command)
    assert done.exit_code == 2
    assert why in done.stderr


@pytest.mark.parametrize("command", [SIMULATE, INSPECT], ids=["simulate", "inspect"])
@pytest.mark.parametrize("file", ["/dev/zero", "fifo.toml", "huge.toml"])
def test_files_of_the_command_line_are_bounded_too(folder: Path, command: tuple[str, ...], file: str) -> None:
    assert invoke("--config", file, *command).exit_code == 2
    if command == SIMULATE:
        assert invoke(*command, "--soc", file).exit_code == 2
        assert invoke(*command, "--cluster", file).exit_code == 2


def test_what_a_project_writes_still_counts(folder: Path) -> None:
    """Devices below the folder, a few threads, and more than that once the file is trusted."""
    (folder / "devices").mkdir()
    (folder / "devices" / "own.toml").write_text('schema_version = 1\nname = "own"\nbase = "910b3"\n')
    options = folder / "opreplay.toml"
    options.write_text('threads = 2\n[op]\nsoc = ["devices/own.toml", "910b4"]\n')
    done = invoke("op", "aten::relu(f32[8])", "--no-measure", "--format", "json")
    assert done.exit_code == 0, done.stderr
    assert '"own"' in done.stdout
    options.write_text("threads = 1000\n")
    assert invoke("op", "aten::relu(f32[8])", "--no-measure").exit_code == 2
    assert invoke("trust").exit_code == 0
    assert invoke("op", "aten::relu(f32[8])", "--no-measure").exit_code == 0


def test_toml_within_bounds_is_parsed() -> None:
    assert parse_toml(b'a.b.c = 1\nversion = "1.2.3"\nx = [1.5, -9223372036854775808]\n') == {
        "a": {"b": {"c": 1}},
        "version": "1.2.3",
        "x": [1.5, -(2**63)],
    }
    with pytest.raises(ValueError, match="parts"):
        parse_toml(b".".join([b"a"] * (MOST_DEPTH + 1)) + b" = 1")
    with pytest.raises(ValueError, match="UTF-8"):
        parse_toml(b"\xff = 1")
