"""What a package exports is what it says it exports, and its __init__ holds names only."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator

import pytest

from opreplay.replay.ascend.custom.estimators import clear_registrations

MOST_LINES = 60


LAZY = ("opreplay", "opreplay.replay", "opreplay.replay.ascend")
"""Packages whose names are looked up when they are used: these have functions for it, and are tested by themselves."""


def packages(sources):
    return [source for source in sources if source.path.name == "__init__.py"]


@pytest.fixture
def no_programs() -> Iterator[None]:
    """Tile programs that come with the product are costs of their ops once they are imported: here alone."""
    yield
    clear_registrations()


@pytest.mark.usefixtures("no_programs")
def test_all_is_what_can_be_imported_from_the_package(sources) -> None:
    for source in packages(sources):
        package = importlib.import_module(source.module)
        listed = getattr(package, "__all__", [])
        assert list(listed) == sorted(set(listed), key=lambda name: (name != name.upper(), name[0].islower(), name)), (
            f"{source.module}.__all__ is not in order: constants, classes, functions"
        )
        if source.module in LAZY:
            continue
        public = {
            name
            for name, value in vars(package).items()
            if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
        }
        assert public == set(listed), f"add to, or remove from, {source.module}.__all__: {public ^ set(listed)}"


@pytest.mark.parametrize("name", LAZY)
def test_the_names_of_a_package_are_those_that_it_says(sources, name: str) -> None:
    """`__all__`, what can be imported and what type checkers see are one list."""
    package = importlib.import_module(name)
    (root,) = (source for source in sources if source.module == name)
    (typing_only,) = (node for node in root.tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: f"{node.module}.{alias.name}"
        for node in typing_only.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(package.__all__) == seen.keys() == package._HOMES.keys()
    for each, home in seen.items():
        module, _, attribute = home.rpartition(".")
        assert getattr(package, each) is getattr(importlib.import_module(module), attribute), each
        assert package._HOMES[each] == module.removeprefix("opreplay."), each
    with pytest.raises(AttributeError, match="no attribute 'measure_all'"):
        package.measure_all  # noqa: B018


@pytest.mark.parametrize("name", LAZY)
def test_names_that_are_looked_up_are_listed(name: str) -> None:
    package = importlib.import_module(name)
    assert set(package.__all__) <= set(dir(package))


def test_rooms_are_no_public_names() -> None:
    import opreplay

    assert {"replay", "traces", "cli", "initializers", "torch_ir", "tracelens"}.isdisjoint(opreplay.__all__)


def test_the_folder_of_opreplay_holds_names_only(sources) -> None:
    """No function but those that look a name up, and nothing that a wheel would have to know more of."""
    for source in (one for one in sources if one.path.parent.name == "public"):
        functions = {node.name for node in source.functions()}
        assert functions <= {"__getattr__", "__dir__"}, source.path
        assert not any(isinstance(node, ast.ClassDef) for node in ast.walk(source.tree)), source.path


def test_init_files_hold_names_only(sources) -> None:
    for source in packages(sources):
        if source.module in LAZY:
            continue
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
