# pyright: strict
"""Names of the ops nested in a call, in a form that allows comparing a trace with torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Node = TypeVar("Node")


def names_below(
    root: Node, children_of: Callable[[Node], Sequence[Node]], name_of: Callable[[Node], str], *, limit: int
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return (names of the calls directly below a call, names of all its descendants in pre-order).

    None if there are more than `limit` descendants. An only child with its parent's name is replaced by its own
    children. This happens if an in-place op calls the same op with `out=`: a trace contains the inner call, but torch's
    profiler drops it. Names without a namespace are labels, so they do not count as calls.
    """
    direct = _calls(root, children_of, name_of)
    names: list[str] = []
    stack = direct[::-1]
    while stack:
        node = stack.pop()
        names.append(name_of(node))
        if len(names) > limit:
            return None
        stack += _calls(node, children_of, name_of)[::-1]
    return tuple(map(name_of, direct)), tuple(names)


def _calls(node: Node, children_of: Callable[[Node], Sequence[Node]], name_of: Callable[[Node], str]) -> list[Node]:
    name, children = name_of(node), children_of(node)
    while len(children) == 1 and name_of(children[0]) == name:
        children = children_of(children[0])
    return [child for child in children if "::" in name_of(child)]
