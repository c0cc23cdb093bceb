"""Functions stay small enough to be read in one go, and each module says what it owns."""

from __future__ import annotations

import ast

import pytest

MOST_LINES_FUNCTION = 100


@pytest.mark.slow
def test_functions_are_short(sources) -> None:
    """Their bodies: a command has as many parameters as flags, one a line."""
    too_long = [
        f"{source.path}:{node.lineno} {node.name}: {lines} lines, more than {MOST_LINES_FUNCTION}: split it"
        for source in sources
        for node in source.functions()
        if (lines := (node.end_lineno or 0) - node.body[0].lineno + 1) > MOST_LINES_FUNCTION
    ]
    assert not too_long, "\n".join(too_long)


def test_every_module_says_what_it_is(sources) -> None:
    silent = [str(source.path) for source in sources if not ast.get_docstring(source.tree)]
    assert not silent, f"begin them with a docstring: {silent}"


VAGUE = {"utils", "util", "helpers", "helper", "common", "misc"}
"""Names that say nothing of what they are for."""


def test_no_module_has_a_vague_name(sources, test_sources) -> None:
    every = (*sources, *test_sources)
    vague = [source.path for source in every if source.path.stem.removeprefix("test_") in VAGUE]
    assert not vague, f"name them after what they hold: {vague}"


@pytest.mark.slow
def test_the_library_never_prints(sources) -> None:
    exported = {"opreplay.replay.export.script", "opreplay.replay.export.measure_script"}
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in sources
        if source.module not in exported
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong, f"return a value, or print in `cli/`: {wrong}"
