"""traces ← initializers ← replay ← cli, under the one root `opreplay`, and torch only where ops are run or resolved."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

LAYERS = {"traces": 0, "initializers": 1, "replay": 2, "cli": 3, "torch_ir": 4, "tracelens": 4}
"""`torch_ir` and `tracelens` are names of the folder that is `opreplay` itself, which nothing imports."""

TORCH_AT_IMPORT = (
    "opreplay.initializers",
    "opreplay.replay.capture",
    "opreplay.replay.check.calling",
    "opreplay.replay.check.points",
    "opreplay.replay.check.simulated",
    "opreplay.replay.execute.executors.torch.caches",
    "opreplay.replay.execute.executors.torch.device",
    "opreplay.replay.execute.executors.torch.profile",
    "opreplay.replay.execute.executors.torch.python_call",
    "opreplay.replay.execute.executors.torch.sequence_tools",
    "opreplay.replay.execute.executors.torch.values",
    "opreplay.replay.execute.ranks.torch",
    "opreplay.replay.export",
    "opreplay.replay.resolve.meta.forked",
    "opreplay.replay.resolve.meta.check",
    "opreplay.replay.resolve.meta.outputs",
    "opreplay.replay.resolve.meta.refusals",
    "opreplay.replay.resolve.names",
    "opreplay.replay.resolve.schema",
    "opreplay.replay.arguments.tensors",
    "opreplay.replay.arguments.float32",
    "opreplay.replay.arguments.operations",
    "opreplay.replay.tile.programs",
)
"""Modules and packages that may import torch when they are imported: they make, run or resolve ops."""

LIGHT = ("opreplay.cli", "opreplay.traces", "opreplay.replay.ascend", "opreplay.replay.report")
"""Packages that are never imported together with torch or pandas, directly or by way of others."""


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every imported module with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}: write the whole name"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def at_import_time(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported: not inside functions, nor under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.stmt):
            yield child
        yield from at_import_time(child)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch", True),
        ("try:\n    import torch\nexcept ImportError:\n    pass", True),
        ("class A:\n    import torch", True),
        ("class A:\n    def f(self):\n        import torch", False),
        ("def f():\n    if True:\n        import torch", False),
        ("if TYPE_CHECKING:\n    import torch", False),
    ],
)
def test_the_guard_sees_what_runs_at_import_time(text: str, found: bool) -> None:
    assert any(isinstance(node, ast.Import) for node in at_import_time(ast.parse(text))) is found


TORCH_IN_FAMILIES = re.compile(r"opreplay\.replay\.ops\.(\w+\.reference_\w+|(aten|maths|work)\.[\w.]+)")
"""The modules of op families that are asked for when values are made; tables and cost rules need no torch."""


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


@pytest.mark.slow
def test_no_package_imports_one_to_its_right(sources) -> None:
    wrong = []
    for source in sources:
        own = LAYERS[source.module.split(".")[1]] if "." in source.module else max(LAYERS.values())
        for name, line in imports(source.tree):
            parts = name.split(".")
            if parts[0] == "opreplay" and len(parts) > 1 and LAYERS[parts[1]] > own:
                wrong.append(f"{source.path}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_folders_are_never_imported_by_their_bare_names(sources, test_sources) -> None:
    wrong = [
        f"{source.path}:{line} imports {name}"
        for source in (*sources, *test_sources)
        for name, line in imports(source.tree)
        if name.split(".")[0] in LAYERS
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("library", "allowed"), [("torch", TORCH_AT_IMPORT), ("pandas", ())])
def test_heavy_libraries_are_imported_late(sources, library: str, allowed: tuple[str, ...]) -> None:
    wrong = [
        f"{source.path}:{line}: import {library} inside the function that needs it"
        for source in sources
        if not within(source.module, allowed)
        and not (library == "torch" and TORCH_IN_FAMILIES.fullmatch(source.module))
        for statement in at_import_time(source.tree)
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for name, line in imports(statement)
        if name.split(".")[0] == library
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_the_light_packages_bring_in_neither_torch_nor_pandas(sources) -> None:
    modules = [source.module for source in sources if within(source.module, LIGHT)]
    modules += ["opreplay.replay.ir.model", "opreplay.replay.results.records"]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "    heavy = sorted({'torch', 'pandas'} & sys.modules.keys())\n"
        "    assert not heavy, f'{name} imports {heavy}'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
