"""From a trace to a device with the user's own measurements: the script runs by itself, on the CPU here."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from math import log
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.traces.samples import sample_path
from tests.scenarios.conftest import Console

pytestmark = pytest.mark.slow

QUICK = ("--device", "cpu", "--samples", "2", "--flush-mb", "1", "--soc", "910b3")
SAMPLE = sample_path("transformer_infer")


def run(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The script as somebody without opreplay runs it."""
    return subprocess.run(
        [sys.executable, "-I", script.name, *QUICK, *options],
        cwd=script.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "measured.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("kit") / "measure.py"
    options = ("--format", "measure", "--soc", "910b3", "--budget", "2min", "-o", str(path))
    done = CliRunner().invoke(opreplay, ["export", str(SAMPLE), *options])
    assert done.exit_code == 0, done.output
    return path.read_text()


@pytest.fixture
def script(written: str, tmp_path: Path) -> Path:
    path = tmp_path / "measure.py"
    path.write_text(written)
    return path


def shares(done: Result) -> dict[str, float]:
    return json.loads(done.stdout)["socs"]["mine"]["measured_shares"]


def test_measured_calls_change_the_prediction(console: Console, script: Path) -> None:
    done = run(script, "--calls", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 calls measured, 0 failed" in done.stdout
    assert "reference matrix product and copy" in done.stdout
    first = rows(script.parent)
    assert [(row["l2"], row["soc"], row["exact"]) for row in first] == [
        ("warm", "910b3", "yes"),
        ("cold", "910b3", "yes"),
    ] * 3
    again = run(script, "--calls", "4")
    assert "3 of 4 calls are in measured.csv already" in again.stdout
    assert rows(script.parent)[:6] == first
    assert len(rows(script.parent)) == 8

    table, mine = script.parent / "measured.csv", script.parent / "mine.toml"
    console("validate", table, "--soc", "910b3")
    facts = json.loads(console("calibrate", table, "--soc", "910b3", "--output", mine, "--format", "json").stdout)
    assert len(facts["calls"]) == 8
    assert facts["dropped"] == {}
    before, after = (
        json.loads(console("simulate", SAMPLE, "--soc", soc, "--format", "json").stdout) for soc in ("910b3", mine)
    )
    assert before["socs"]["910b3"]["measured_shares"] == {}
    assert after["socs"]["mine"]["measured_shares"]["call"] > 0.1
    assert after["socs"]["mine"]["total_us"] != pytest.approx(before["socs"]["910b3"]["total_us"], rel=0.01)
    assert "is based on your measurements" in " ".join(console("simulate", SAMPLE, "--soc", mine).stdout.split())
    call = first[0]["op"]
    told = console("op", call, "--soc", "910b3", "--soc", mine, "--no-measure", "--l2", "cold", "--format", "json")
    times_us = {soc: made["time_us"] for soc, made in json.loads(told.stdout)["cases"][0]["simulated"].items()}
    cold_us = next(float(row["torch_us"]) for row in first if row["op"] == call and row["l2"] == "cold")
    assert abs(log(times_us["mine"] / cold_us)) <= abs(log(times_us["910b3"] / cold_us))


def test_calls_that_fail_crash_or_hang_cost_themselves_alone(script: Path) -> None:
    text = script.read_text()
    faults = "if index == 0: raise RuntimeError('no kernel')\n            if index == 1: os.abort()\n"
    faults += "            if index == 2: time.sleep(600)\n            ready = Call("
    assert "ready = Call(" in text
    script.write_text(text.replace("ready = Call(", faults))
    done = run(script, "--calls", "4", "--time-limit", "20")
    assert done.returncode == 1
    assert "1 calls measured, 3 failed" in done.stdout, done.stdout + done.stderr
    for why in ("RuntimeError: no kernel", "its process ended with exit code -6", "no result after 20 s"):
        assert why in done.stdout
    assert len(rows(script.parent)) == 2


def test_a_device_that_is_not_there_is_an_error(script: Path) -> None:
    done = run(script, "--device", "npu")
    assert done.returncode == 2
    assert "no device 'npu' here" in done.stderr


def test_what_is_measured_is_kept_when_the_user_stops(script: Path) -> None:
    # So many samples of each call that the script is still at work when the signal arrives.
    process = subprocess.Popen(
        [sys.executable, "-I", script.name, *QUICK, "--samples", "60"],
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in range(600):
        if (script.parent / "measured.csv").exists() and len(rows(script.parent)) >= 2:
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "interrupted: the rows so far are kept" in out, err
    assert "Traceback" not in err
    kept = rows(script.parent)
    assert len(kept) >= 2
    assert all(float(row["torch_us"]) > 0 for row in kept)


def test_a_stop_before_anything_is_measured_is_no_traceback(script: Path) -> None:
    stopped = script.with_name("stopped.py")
    source = script.read_text().replace("    parser, options = parsed()\n", "    raise KeyboardInterrupt\n", 1)
    stopped.write_text(source)
    done = run(stopped)
    assert done.returncode == 1
    assert done.stderr == "interrupted before the first call: nothing was measured\n"


def test_rows_of_a_cpu_are_no_rows_of_an_npu(console: Console, script: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", script.name, "--device", "cpu", "--samples", "2", "--flush-mb", "1", "--calls", "1"],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert "its rows name cpu, not 910b3" in done.stdout
    refused = console(
        "calibrate", script.parent / "measured.csv", "--soc", "910b3", "-o", script.parent / "mine.toml", code=3
    )
    assert "cpu" in refused.stderr
