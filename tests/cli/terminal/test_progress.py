"""Progress where stderr is no terminal, and where it is one."""

from __future__ import annotations

import io
import sys

import pytest

from opreplay.cli.terminal import progress
from opreplay.replay.job.events import Progress


def step(done: int, current: str | None = "aten::mm", remaining: float | None = 65.0) -> Progress:
    return Progress(done=done, total=4, current=current, elapsed_s=1.25, remaining_s=remaining)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (3.2, "3 s left"), (59.7, "1 min 00 s left"), (125, "2 min 05 s left"), (-1, "0 s left")],
)
def test_time_left(seconds: float | None, text: str) -> None:
    assert progress.left(seconds) == text


def test_plain_lines_are_few_and_the_last_one_is_always_there(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.RunProgress() as update:
        for done in range(4):
            update(step(done))
        update(step(4, current=None))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "0/4 ops" in lines[0]
    assert "1 min 05 s left" in lines[0]
    assert "4/4 ops in 1.2 s" in lines[1]


def test_a_budget_that_is_too_little_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.RunProgress() as update:
        update(Progress(done=1, total=99, current="aten::mm", elapsed_s=1.0, remaining_s=89.0, cut=True))
    assert "1/99 ops  1 min 29 s left of --set total_time, too little for all" in capsys.readouterr().err


def test_op_names_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.RunProgress() as update:
        update(step(0, current="a\x1b[2J"))
    assert "\x1b" not in capsys.readouterr().err


def test_a_terminal_gets_a_bar_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress.RunProgress() as update:
        update(step(2, current="[red]x"))
    written = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "2/4 ops  1 min 05 s left" in written
    assert "[red]x" in written
    assert "━" in written


def test_reading_tells_nothing_of_short_reads(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.ReadProgress() as update:
        update(10**6, 10**7)
    assert capsys.readouterr().err == ""


def test_reading_tells_megabytes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    with progress.ReadProgress() as update:
        update(5 * 10**6, 10**7)
        update(6 * 10**6, None)
    assert capsys.readouterr().err.splitlines() == ["reading  5 of 10 MB", "reading  6 MB"]


def test_a_batch_tells_the_time_left_while_it_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with progress.FilesProgress() as update:
        now[0] = 10.0
        update(2, 8)
    assert capsys.readouterr().err == "reading  2 of 8 traces  30 s left\n"
