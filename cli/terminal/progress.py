# pyright: strict
"""Progress on stderr. A terminal gets a bar with the remaining time, anything else an occasional plain line."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opreplay.cli.terminal.console import make_console, narrate

if TYPE_CHECKING:
    from opreplay.replay.job.events import Event, Progress
    from opreplay.replay.results.records import OpResult

EVERY_S = 5.0
"""Minimum seconds between two plain progress lines."""
NAME_WIDTH = 28
LINE_WIDTH = 100
"""Maximum width of a line if stderr is not a terminal."""


def left(seconds: float | None) -> str:
    """Format the remaining time as "3 s left" or "2 min 05 s left"; "" if it is unknown."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    return f"{whole} s left" if whole < 60 else f"{whole // 60} min {whole % 60:02} s left"


class _Bar:
    """Base class of progress displays.

    While the context is active, it shows a progress bar of rich. If stderr is not a terminal, it prints plain lines.
    """

    bar_after_s = 0.0
    """Delay in seconds before the bar appears; a bar that vanishes at once only flickers."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._next_line = 0.0
        self._bar_from = monotonic() + self.bar_after_s
        self._asked = False
        """Whether it was checked if stderr is a terminal. Only a terminal gets a bar."""

    def __enter__(self) -> Any:
        if not self.bar_after_s:
            self._start_bar()
        return self

    def _start_bar(self) -> None:
        """Create the bar if stderr is a terminal. Imports rich's bars, which most commands end too early to need."""
        from rich.progress import BarColumn, Progress, TextColumn

        self._asked = True
        console = make_console(stderr=True)
        if console.is_terminal and not console.is_dumb_terminal:
            columns = (
                TextColumn("{task.fields[what]}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}", markup=False),
            )
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("", total=None, what="", state="")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _tell(self, done: int, total: int | None, what: str, state: str) -> None:
        """Advance the bar, or print a line if one is due."""
        if not self._asked and monotonic() >= self._bar_from:
            self._start_bar()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, what=what, state=state)
            self._bar.start()
        elif monotonic() >= self._next_line:
            self._next_line = monotonic() + EVERY_S
            narrate("  ".join(part for part in (what, state) if part))


class ReadProgress(_Bar):
    """Progress of reading a trace, in bytes. Without a terminal, the first line is printed after `EVERY_S`."""

    bar_after_s = 0.3

    def __enter__(self) -> Callable[[int, int | None], None]:
        super().__enter__()
        self._next_line = monotonic() + EVERY_S
        return self._update

    def _update(self, done: int, total: int | None) -> None:
        of = f" of {total / 1e6:,.0f} MB" if total else " MB"
        self._tell(done, total, "reading", f"{done / 1e6:,.0f}{of}")


class FilesProgress(_Bar):
    """Progress of reading a batch, in traces. Without a terminal, the first line is printed after `EVERY_S`."""

    bar_after_s = 0.3

    def __enter__(self) -> Callable[[int, int], None]:
        super().__enter__()
        self._next_line = monotonic() + EVERY_S
        started = monotonic()

        def tell(done: int, total: int) -> None:
            rest = (monotonic() - started) / done * (total - done) if done else None
            self._tell(done, total, "reading", f"{done:,} of {total:,} traces  {left(rest)}".rstrip())

        return tell


class SizesProgress(_Bar):
    """Progress of capturing a step at several sizes; without a terminal, one line per size."""

    def __enter__(self) -> Callable[[int, int, str], None]:
        super().__enter__()

        def tell(done: int, total: int, size: str) -> None:
            self._next_line = 0.0
            self._tell(done, total, "capturing", f"{done + 1:,} of {total:,}: {size}")

        return tell


class CheckProgress(_Bar):
    """Progress of a check: the point that is being checked, and the number of trials."""

    def __enter__(self) -> Callable[[str, int, int], None]:
        super().__enter__()
        self._next_line = monotonic() + EVERY_S
        return lambda point, done, total: self._tell(done, total, f"{point:{NAME_WIDTH}}", f"{done:,}/{total:,} trials")


class CasesProgress(_Bar):
    """Number of cases done, with the name of the next case."""

    def __enter__(self) -> Callable[[str], None]:
        super().__enter__()
        self._next_line = monotonic() + EVERY_S
        count = itertools.count()
        return lambda case: self._tell(done := next(count), None, case[:LINE_WIDTH], f"{done:,} cases done")


class RunProgress(_Bar):
    """Progress of a run: number of finished ops, the next op, the remaining time, optionally each finished op."""

    def __init__(self, *, rows: bool | None = None) -> None:
        """Create the display.

        `rows` says where finished ops are shown: True everywhere, False only on a terminal, None nowhere.
        """
        super().__init__()
        self._rows = rows

    def __enter__(self) -> RunProgress:
        super().__enter__()
        return self

    def __call__(self, event: Event) -> None:
        """Update the progress, or show a finished op."""
        from opreplay.replay.job.events import Failed, Measured, Progress, Skipped

        if isinstance(event, Progress):
            self._update(event)
        elif self._rows is not None and isinstance(event, (Measured, Skipped, Failed)):
            self.show(event.result)

    def show(self, result: OpResult) -> None:
        """Show one finished op. An op whose process died is always reported, because the run continues without it."""
        from opreplay.replay.results.outcome import is_lost

        if is_lost(result.reason):
            narrate(f"opreplay: warning: {result.name} {result.inputs}: {result.reason}; --resume tries it again")
        if self._bar is None and not self._rows:
            return
        from opreplay.replay.report.run.ops import live_line

        if self._bar is None:
            narrate(live_line(result, LINE_WIDTH))
        else:
            from rich.text import Text

            self._bar.console.print(Text(live_line(result, self._bar.console.width)), soft_wrap=True)

    def _update(self, now: Progress) -> None:
        from opreplay.replay.report.text import middle, safe

        state = f"{now.done:,}/{now.total:,} ops  {left(now.remaining_s)}"
        state += " of --set total_time, too little for all" if now.cut else ""
        if now.current is None:
            state, self._next_line = f"{now.done:,}/{now.total:,} ops in {now.elapsed_s:.1f} s", 0.0
        name = middle(safe(now.current or "done"), NAME_WIDTH)
        self._tell(now.done, now.total, f"{name:{NAME_WIDTH}}", state)
