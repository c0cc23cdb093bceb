# pyright: strict
"""Writes what commands print into the documents that show it.

    python -m benchmarks.document_outputs [--check] [--no-measure] [DOCUMENT ...]

A block of a document is generated if a comment with the numbers of the lines to show stands above it:

    <!-- shown: 1-3 7 -->
    ```console
    $ opreplay inspect traces/samples/moe_block.json.gz
    ```

Commands run in a folder that holds the bundled samples and the files that the document writes before, at 100 columns.
Lines left out are marked by "…". `--check` changes nothing and exits with 1 where a document differs. With it and with
`--no-measure`, the blocks of commands that measure stay as they are.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md",)
BLOCK = re.compile(r"(<!-- shown: ([\d -]+) -->\n```console\n\$ ([^\n]+)\n)(.*?)(^```)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^`([\w.]+)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
MEASURING = ("run", "op", "check")
"""Commands that print what they measured, which differs from run to run."""


class Shown(NamedTuple):
    """A command of a document, and the lines of its output that the document shows."""

    command: str
    lines: tuple[range, ...]
    """Numbers of lines from 1."""
    text: str

    @property
    def measures(self) -> bool:
        """Whether the output differs from run to run."""
        return self.command.split()[1] in MEASURING


def shown_in(text: str) -> Iterator[Shown]:
    """Return the generated blocks of a document in order."""
    return (_shown(match) for match in BLOCK.finditer(text))


def _shown(match: re.Match[str]) -> Shown:
    bounds = [[int(number) for number in part.split("-")] for part in match[2].split()]
    return Shown(match[3], tuple(range(one[0], one[-1] + 1) for one in bounds), match[4])


def excerpt(output: str, lines: tuple[range, ...]) -> str:
    """Return the lines with these numbers; "…" stands for each gap."""
    every = [line.rstrip() for line in output.splitlines()]
    parts: list[str] = []
    end = 1
    for numbers in lines:
        if numbers.start > end:
            parts.append("…")
        parts += every[numbers.start - 1 : numbers.stop - 1]
        end = numbers.stop
    if end <= len(every):
        parts.append("…")
    return "".join(f"{line}\n" for line in parts)


def output_of(command: str, files: dict[str, str]) -> str:
    """Run a command as a reader in a checkout does, and return what it prints. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("docs", "traces"):
            (folder / name).symlink_to(ROOT / name)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        environment = os.environ | {
            "COLUMNS": "100",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        return subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout


def rewritten(text: str, *, measuring: bool = True) -> str:
    """Return a document with the outputs of its commands, those that measure included or left as they are."""
    files = dict(FILE.findall(text))

    def replaced(match: re.Match[str]) -> str:
        block = _shown(match)
        if block.measures and not measuring:
            return match[0]
        return f"{match[1]}{excerpt(output_of(block.command, files), block.lines)}{match[5]}"

    return BLOCK.sub(replaced, text)


def main() -> int:
    """Write or check documents; return the exit status."""
    check = "--check" in sys.argv
    measuring = not check and "--no-measure" not in sys.argv
    changed = 0
    for name in [name for name in sys.argv[1:] if not name.startswith("--")] or DOCUMENTS:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        new = rewritten(text, measuring=measuring)
        if new != text:
            changed += 1
            print(f"{name}: {'differs from what is printed' if check else 'written'}")
            if not check:
                path.write_text(new, encoding="utf-8")
    return int(changed and check)


if __name__ == "__main__":
    sys.exit(main())
