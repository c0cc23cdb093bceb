"""The changelog says on one page what each release does, in the form of keepachangelog.com."""

from __future__ import annotations

import re
from pathlib import Path

SIZE_BYTES = 6_000
"""What fits on one page. Fixes of what no release had are in the history of the repository."""


def test_the_changelog_has_a_section_for_this_version(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text()
    version = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert any(re.match(rf"{re.escape(version[1])}\b", heading) for heading in headings)
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_each_version_takes_one_page(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text()
    sizes = {part.partition("\n")[0]: len(part.encode()) for part in re.split(r"^## ", text, flags=re.MULTILINE)}
    too_long = {heading: size for heading, size in sizes.items() if size > SIZE_BYTES}
    assert not too_long, (
        f"shorten them to {SIZE_BYTES} bytes, and leave out fixes to what was never released: {too_long}"
    )
    assert len(text.encode()) <= SIZE_BYTES * (len(sizes) - 1), "the introduction is too long"


def test_the_changelog_names_commands_that_exist(root: Path) -> None:
    named = set(re.findall(r"^\* `(\w+)`(?: and `(\w+)`)?:", (root / "CHANGELOG.md").read_text(), re.MULTILINE))
    commands = {path.stem for path in (root / "cli" / "commands").glob("*.py")}
    assert named
    assert {name for pair in named for name in pair if name} <= commands
