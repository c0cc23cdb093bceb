# pyright: strict
"""Options for adding a run to a history, and functions that add the finished run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from opreplay.cli.options.settings import setting
from opreplay.cli.options.shared import with_options

if TYPE_CHECKING:
    from opreplay.cli.run_outputs import Outputs

_OPTIONS = [
    click.option(
        "--history", metavar="FILE.sqlite", help="Add the measured times to a history, which `compare --history` reads."
    ),
    setting(
        "--label",
        metavar="TEXT",
        help="Label of this run in --history.  [default: the commit of the current folder]",
    ),
]
GIT_S = 10.0
"""Timeout of a git command, in seconds."""


def history_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --history and the setting `label` to a command."""
    return with_options(command, _OPTIONS)


def refuse_bad_history(history: str | None, label: str | None, *, dry_run: bool) -> None:
    """Raise UsageError, before anything is measured, if no run can be added to the history file."""
    if history is None:
        if label is not None:
            from opreplay.traces.errors import UsageError

            raise UsageError("--set label needs --history", hint="Add --history FILE.sqlite.")
    elif not dry_run:
        from opreplay.replay.results.history import check_history

        check_history(history)


def add_to_history(history: str | None, label: str | None, outputs: Outputs) -> None:
    """Append the finished run to the history, and report this on stderr."""
    summary = outputs.memory.summary
    if history is None or outputs.memory.header is None or summary is None or summary.interrupted:
        return
    from opreplay.cli.terminal.console import narrate
    from opreplay.replay.results.history import append_run

    name = commit() if label is None else label
    count = append_run(history, outputs.memory.header, outputs.memory.results, name)
    narrate(f"opreplay: {count:,} times added to {history}" + (f" as {name}" if name else ""))


def commit() -> str:
    """Return the commit checked out in the current folder, or $GITHUB_SHA; "" if there is neither."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--verify", "HEAD"], capture_output=True, text=True, check=True, timeout=GIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("GITHUB_SHA", "")
    return done.stdout.strip()
