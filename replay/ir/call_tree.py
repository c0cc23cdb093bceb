# pyright: strict
"""The ops below a call as names, told alike of a trace and of torch's profiler, so that the two can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Node = TypeVar("Node")


def names_below(
    root: Node, children_of: Callable[[Node], Sequence[Node]], name_of: Callable[[Node], str], *, limit: int
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Names right below a call, and of all that is below, each before what it calls; None for more than `limit`.

    An only child of the same name as its parent is left out and its children stand in for it: torch's profiler drops
    such a one (an in-place op calls the same with `out=`), a trace holds it. What has no namespace is a label.
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
