# pyright: strict
"""Folders whose files an assistant may read. Only a function here turns the assistant's text into paths to open."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opreplay.traces.errors import UsageError
from opreplay.traces.folders import is_inside

MOST_ENTRIES = 5_000
"""Maximum number of folder entries examined when files are listed."""
KINDS = (".json", ".json.gz", ".jsonl", ".toml", ".csv", ".txt")
HINT = "Use a file name that the tool `files` lists."


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Folders whose files an assistant may read, as resolved paths."""

    paths: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> Folders:
        """Resolve folder names. Raises UsageError for a name that is not a folder, and if there are no names."""
        missing = next((name for name in names if not os.path.isdir(name)), None)
        if missing is not None or not names:
            raise UsageError(
                f"{missing or 'nothing'} is not a folder", hint="Name the folders that the server may read."
            )
        return cls(paths=tuple(dict.fromkeys(os.path.realpath(name) for name in names)))

    def file(self, text: str) -> str:
        """Return the resolved path of a regular file in one of the folders.

        A relative name is tried in each folder. For any other path, raises a UsageError that does not reveal whether a
        file of that name exists outside the folders.
        """
        for folder in self.paths:
            try:
                path = os.path.realpath(os.path.join(folder, text), strict=True)
                regular = stat.S_ISREG(os.stat(path).st_mode)
            except (OSError, ValueError):
                continue
            if regular and is_inside(path, self.paths):
                return path
        raise UsageError(f"file {text!r:.200} does not exist in the folders that may be read", hint=HINT)

    def device(self, text: str) -> str:
        """Return a device name unchanged, or the path of a device file in the folders.

        Raises UsageError for a file elsewhere.
        """
        return self.file(text) if "/" in text or os.sep in text or text.endswith(".toml") else text

    def function(self, text: str) -> str:
        """Return an op name unchanged; in "file.py:function", replace the file name by its path in the folders.

        Raises UsageError for a file elsewhere.
        """
        path, colon, function = text.rpartition(":")
        return f"{self.file(path)}:{function}" if colon and path.endswith(".py") else text

    def shown(self, path: str) -> str:
        """Return a path relative to the allowed folder that contains it, as an assistant would write it."""
        folder = next((folder for folder in self.paths if is_inside(path, (folder,))), None)
        return path if folder is None else os.path.relpath(path, folder)

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield (name, bytes) of each file that may be a trace, plan, result or device file.

        Links that lead out of the folders are skipped.
        """
        seen = 0
        for folder in self.paths:
            for parent, folders, names in os.walk(folder):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for name in sorted(names):
                    seen += 1
                    if seen > MOST_ENTRIES:
                        return
                    path = Path(parent, name)
                    if (
                        name.lower().endswith(KINDS)
                        and path.is_file()
                        and is_inside(os.path.realpath(path), self.paths)
                    ):
                        yield os.path.relpath(path, folder), path.stat().st_size
