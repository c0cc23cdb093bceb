# pyright: strict
"""Files of options that the user has read and trusts: remembered by their place and content, so that an edit ends it.

Owns what is remembered, in the user's state folder. Which options need trust is `settings`' concern.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from hashlib import sha256
from pathlib import Path


def folder() -> Path:
    """`$XDG_STATE_HOME/opreplay/trusted`, or below `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the specification: relative ones are ignored
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "opreplay" / "trusted"


def trust(path: Path, content: bytes) -> None:
    """Remember a file as it is now. Raises OSError."""
    place = folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _private(place):
        raise PermissionError(0, "others may write there", str(place))
    mark = os.open(place / _key(path, content), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(mark, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{path.resolve()}\n")


def is_trusted(path: Path, content: bytes) -> bool:
    """Whether the user has said so of this very content at this place."""
    with suppress(OSError):
        return _private(folder()) and (folder() / _key(path, content)).is_file()
    return False


def _private(place: Path) -> bool:
    """Whether a folder is the user's, and nobody else's to write in."""
    status = place.stat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _key(path: Path, content: bytes) -> str:
    return sha256(os.fsencode(path.resolve()) + b"\0" + content).hexdigest()
