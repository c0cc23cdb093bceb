"""What a package exports is what it says it exports, and its __init__ holds names only."""

from __future__ import annotations

import ast
import importlib
import inspect
import re

MOST_LINES = 60


def packages(sources):
    return [source for source in sources if source.path.name == "__init__.py"]


def test_all_is_what_can_be_imported_from_the_package(sources) -> None:
    for source in packages(sources):
        package = importlib.import_module(source.module)
        listed = getattr(package, "__all__", [])
        assert list(listed) == sorted(set(listed), key=lambda name: (name != name.upper(), name[0].islower(), name)), (
            f"{source.module}.__all__ is not in order: constants, classes, functions"
        )
        public = {
            name
            for name, value in vars(package).items()
            if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
        }
        assert public == set(listed), source.module


def test_init_files_hold_names_only(sources) -> None:
    for source in packages(sources):
        assert len(source.text.splitlines()) <= MOST_LINES, source.path
        allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
        assert all(isinstance(node, allowed) for node in source.tree.body), f"{source.path} holds more than names"


def test_every_package_is_in_the_wheel(sources, root) -> None:
    text = (root / "pyproject.toml").read_text()
    missing = [source.module for source in packages(sources) if f'"{source.module}",' not in text]
    assert not missing, f"list them in pyproject.toml: {missing}"
    listed = set(re.findall(r'^  "(opreplay[.\w]*)",$', text, re.MULTILINE))
    assert listed == {source.module for source in packages(sources)}, "pyproject.toml lists packages that are gone"


def test_every_folder_with_code_is_a_package(sources) -> None:
    folders = {source.path.parent for source in sources}
    assert all((folder / "__init__.py").is_file() for folder in folders)
