"""Rooms stay in order: imports go down only, in no circle, and a folder holds what one can take in at a glance."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

ROOMS = (
    "traces",
    "initializers",
    "replay.host",
    "replay.collectives",
    "replay.ir",
    "replay.arguments",
    "replay.ops",
    "replay.results",
    "replay.resolve",
    "replay.plan",
    "replay.export",
    "replay.ascend",
    "replay.tile",
    "replay.timeline",
    "replay.plugins",
    "replay.execute",
    "replay.check",
    "replay.report",
    "replay.capture",
    "replay.job",
    "replay.batch",
    "replay.session",
    "replay.testing",
    "replay",
    "cli",
    "public",
)
"""A room may import itself and those before it; `replay` is the names that `opreplay.replay` gives to users, `public`
those that `opreplay` does."""


def room_of(module: str) -> str:
    """The room that a module of opreplay lies in. Raises LookupError for one that lies in none."""
    parts = module.split(".")[1:]
    if parts in ([], ["torch_ir"], ["tracelens"]):
        return "public"
    for name in (".".join(parts[:2]), parts[0]):
        if name in ROOMS and (name != "replay" or len(parts) == 1):
            return name
    raise LookupError(f"{module} is in no room: put it into one, or name its room in ROOMS")


def imported(tree: ast.AST, known: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Modules of opreplay that are imported anywhere in a file, also late or for types only, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if whole in known else node.module), node.lineno


@pytest.fixture(scope="module")
def graph(sources) -> dict[str, dict[str, int]]:
    """Module → the modules that it imports → the line of the import."""
    known = frozenset(source.module for source in sources)
    return {
        source.module: {name: line for name, line in imported(source.tree, known) if name != source.module}
        for source in sources
    }


@pytest.mark.slow
def test_a_room_imports_only_rooms_before_it(graph) -> None:
    wrong = [
        f"{module}:{line} imports {name}: {room_of(name)} comes after {room_of(module)} in ROOMS"
        for module, names in graph.items()
        for name, line in names.items()
        if ROOMS.index(room_of(name)) > ROOMS.index(room_of(module))
    ]
    assert not wrong, "\n".join(wrong)


def circles(graph: dict[str, dict[str, int]]) -> list[str]:
    """Modules from which a chain of imports leads back to them."""
    open_ends = {module: set(names) for module, names in graph.items()}
    while leaves := [module for module, names in open_ends.items() if not names]:
        for leaf in leaves:
            del open_ends[leaf]
        for names in open_ends.values():
            names.difference_update(leaves)
    return sorted(open_ends)


def test_no_imports_go_in_a_circle(graph) -> None:
    assert not circles(graph), f"these modules import each other, or import such modules: {circles(graph)}"


def test_the_guard_sees_a_circle() -> None:
    assert circles({"a": {"b": 1}, "b": {"c": 1}, "c": {"b": 2}, "d": {}}) == ["a", "b", "c"]


def test_the_architecture_page_draws_every_room(root) -> None:
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = [room for room in ROOMS if room not in ("replay", "public")]
    assert not (absent := [room for room in drawn if room not in page]), f"draw them in docs/architecture.md: {absent}"
