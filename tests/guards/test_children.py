"""Python processes are started in one way, which keeps modules of the current folder out."""

from __future__ import annotations

import ast

import pytest

STARTS = {"opreplay.traces.child_process"}
"""Who knows how a Python process is started."""
EXPORTED = {"opreplay.replay.export.script", "opreplay.replay.export.measure_script"}
"""Run alone, with child processes of their own."""


@pytest.mark.slow
def test_one_module_starts_python(sources) -> None:
    others = [
        f"{source.path}:{node.lineno}"
        for source in sources
        if source.module not in STARTS | EXPORTED
        for node in ast.walk(source.tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable")
        or (isinstance(node, ast.ImportFrom) and node.module == "concurrent.futures" and _processes(node))
        or (isinstance(node, ast.ImportFrom | ast.Import) and _spawns(node))
    ]
    assert others == [], "start it with traces.child_process.python_command"


def _processes(node: ast.ImportFrom) -> bool:
    return any(alias.name.startswith("Process") for alias in node.names)


def _spawns(node: ast.ImportFrom | ast.Import) -> bool:
    """Whether more of multiprocessing is imported than what waits for sockets."""
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return any(name.split(".")[0] == "multiprocessing" and name != "multiprocessing.connection" for name in names)
