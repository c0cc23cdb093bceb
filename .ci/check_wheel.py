"""Checks what a wheel holds: the package opreplay with its samples and device files, the licence, and nothing else."""

from __future__ import annotations

import sys
import zipfile
from pathlib import PurePosixPath

REQUIRED = (
    "/LICENSE",
    "opreplay/__init__.py",
    "opreplay/tracelens.py",
    "traces/samples/transformer_infer.json.gz",
    "replay/ascend/devices/910b3.toml",
    "replay/ascend/devices/fitted.csv",
    "cli/main.py",
)


def problems(names: list[str]) -> list[str]:
    """What is wrong with a wheel that holds the files `names`, in words."""
    tops = {PurePosixPath(name).parts[0] for name in names}
    strangers = sorted(top for top in tops if top != "opreplay" and not top.startswith("opreplay-"))
    strangers += sorted(name for name in names if name.startswith("opreplay/replay/public/"))
    missing = [wanted for wanted in REQUIRED if not any(name.endswith(wanted) for name in names)]
    return [f"unexpected top-level entry {top}" for top in strangers] + [f"no file {wanted}" for wanted in missing]


def main() -> None:
    """Exit with a message unless the wheel named on the command line is sound."""
    found = problems(zipfile.ZipFile(sys.argv[1]).namelist())
    if found:
        sys.exit(f"{sys.argv[1]}: {'; '.join(found)}")


if __name__ == "__main__":
    main()
