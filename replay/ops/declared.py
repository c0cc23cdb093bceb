# pyright: strict
"""Operator schemas of vendor libraries, in all known versions, as data.

This module needs no torch and contains no implementations. The schemas are read from the text files in `schemas/`, one
file per namespace. Each line holds a date, a tab and a schema. The date is the first day on which the library was seen
with that schema, or "" if no date is public.

The implementations of ops are in the `reference_*` modules of the op families. `register.implemented` lists the
implemented ops.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any

from opreplay.replay.ops.calls import arguments_read
from opreplay.replay.ops.register import reference
from opreplay.replay.ops.table import Row, find, row

_WRITTEN = re.compile(r"Tensor(?:\([^)]*!\)|!)[\[\]?]* (\w+)")
_CONSTANT = re.compile(r"True|False|None|[-\d'\"]")
_NAMESPACE = re.compile(r"\w{1,100}", re.ASCII)
_MARK = re.compile(r"(?<=Tensor)(?:\(\w+!?(?:\s*->\s*\*)?\)|!)")


@lru_cache(maxsize=64)
def schemas_in(namespace: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """Map op names without overload to the (date, schema) of each version, in the order of the file.

    The namespace may come from a trace: one that is no name of a file has no schemas.
    """
    if not _NAMESPACE.fullmatch(namespace):
        return {}
    versions_by_op: dict[str, list[tuple[str, str]]] = {}
    file = files("opreplay.replay.ops.schemas").joinpath(f"{namespace}.txt")
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        since, _, schema = line.partition("\t")
        versions_by_op.setdefault(schema.partition("(")[0].partition(".")[0], []).append((since, schema))
    return {name: tuple(versions) for name, versions in versions_by_op.items()}


def published(name: str) -> tuple[tuple[str, str], ...]:
    """Return (date, schema) of each known version of "ns::op", or () for an op that is not in any table."""
    return schemas_in(name.partition("::")[0]).get(name, ())


def versions_of(name: str) -> tuple[tuple[str, str], ...]:
    """Return (date, schema) of each known version of "ns::op". Raises ValueError for an op that is not in any table."""
    versions = published(name)
    if not versions:
        raise ValueError(f"no schema of {name} in replay/ops/schemas/{name.partition('::')[0]}.txt: add a line")
    return versions


def with_writes(schema: str, names: Collection[str]) -> str:
    """Return `schema` with exactly the arguments `names` marked as written, and with results that alias no argument.

    Some libraries' schemas mark all tensors as written, or none. Raises ValueError for a name that the schema does not
    have.
    """
    if tuple(_WRITTEN.findall(schema.rpartition(" -> ")[0])) == tuple(names):
        return schema
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
    random: bool = False,
    optional: Collection[str] = (),
    **bound: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the reference implementation of the known versions of the ops `names`.

    A version is skipped if it lacks an argument that the function requires, unless `optional` names that argument. It
    is also skipped if it has an argument in `lacking`. If no version of an op is left, requesting its references raises
    ValueError.

    `writes` names the arguments that the function writes to, for vendors whose marks are missing or wrong. Names that a
    version does not have are ignored. None keeps the vendor's marks. `register.reference` describes `assumes`, `random`
    and `bound`.
    """

    def declare(run: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            row(name).declarations.append(partial(declare_one, name, run))
        return run

    def declare_one(name: str, run: Callable[..., Any]) -> None:
        renames: Mapping[str, str] = bound.get("renames", {})
        set_here = {*optional, *bound.get("fixed", ())}
        needs = (name for name, needed in arguments_read(run).items() if needed and name not in set_here)
        wanted = {_argument(renames.get(name, name)) for name in needs}
        fitting = [
            (since, schema)
            for since, schema in versions_of(name)
            if wanted <= _words(schema) and not _words(schema) & set(lacking)
        ]
        if not fitting:
            absent = sorted(wanted.difference(*(_words(schema) for _, schema in versions_of(name))))
            raise ValueError(
                f"no version of {name} has all of {', '.join(sorted(wanted))}: give {', '.join(absent) or 'one'} a "
                "default, or a constant in `families.py`"
            )
        for since, schema in fitting:
            text = schema if writes is None else with_writes(schema, [w for w in writes if w in _words(schema)])
            reference(text, since=since, fake=fake, assumes=assumes, random=random, **bound)(run)

    return declare


def declare_like(op: Row) -> None:
    """Declare the reference implementation of `op.like` for `op`, too.

    Optional arguments that `op` does not have get the value None. Raises ValueError if `op.like` has no function of its
    own, or if a renamed argument is missing in one of the two ops.
    """
    target = find(op.like)
    if target is None or target.like or not target.references:
        raise ValueError(f"{op.name} is like {op.like}, which has no reference of its own")
    version = max(target.references, key=lambda known: known.since)
    ours = set[str]().union(*(_words(schema) for _, schema in versions_of(op.name)))
    fixed = {name: literal_eval(text) for name, text in op.renames.items() if _CONSTANT.match(text)}
    renames = {name: text for name, text in op.renames.items() if name not in fixed}
    into = tuple(filter(None, op.into.split(","))) or tuple(renames.get(name, name) for name in version.into)
    theirs = {*arguments_read(version.run), *version.into}
    absent = [*(op.renames.keys() - theirs), *({*into, *map(_argument, renames.values())} - ours)]
    if absent:
        raise ValueError(f"{op.name} like={op.like}: no such argument {', '.join(absent)}")
    arguments, _, returns = version.schema.rpartition(" -> ")
    written: list[str] = _WRITTEN.findall(arguments)
    stands_for(
        op.name,
        writes=None
        if "!" in returns
        else tuple(dict.fromkeys((*into, *(renames.get(name, name) for name in written)))),
        fake=version.fake,
        assumes=version.assumes,
        random=version.random,
        renames=renames,
        fixed=fixed,
        into=into,
        optional=frozenset(re.findall(r"\? (\w+)", arguments)),
    )(version.run)


def _argument(text: str) -> str:
    return text.partition(".")[0]


def _words(schema: str) -> set[str]:
    """Return the names and types in a schema's arguments."""
    return set(re.findall(r"\w+", schema.partition("(")[2].rpartition(" -> ")[0]))
