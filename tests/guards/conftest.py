"""What the guard tests look at: every source file by module name, parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("traces", "initializers", "replay", "cli")
"""The top-level packages, each of which may import itself and those to its left."""

PUBLIC = ("replay", "public")
"""The folder that is imported as `opreplay` itself."""


class Source(NamedTuple):
    """One file of the library."""

    module: str
    path: Path
    text: str
    tree: ast.Module

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions and methods, nested ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def sources() -> tuple[Source, ...]:
    """Every source file of the library."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(_parse(path) for path in paths)


@pytest.fixture(scope="session")
def test_sources() -> tuple[Source, ...]:
    """Every test file."""
    return tuple(_parse(path) for path in sorted((ROOT / "tests").rglob("*.py")))


@pytest.fixture(scope="session")
def docs_text() -> str:
    """All hand-written documentation, in one text."""
    return "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])


def _parse(path: Path) -> Source:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[: len(PUBLIC)] == PUBLIC:
        parts = parts[len(PUBLIC) :]
    module = ".".join(("opreplay", *(parts[:-1] if parts[-1] == "__init__" else parts)))
    text = path.read_text()
    return Source(module, path, text, ast.parse(text))
