# pyright: strict
"""The vendors' operator schemas, all versions of them, as data; no torch, no implementations.

Owns the text files of `schemas/`, one a namespace: a date, a tab and a schema on each line. The date is the first day
on which the library was seen with that schema ("" where no date is public). Who implements an op is in the other
`reference_*` of the families; what is implemented is `register.implemented`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Any

from opreplay.replay.ops.register import reference

_MARK = re.compile(r"(?<=Tensor)(?:\(\w+!?(?:\s*->\s*\*)?\)|!)")


@lru_cache(maxsize=64)
def _table(namespace: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """(date, schema) of each version, by op name without overload, in the order of the file."""
    found: dict[str, list[tuple[str, str]]] = {}
    text = files("opreplay.replay.ops.schemas").joinpath(f"{namespace}.txt").read_text(encoding="utf-8")
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
    *names: str,
    writes: tuple[str, ...] | None = None,
    lacking: tuple[str, ...] = (),
    fake: Callable[..., Any] | None = None,
    assumes: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the stand-in for the known versions of these ops; see `registry.reference`.

    A version that lacks an argument which the function wants is not one that it stands for, nor is one that has an
    argument of `lacking`. `writes` names the arguments that the function writes to, where the vendor's marks do not
    tell (those of them that a version has); None keeps the vendor's marks. `assumes`: see
    `reference`. Raises ValueError for an op that no version
    of fits.
    """

    def declare(run: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(run).parameters.values()
        wanted = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
        for name in names:
            fitting = [
                (since, schema)
                for since, schema in versions_of(name)
                if wanted <= _words(schema) and not _words(schema) & set(lacking)
            ]
            if not fitting:
                raise ValueError(f"no version of {name} has all of {', '.join(sorted(wanted))}")
            for since, schema in fitting:
                text = schema if writes is None else with_writes(schema, [w for w in writes if w in _words(schema)])
                reference(text, since=since, fake=fake, assumes=assumes)(run)
        return run

    return declare


def _words(schema: str) -> set[str]:
    """The names in a schema's arguments, their types among them."""
    return set(re.findall(r"\w+", schema.partition("(")[2].rpartition(" -> ")[0]))
