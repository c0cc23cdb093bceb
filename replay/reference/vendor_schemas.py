"""The vendors' operator schemas, all versions of them, as data; no torch, no implementations.

Owns the text files of `schemas/`, one a namespace: a date, a tab and a schema on each line. The date is the first day on
which the library was seen with that schema ("" where no date is public). Who implements an op is in the other modules
of `opreplay.replay.reference`; what is implemented is `registry.implemented`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Any

from opreplay.replay.reference.registry import reference

_MARK = re.compile(r"(?<=Tensor)(?:\(\w+!?(?:\s*->\s*\*)?\)|!)")


@lru_cache(maxsize=64)
def _table(namespace: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """(date, schema) of each version, by op name without overload, in the order of the file."""
    found: dict[str, list[tuple[str, str]]] = {}
    text = files("opreplay.replay.reference.schemas").joinpath(f"{namespace}.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        since, _, schema = line.partition("\t")
        found.setdefault(schema.partition("(")[0].partition(".")[0], []).append((since, schema))
    return {name: tuple(versions) for name, versions in found.items()}


def versions_of(name: str) -> tuple[tuple[str, str], ...]:
    """(date, schema) of each known version of "ns::op". Raises ValueError for an op that is in no table."""
    found = _table(name.partition("::")[0]).get(name)
    if found is None:
        raise ValueError(f"no schema of {name} is known")
    return found


def with_writes(schema: str, names: Iterable[str]) -> str:
    """`schema` with exactly these arguments marked as written, and results that alias nothing.

    For libraries that mark every tensor, or none. Raises ValueError for a name that the schema does not have.
    """
    head, arrow, returns = _MARK.sub("", schema).rpartition(" -> ")
    for number, name in enumerate(names):
        head, changed = re.subn(rf"Tensor(?=(?:\[\])?\??(?:\[\])? {name}\b)", f"Tensor(w{number}!)", head)
        if not changed:
            raise ValueError(f"{schema.partition('(')[0]} has no tensor {name}")
    return head + arrow + returns


def stands_for(
    *names: str, writes: tuple[str, ...] | None = None, fake: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the stand-in for all versions of these ops; see `registry.reference`.

    `writes` names the arguments that the function writes to, where the vendor's marks do not tell (those of them that
    a version has); None keeps the vendor's marks.
    """

    def declare(run: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            for since, schema in versions_of(name):
                text = schema
                if writes is not None:
                    text = with_writes(schema, [w for w in writes if re.search(rf"\b{w}\b", schema)])
                reference(text, since=since, fake=fake)(run)
        return run

    return declare
