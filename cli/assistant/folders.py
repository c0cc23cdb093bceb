# pyright: strict
"""The folders whose files an assistant may name, and the one way from a text that it sends to a path that is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opreplay.traces.errors import UsageError
from opreplay.traces.folders import is_inside

MOST_ENTRIES = 5_000
"""Entries of the folders that are looked at for a list of files."""
KINDS = (".json", ".json.gz", ".jsonl", ".toml", ".csv", ".txt")
HINT = "Name a file as the tool `files` does."


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Real paths of folders."""

    paths: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> Folders:
        """Raises UsageError for a name that is no folder."""
        missing = next((name for name in names if not os.path.isdir(name)), None)
        if missing is not None or not names:
            raise UsageError(f"{missing or 'nothing'} is no folder", hint="Name the folders that may be read.")
        return cls(paths=tuple(dict.fromkeys(os.path.realpath(name) for name in names)))

    def file(self, text: str) -> str:
        """The real path of a regular file in one of the folders; relative names are looked up in each.

        Raises UsageError for all else, in the same words whether or not there is such a file outside.
        """
        for folder in self.paths:
            try:
                path = os.path.realpath(os.path.join(folder, text), strict=True)
                regular = stat.S_ISREG(os.stat(path).st_mode)
            except (OSError, ValueError):
                continue
            if regular and is_inside(path, self.paths):
                return path
        raise UsageError(f"there is no file {text!r:.200} in the folders that may be read", hint=HINT)

    def device(self, text: str) -> str:
        """A simulated device: a name, or a device file in the folders. Raises UsageError for a file elsewhere."""
        return self.file(text) if "/" in text or os.sep in text or text.endswith(".toml") else text

    def function(self, text: str) -> str:
        """An op, or "file.py:function" with a file in the folders. Raises UsageError for a file elsewhere."""
        path, colon, function = text.rpartition(":")
        return f"{self.file(path)}:{function}" if colon and path.endswith(".py") else text

    def shown(self, path: str) -> str:
        """A path as an assistant names it: relative to its folder."""
        folder = next((folder for folder in self.paths if is_inside(path, (folder,))), None)
        return path if folder is None else os.path.relpath(path, folder)

    def files(self) -> Iterator[tuple[str, int]]:
        """(name, bytes) of each file that may be a trace, plan, result or device; links to elsewhere are left out."""
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
