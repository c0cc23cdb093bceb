"""Design decisions are numbered once and without gaps, and the documentation lists all of them."""

from __future__ import annotations

import re
from pathlib import Path


def test_each_number_stands_for_one_decision(root: Path) -> None:
    paths = sorted((root / "docs" / "decisions").iterdir())
    assert [path.name[:5] for path in paths] == [f"{number:04}-" for number in range(1, len(paths) + 1)]


def test_each_title_begins_with_the_number_of_its_file(root: Path) -> None:
    for path in sorted((root / "docs" / "decisions").iterdir()):
        assert path.read_text().startswith(f"# {path.name[:4]}: "), path.name


def test_the_index_takes_every_file_of_the_folder(root: Path) -> None:
    index = (root / "docs" / "index.md").read_text()
    blocks = re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
    assert any(":glob:" in block and "decisions/*" in block.split() for block in blocks)


def test_links_to_decisions_lead_to_one(root: Path) -> None:
    pages = [root / "README.md", root / "AGENTS.md", root / "SECURITY.md", *(root / "docs").rglob("*.md")]
    for page in pages:
        for name in re.findall(r"\]\((?:[\w./]*decisions/|(?=\d{4}-))([\w-]+\.md)", page.read_text()):
            assert (root / "docs" / "decisions" / name).is_file(), f"{page.name}: {name}"
