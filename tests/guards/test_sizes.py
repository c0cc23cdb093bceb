"""Files and functions stay small enough to be read in one go, and each says what it owns."""

from __future__ import annotations

import ast
import statistics

MOST_LINES = 400
MOST_LINES_MEDIAN = 150
MOST_LINES_FUNCTION = 100

LONGER_FILES: dict[str, str] = {"opreplay.replay.executors.torch_device": "split when the layout moves"}
"""Module → why it may be longer."""


def test_files_are_short(sources) -> None:
    lengths = {source.module: len(source.text.splitlines()) for source in sources}
    too_long = {module: n for module, n in lengths.items() if n > MOST_LINES and module not in LONGER_FILES}
    assert not too_long, f"split them, or say in LONGER_FILES why not: {too_long}"
    assert statistics.median(lengths.values()) <= MOST_LINES_MEDIAN
    stale = [module for module in LONGER_FILES if lengths.get(module, 0) <= MOST_LINES]
    assert not stale, f"no longer an exception: {stale}"


def test_functions_are_short(sources) -> None:
    too_long = [
        f"{source.path}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for source in sources
        for node in source.functions()
        if node.end_lineno - node.lineno + 1 > MOST_LINES_FUNCTION
    ]
    assert not too_long, "\n".join(too_long)


def test_every_module_says_what_it_is(sources) -> None:
    silent = [str(source.path) for source in sources if not ast.get_docstring(source.tree)]
    assert not silent, silent


def test_there_is_no_module_called_utils(sources) -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [source.path for source in sources if source.path.stem in vague]


def test_the_library_never_prints(sources) -> None:
    scripts = {"opreplay.traces.samples.record", "opreplay.replay.export.script"}
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in sources
        if source.module not in scripts
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong, wrong
