"""Checks what a wheel holds: every module and data file of the sources, the licence, the compiled reader, and no more.

python check_wheel.py WHEEL [--no-compiler]
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
ROOMS = ("traces", "initializers", "replay", "cli")
KINDS = frozenset({".py", ".j2", ".js", ".toml", ".csv", ".txt", ".gz"})
COMPILED = re.compile(r"opreplay/traces/reading/native/_events\.[\w.-]+\.so")


def wanted(root: Path = ROOT) -> frozenset[str]:
    """The files of the package opreplay, as the sources below `root` have them."""
    names = [
        path.relative_to(root).as_posix()
        for room in ROOMS
        for path in (root / room).rglob("*")
        if path.suffix in KINDS and "__pycache__" not in path.parts
    ]
    return frozenset(f"opreplay/{name.removeprefix('replay/public/')}" for name in names)


def problems(names: list[str], *, compiled: bool = True) -> list[str]:
    """What is wrong with a wheel that holds the files `names`, in words."""
    tops = {PurePosixPath(name).parts[0] for name in names}
    strangers = sorted(top for top in tops if top != "opreplay" and not top.startswith("opreplay-"))
    strangers += sorted(name for name in names if name.startswith("opreplay/replay/public/"))
    missing = sorted(wanted() - set(names))
    if not any(name.endswith("/LICENSE") for name in names):
        missing.append("LICENSE")
    if compiled and not any(COMPILED.fullmatch(name) for name in names):
        missing.append("compiled trace reader")
    return [f"unexpected {name}" for name in strangers] + [f"no {name}" for name in missing]


def main() -> None:
    """Exit with a message unless the wheel named on the command line is sound."""
    found = problems(zipfile.ZipFile(sys.argv[1]).namelist(), compiled="--no-compiler" not in sys.argv[2:])
    if found:
        sys.exit(f"{sys.argv[1]}: {'; '.join(found)}")


if __name__ == "__main__":
    main()
