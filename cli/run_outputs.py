# pyright: strict
"""Files of a run's --output: opened before anything is measured, and written op by op if the format allows."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from opreplay.cli.outputs import FORMS, PAGES, check_writable, open_file
from opreplay.cli.terminal import console
from opreplay.replay.report.run import report
from opreplay.replay.report.run.tables import run_of
from opreplay.replay.results.reading import MemorySink, ResultFile
from opreplay.replay.results.records import LINES, OpResult, Record
from opreplay.replay.results.writing import JsonLinesSink
from opreplay.traces.errors import EnvironmentRefused, UsageError


class Outputs:
    """Keeps the records of a run and writes them to all files that the user requested.

    No file is created before the first record arrives. A run that cannot start thus leaves no files.
    """

    def __init__(self, names: Sequence[str], *, force: bool, resume: bool = False) -> None:
        """Check the file names; with `resume`, load the earlier results of the run from the .jsonl file.

        Raises UsageError for a suffix without a format, a file given twice, and an existing file that is not resumed.
        With `resume`, also raises it unless there is exactly one .jsonl file. Raises FormatError if that file is not a
        result file.
        """
        self.memory = MemorySink()
        self.earlier: ResultFile | None = None
        """Contents of the result file to resume; None for a new run."""
        self.to_stdout = "-" in names
        self._paths = _paths_of(names)
        self.results: Path | None = None
        """The .jsonl file from which --resume could continue; None unless the outputs include exactly one."""
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
        """Drop the results loaded from the file to resume if no record was added. Reports and pages then omit them."""
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
                open_file(path, "ab" if path in self._replaced else "xb").close()
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

    Raises UsageError for a suffix without a format and for a file that is given twice, even under two names.
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


ROOM_BYTES = 1 << 20
"""Free disk space required for a page, in bytes; most pages need less.

It is checked before the run, because the page is written only after all measurements.
"""


def _refuse_full_disk(path: Path) -> None:
    """Raise EnvironmentRefused if the disk has no space for a page, which is written at the end of the run."""
    free = shutil.disk_usage(path.absolute().parent).free
    if free < ROOM_BYTES:
        raise EnvironmentRefused(
            f"not enough space for {path}: only {free // 1024} KiB are free",
            hint="Free some space, or name a file on another disk.",
        )


def _write_report(path: Path, text: str, *, lines: Path | None) -> None:
    """Write a page at the end of a run.

    `lines` is the .jsonl file that also holds the results, or None. Raises EnvironmentRefused with a hint on how to
    create the page later.
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
