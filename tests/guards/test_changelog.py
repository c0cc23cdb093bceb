"""The changelog follows the version, in the form of keepachangelog.com."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_changelog_has_a_section_for_what_is_not_released_and_for_this_version(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text()
    version = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert any(heading.startswith(version[1]) for heading in headings) or version[1] in text
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
