"""The files of --output: checked early, opened before anything is measured, written op by op where the format can."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from opreplay.replay.report import csv_, markdown
from opreplay.replay.result_lines import JsonLinesSink
from opreplay.replay.results import Header, MemorySink, OpResult, Record, Summary
from opreplay.traces.errors import UsageError

Render = Callable[[Header, Sequence[OpResult], Summary], str]

PAGES: dict[str, Render] = {".csv": csv_.render, ".md": markdown.render}
"""Suffix → format that is written as a whole at the end."""
LINES = (".jsonl", ".ndjson")
"""Suffixes of JSON Lines, which are written op by op."""


class Outputs:
    """A sink for the records of a run that keeps them and writes them to every file asked for.

    Nothing is created before the first record arrives, so a run that cannot start leaves no files.
    """

    def __init__(self, names: Sequence[str], *, force: bool) -> None:
        """Check names. Raises UsageError for a suffix without a format, a file named twice or one that exists."""
        self.memory = MemorySink()
        self.to_stdout = "-" in names
        self._paths = [Path(name) for name in names if name != "-"]
        self._force = force
        self._lines: list[JsonLinesSink] = []
        if len(set(names)) < len(names):
            raise UsageError("the same --output is given twice")
        for path in self._paths:
            if path.suffix.lower() not in (*PAGES, *LINES):
                raise UsageError(
                    f"no output format for {path.name}",
                    hint=f"Suffixes are {', '.join((*LINES, *PAGES))}; - is stdout.",
                )
            check_writable(path, force=force)

    def write(self, record: Record) -> None:
        """Pass one record on to the files, opening them for the first one."""
        if self.memory.header is None:
            self._open()
        self.memory.write(record)
        for sink in self._lines:
            sink.write(record)

    def _open(self) -> None:
        for path in self._paths:
            if path.suffix.lower() in LINES:
                self._lines.append(JsonLinesSink.open(path, force=self._force))
            else:
                write_file(path, "", force=self._force)
        if self.to_stdout:
            self._lines.append(JsonLinesSink(sys.stdout.buffer))

    def __enter__(self) -> Outputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink in self._lines:
            sink.close()
        header, summary = self.memory.header, self.memory.summary
        if header is None or summary is None:
            return
        for path in self._paths:
            render = PAGES.get(path.suffix.lower())
            if render is not None:
                write_file(path, render(header, self.memory.results, summary), force=True)


def check_writable(path: Path, *, force: bool) -> None:
    """Raises UsageError when `path` exists and may not be overwritten, or its folder does not exist."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="Name another file, or overwrite it with --force.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}", hint="Name a file in a folder that exists.")


def write_file(path: Path, text: str, *, force: bool) -> None:
    """Write a whole text file, UTF-8. Raises UsageError when it exists without `force`, or cannot be written."""
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n", errors="backslashreplace") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists", hint="Name another file, or overwrite it with --force.") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="Check the folder and its rights.") from None
