# pyright: strict
"""Files of --output: checked early, opened before anything is measured, and written op by op if the format allows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, cast

import click

from opreplay.cli.terminal import console
from opreplay.replay.report.run import report
from opreplay.replay.report.run.tables import run_of
from opreplay.replay.report.view import View
from opreplay.replay.results.reading import MemorySink, ResultFile
from opreplay.replay.results.records import OpResult, Record
from opreplay.replay.results.writing import LINES, JsonLinesSink
from opreplay.traces.errors import EnvironmentRefused, UsageError

FORMS = {".csv": "csv", ".md": "markdown", ".html": "html", ".json": "json"}
"""File suffix → output format of a view."""
PAGES = (".csv", ".md", ".html")
"""Suffixes of files that a run writes as a whole at its end."""


class Outputs:
    """Sink that keeps the records of a run and writes them to every requested file.

    Nothing is created before the first record arrives, so a run that cannot start leaves no files.
    """

    def __init__(self, names: Sequence[str], *, force: bool, resume: bool = False) -> None:
        """Check the file names; with `resume`, open the .jsonl file that holds part of the run.

        Raises UsageError for a suffix without a format, a file given twice, an existing file (other than the one to
        resume), and for `resume` without exactly one .jsonl. Raises FormatError if that .jsonl is not a result file.
        """
        self.memory = MemorySink()
        self.earlier: ResultFile | None = None
        """Existing part of the run to resume; None for a new run."""
        self.to_stdout = "-" in names
        self._paths = _paths_of(names)
        self.results: Path | None = None
        """The only .jsonl file, from which --resume could continue."""
        self._lines: list[JsonLinesSink] = []
        self._opened = False
        lines = [path for path in self._paths if path.suffix.lower() in LINES]
        self.results = lines[0] if len(lines) == 1 else None
        if resume and len(lines) != 1:
            raise UsageError("--resume needs exactly one --output FILE.jsonl, the file to resume")
        # A run that was killed leaves its pages empty, and maybe a file of lines without a whole one.
        self._replaced = {path for path in self._paths if force or (resume and not has_a_line(path))}
        for path in self._paths:
            if not resume or path not in lines:
                check_writable(path, force=path in self._replaced)
        if resume and has_a_line(lines[0]):
            self._continue(lines[0])

    def _continue(self, path: Path) -> None:
        """Reopen a result file and load its results."""
        sink, self.earlier = JsonLinesSink.reopen(path)
        self._lines.append(sink)
        self._paths.remove(path)
        self.memory.take(self.earlier)

    def forget(self) -> None:
        """Drop the results loaded from the file to resume if nothing was added, so that reports and pages omit them."""
        if not self._opened:
            self.memory = MemorySink()

    @property
    def was_finished(self) -> bool:
        """Check whether the run to resume had nothing left to do."""
        return self.earlier is not None and not self._opened

    def write(self, record: Record) -> None:
        """Write one record to the files; the first record opens them."""
        if not self._opened:
            self._open()
        if not isinstance(record, OpResult):
            self.memory.write(record)
        for sink in self._lines:
            with console.naming_stdout():
                sink.write(record)
        if isinstance(record, OpResult):
            # Only now: a report counts no op that the files have no room for.
            self.memory.write(record)

    def _open(self) -> None:
        self._opened = True
        for path in self._paths:
            if path.suffix.lower() in LINES:
                self._lines.append(JsonLinesSink.open(path, force=path in self._replaced))
            else:
                _refuse_full_disk(path)
                # A page that is replaced keeps its contents until the new one is written.
                _open_file(path, "ab" if path in self._replaced else "xb").close()
        if self.to_stdout:
            sink = JsonLinesSink(console.stdout().buffer)
            for record in self.memory.records():
                sink.write(record)
            self._lines.append(sink)

    def __enter__(self) -> Outputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink in self._lines:
            sink.close()
        if kind is KeyboardInterrupt and not self._opened:
            console.narrate("opreplay: nothing was measured yet, and no file was written")
        run = run_of(self.memory)
        if run is None:
            return
        for path in self._paths:
            if (suffix := path.suffix.lower()) in PAGES:
                text = report.view(run).text(FORMS[suffix], console.command_line())
                _write_report(path, text, lines=self.results)


def _paths_of(names: Sequence[str]) -> list[Path]:
    """Return the paths of the outputs, without "-".

    Raises UsageError for a suffix without a format and for a file given twice, also by two of its names.
    """
    paths = [Path(name) for name in names if name != "-"]
    if len({path.resolve() for path in paths}) < len(paths) or names.count("-") > 1:
        raise UsageError("the same --output file is given twice")
    for path in paths:
        if path.suffix.lower() not in (*PAGES, *LINES):
            known = ", ".join((*LINES, *PAGES))
            raise UsageError(
                f"no output format for the suffix of {path.name}", hint=f"Suffixes are {known}; - is stdout."
            )
    return paths


def has_a_line(path: Path) -> bool:
    """Check whether the file exists and has a complete line. Raises UsageError if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return any(b"\n" in block for block in iter(lambda: stream.read(1 << 20), b""))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="Check the file and its permissions.") from None


