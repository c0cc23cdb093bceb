"""`run --history` and `compare --history`: labels, what is refused before a run, forms and exit codes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.cli.options.history import commit
from opreplay.replay.results.history import append_run, read_history
from opreplay.replay.results.records import Header, OpResult
from opreplay.traces.samples import sample_path
from tests.replay.results.compare.test_changes import noise

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

FEW = (str(sample_path("transformer_infer")), "--top", "2", "--set", "op_time=2ms", "--set", "threads=1")


def compare(*args: str) -> Result:
    return CliRunner().invoke(opreplay, ["compare", *args], env={"COLUMNS": "100"})


@pytest.fixture
def nights(tmp_path: Path) -> str:
    """30 nights of two ops, one slower by a fifth from the 20th on."""
    path, slower, same = str(tmp_path / "h.sqlite"), noise(0, scatter=0.02), noise(1, scatter=0.02)
    slower[20:] *= 1.2
    for night, times in enumerate(zip(slower, same, strict=True)):
        header = Header(
            opreplay_version="0",
            started_at=f"2026-01-{night + 1:02d}T02:00:00",
            trace={},
            environment={"cpu": "made up"},
            options={},
        )
        names = ("aten::evil[red]\x1b[31m|", "aten::add")
        results = [
            OpResult(id=f"{i:012x}", name=name, count=1, status="replayed", measured_us=float(us))
            for i, (name, us) in enumerate(zip(names, times, strict=True))
        ]
        append_run(path, header, results, f"commit{night}")
    return path


def test_the_change_is_shown_in_every_form(nights: str) -> None:
    done = compare("--history", nights)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("history of 2 ops in up to 30 runs: 1 changed, 1 without a change")
    assert "commit20, 2026-01-21 02:00" in done.stdout
    assert "\x1b[31m" not in done.stdout
    answer: dict[str, Any] = json.loads(compare("--history", nights, "--format", "json").stdout)
    (change,) = answer["ops"][0]["changes"]
    assert (change["at"], change["label"], answer["ops"][1]["changes"]) == (20, "commit20", [])
    assert change["ratio"] == pytest.approx(1.2, rel=0.02)
    text = compare("--history", nights, "--format", "markdown").stdout
    assert text.startswith("### opreplay: history of 2 ops")
    assert "| commit20, 2026-01-21 02:00 |" in text


def test_a_build_can_fail_on_it(nights: str, tmp_path: Path) -> None:
    assert compare("--history", nights, "--fail-if", "slower>30%").exit_code == 0
    slower = compare("--history", nights, "--fail-if", "slower>5%")
    assert slower.exit_code == 5
    assert "since commit20" in slower.stderr
    few = str(tmp_path / "few.sqlite")
    header = Header(opreplay_version="0", started_at="2026", trace={}, environment={}, options={})
    append_run(few, header, [OpResult(id="0", name="aten::mm", count=1, status="replayed", measured_us=1.0)])
    untested = compare("--history", few, "--fail-if", "slower>5%")
    assert untested.exit_code == 6
    assert "1 with fewer than 6 runs" in untested.stdout


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        (("a.jsonl",), "BEFORE does not go with --history"),
        (("--times", "recorded:910b3"), "--times does not go"),
        (("--output", "x.html"), "--output does not go"),
        (("--fail-if", "total>3%"), "needs two runs"),
    ],
)
def test_what_is_for_two_runs_is_refused(nights: str, more: tuple[str, ...], wrong: str) -> None:
    done = compare("--history", nights, *more)
    assert done.exit_code == 2
    assert wrong in done.stderr


def test_a_file_that_is_no_history(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_text("text")
    done = compare("--history", str(tmp_path / "x.sqlite"))
    assert done.exit_code == 3
    assert "is not an opreplay history" in done.stderr
    assert compare().exit_code == 2


def run(*args: str) -> Result:
    return CliRunner().invoke(opreplay, ["run", *FEW, *args], env={"OPREPLAY_SHARED_DEVICE": "1"})


def test_runs_are_added_with_their_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "h.sqlite")
    done = run("--history", path, "--set", "label=v1")
    assert done.exit_code == 0, done.output
    assert f"2 times added to {path} as v1" in done.stderr
    batch = CliRunner().invoke(
        opreplay,
        ["batch", *FEW, "--history", path, "--set", "label=v2"],
        env={"OPREPLAY_SHARED_DEVICE": "1"},
    )
    assert batch.exit_code == 0, batch.output
    assert {tuple(point.label for point in series.points) for series in read_history(path)} == {("v1", "v2")}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_SHA", "ab12")
    assert commit() == "ab12"
    monkeypatch.delenv("GITHUB_SHA")
    assert commit() == ""
    subprocess.run(["git", "init", "-q"], check=True)
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *name, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    assert len(commit()) == 40


def test_a_bad_file_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_text("text")
    done = run("--history", str(tmp_path / "x.sqlite"))
    assert done.exit_code == 2
    assert not done.stdout
    alone = run("--set", "label=v1")
    assert alone.exit_code == 2
    assert "Add --history" in alone.stderr
