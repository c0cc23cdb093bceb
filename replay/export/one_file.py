# pyright: strict
"""Combines a script with definitions that it imports from another module into one Python file.

Neither the script nor the module is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

OURS = "opreplay."


class _Source:
    """The text of a module and its top-level statements."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self.body = self.tree.body[1:]
        """The module's top-level statements without its docstring."""

    def text_of(self, place: int) -> str:
        """Return the source of the statement at index `place`. If it is a constant with a docstring below, the
        docstring is included.
        """
        node = self.body[place]
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        last = node.end_lineno or node.lineno
        after = self.body[place + 1 : place + 2]
        if isinstance(node, ast.Assign | ast.AnnAssign) and after and _is_text(after[0]):
            last = after[0].end_lineno or last
        return "\n".join(self.lines[first - 1 : last])

    def definitions(self) -> dict[str, int]:
        """Map each name to the index of the statement that defines it."""
        return {name: place for place, node in enumerate(self.body) for name in _defined(node)}


def one_file(script: Path, library: Path, constants: Mapping[str, str]) -> str:
    """Return the text of `script`. The definitions that it imports from `library` take the place of the import.

    `constants` maps top-level names to their new source text. Raises ValueError if the script imports from another
    module of opreplay, imports a name that `library` does not define, or lacks one of the constants.
    """
    main, other = _Source(script), _Source(library)
    wanted: list[str] = []
    for node in main.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
            if (node.module or "").rpartition(".")[2] != library.stem:
                raise ValueError(f"{script} imports {node.module}, which is not {library}")
            wanted += [alias.name for alias in node.names]
    left = dict(constants)
    given: list[str] = []
    parts = [(other.body[place], other.text_of(place)) for place in _closure(other, wanted)]
    for place, node in enumerate(main.body):
        names = _defined(node)
        if names and names[0] in left:
            head, text = main.text_of(place).partition(" = ")[0], _text_below(main, place)
            given.append("\n".join(filter(None, [f"{head} = {left.pop(names[0])}", text])))
        elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr):
            parts.append((node, main.text_of(place)))
    if left:
        raise ValueError(f"{script} has no constant {', '.join(left)}")
    docstring = ast.get_source_segment("\n".join(main.lines), main.tree.body[0]) or '""""""'
    body = "\n".join([*given, *(text if _holds(node) else f"\n\n{text}\n\n" for node, text in parts)])
    body = re.sub(r"\n{4,}", "\n\n\n", body).strip("\n")
    imports = _imports(body, [main, other])
    return f"{docstring}\n\nfrom __future__ import annotations\n\n{imports}\n\n{body}\n"


def _closure(source: _Source, names: Iterable[str]) -> list[int]:
    """Return the indices of the statements that define these names and all names that they use, in source order."""
    known = source.definitions()
    waiting, found = list(names), set[int]()
    while waiting:
        name = waiting.pop()
        if name not in known:
            raise ValueError(f"nothing defines {name}")
        place = known[name]
        if place not in found:
            found.add(place)
            waiting += [used for used in _used(source.body[place]) if used in known]
    return sorted(found)


def _imports(body: str, sources: Iterable[_Source]) -> str:
    """Return those import statements of the sources that are needed by the text `body`."""
    used = _used(ast.parse(body))
    modules: set[str] = set()
    names: dict[str, set[str]] = {}
    for source in sources:
        for node in source.body:
            if isinstance(node, ast.Import):
                modules |= {a.name for a in node.names if a.name.partition(".")[0] in used and f"{a.name}." in body}
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith((OURS, "__future__")):
                names.setdefault(node.module or "", set()).update(a.name for a in node.names if a.name in used)
    lines = [f"import {module}" for module in sorted(modules)]
    return "\n".join(
        lines + [f"from {module} import {', '.join(sorted(of))}" for module, of in sorted(names.items()) if of]
    )


def _used(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _holds(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign | ast.AnnAssign)


def _text_below(source: _Source, place: int) -> str:
    """Return the docstring below a constant; "" if there is none."""
    after = source.body[place + 1 : place + 2]
    if not after or not _is_text(after[0]):
        return ""
    return "\n".join(source.lines[after[0].lineno - 1 : after[0].end_lineno])