def check_writable(path: Path, *, force: bool) -> None:
    """Raise UsageError if `path` exists and may not be overwritten, is what the command reads, or its folder does not
    exist.
    """
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="Name another file, or overwrite it with --force.")
    if _is_input(path):
        raise UsageError(f"this command reads {path}: the file would be lost", hint="Name another file.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}", hint="Name a file in an existing folder.")


def _is_input(path: Path) -> bool:
    """Check whether an argument of the current command names the same file."""
    context = click.get_current_context(silent=True)
    if context is None or not path.exists():
        return False
    arguments = (param.name or "" for param in context.command.params if isinstance(param, click.Argument))
    for argument in arguments:
        value: object = context.params.get(argument)
        names = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
        if any(isinstance(name, str) and os.path.exists(name) and path.samefile(name) for name in names):
            return True
    return False


def check_plan_file(path: Path, *, force: bool) -> None:
    """Raise UsageError for a suffix of another format than JSON, and as `check_writable` does."""
    if path.suffix.lower() in (*PAGES, *LINES):
        raise UsageError(
            f"a plan is written as JSON, not as {path.suffix}",
            hint=f"Name it {path.stem}.json; results of `run` are written as {', '.join((*LINES, *PAGES))}.",
        )
    check_writable(path, force=force)


def write_file(path: Path, text: str, *, force: bool) -> None:
    """Write a text file in UTF-8. Raises UsageError if it exists without `force`, or cannot be written."""
    write_bytes(path, text.encode(errors="backslashreplace"), force=force)


ROOM_BYTES = 1 << 20
"""Free disk space required for a page, in bytes; more than most pages need.

The page is written after all measurements.
"""


def _refuse_full_disk(path: Path) -> None:
    """Raise EnvironmentRefused if the disk has no space for a page that will be written at the end."""
    free = shutil.disk_usage(path.absolute().parent).free
    if free < ROOM_BYTES:
        raise EnvironmentRefused(
            f"not enough space for {path}: only {free // 1024} KiB are free",
            hint="Free some space, or name a file on another disk.",
        )


def _write_report(path: Path, text: str, *, lines: Path | None) -> None:
    """Write a page at the end of a run; its results may also be in the file `lines`.

    Raises EnvironmentRefused with a hint on how to create the page later.
    """
    try:
        path.write_bytes(text.encode(errors="backslashreplace"))
    except OSError as error:
        again = (
            f"`opreplay show {lines}` prints what was measured"
            if lines
            else "with --output FILE.jsonl, each op would have been saved"
        )
        raise EnvironmentRefused(
            f"cannot write {path}: {error.strerror}", hint=f"Free some space, or name another file; {again}."
        ) from None


def _open_file(path: Path, mode: Literal["ab", "wb", "xb"]) -> BinaryIO:
    """Open a file to write. Raises UsageError if it exists and `mode` is "xb", or if it cannot be opened."""
    try:
        return path.open(mode)
    except FileExistsError:
        raise UsageError(f"{path} exists", hint="Name another file, or overwrite it with --force.") from None
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Check the folder and its permissions."
        ) from None


def write_bytes(path: Path, data: bytes, *, force: bool) -> None:
    """Write a file.

    Raises UsageError if it exists without `force` or cannot be opened, EnvironmentRefused if it cannot be written
    completely.
    """
    stream = _open_file(path, "wb" if force else "xb")
    try:
        with stream:
            stream.write(data)
    except OSError as error:
        raise EnvironmentRefused(
            f"cannot write {path}: {error.strerror}", hint="Free some space, or name a file on another disk."
        ) from None


def check_outputs(names: Iterable[str | None], suffixes: Sequence[str] = (".html",), *, force: bool) -> None:
    """Raise UsageError for an output file of another format or one that may not be written; None means no file."""
    for path in map(Path, filter(None, names)):
        if path.suffix.lower() not in suffixes:
            known = f"Suffixes are {', '.join(suffixes)}." if len(suffixes) > 1 else f"The suffix is {suffixes[0]}."
            raise UsageError(f"no output format for the suffix of {path.name}", hint=known)
        check_writable(path, force=force)


def write_view(view: View, names: Iterable[str | None], *, force: bool) -> None:
    """Write a view to each file, in the format of the file's suffix; None means no file."""
    for path in map(Path, filter(None, names)):
        write_file(path, view.text(FORMS[path.suffix.lower()], console.command_line()), force=force)
