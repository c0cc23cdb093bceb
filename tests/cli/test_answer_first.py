"""Line 1 of every command is the answer with the name of the trace; tables hold what matters; pipes get everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.traces.samples import sample_path
from tests.replay.timeline.machine import training

SAMPLE = str(sample_path("transformer_infer"))


def invoke(*args: str, columns: str | None = "80") -> Result:
    done = CliRunner(env={"COLUMNS": columns}).invoke(opreplay, [*args])
    assert done.exit_code == 0, done.stderr
    return done


def lines(*args: str, columns: str | None = "80") -> list[str]:
    return invoke(*args, columns=columns).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "timeline", "simulate", "plan"])
def test_line_one_names_the_trace(command: str) -> None:
    assert lines(command, SAMPLE)[0].startswith("transformer_infer")


def test_a_what_if_is_line_one(tmp_path: Path) -> None:
    path = training().write(tmp_path / "job.json")
    first, second, *_ = lines("timeline", str(path), "--what-if", "aten::mm=0.5x")
    assert first.startswith("job: with aten::mm=0.5x the step takes 2.41 ms instead of 3.61 ms, 33.3 % less (")
    assert second.startswith("job is device-bound: ")


def test_rows_that_matter_are_shown_unless_all_are_asked_for() -> None:
    short, whole = lines("plan", SAMPLE), lines("plan", SAMPLE, "--all")
    assert len(short) <= 35
    assert any("69 more ops, 6.4 %; --all shows them" in line for line in short)
    assert sum("aten::" in line for line in whole) == 89


def test_a_pipe_gets_every_column_in_one_line() -> None:
    narrow, piped = lines("plan", SAMPLE), lines("plan", SAMPLE, columns=None)
    assert "hidden at a width of 80 columns: count, bound, memory" in " ".join(narrow)
    head = next(line.split() for line in piped if line.startswith("id "))
    assert {"count", "bound", "memory"} <= set(head)
    assert not any("…" in line for line in piped if "aten::" in line)
