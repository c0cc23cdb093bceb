# pyright: strict
"""A table of users' functions by op: exact names and declared patterns, duplicates refused, and where each is from.

Owns the rules of registration; what a function does is for `conversions` and `user_executors`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

from opreplay.initializers.user_code import place_of, shown_place
from opreplay.replay.resolve.policy import TORCH_NAMESPACES
from opreplay.traces.errors import UsageError

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_PATTERN = re.compile(r"[A-Za-z_]\w*::[\w*?]+")
_BARE = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFunction:
    """One registration."""

    ops: tuple[str, ...]
    """Names "namespace::op", and patterns with * and ? behind the namespace; with `bare` also "op" alone."""
    function: Callable[..., Any]
    override: bool
    """Goes before what opreplay and torch have for the op; else it is for ops that cannot be replayed without it."""
    source: str
    """What the user named to load it."""
    bare: bool = False
    """Names without a namespace are ops, of that very name or of any library that torch does not ship."""

    @property
    def place(self) -> str:
        """ "file:line" of the function."""
        return place_of(self.function)

    @property
    def shown(self) -> str:
        """ "name (file.py:line)", without the folder: goes into results."""
        return shown_place(self.function)


Entry = TypeVar("Entry", bound=UserFunction)


class OpTable(Generic[Entry]):
    """Registrations of one kind."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._exact: dict[str, Entry] = {}
        self._patterns: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Register. Raises UsageError for no op, a malformed name, and a name or pattern that is taken."""
        if not entry.ops:
            raise UsageError(f"{entry.place}: a user's {self._what} needs at least one op, such as mylib::norm")
        for op in entry.ops:
            self._refuse(op, entry)
        for op in entry.ops:
            (self._exact if _NAME.fullmatch(op) or _BARE.fullmatch(op) else self._patterns)[op] = entry

    def find(self, name: str) -> Entry | None:
        """The registration for an op, an exact name before a pattern, and that before a name without namespace.

        Raises UsageError where two patterns match.
        """
        if name in self._exact:
            return self._exact[name]
        found = [(pattern, entry) for pattern, entry in self._patterns.items() if fnmatchcase(name, pattern)]
        if len({id(entry) for _, entry in found}) > 1:
            shown = " and ".join(pattern for pattern, _ in found)
            raise UsageError(f"{name} has two user {self._what}s: {shown} match it", hint="Register its exact name.")
        return found[0][1] if found else self._bare(name)

    def clear(self) -> None:
        """Forget all registrations."""
        self._exact.clear()
        self._patterns.clear()

    def __iter__(self) -> Iterator[Entry]:
        """Each registration once, in order."""
        both = [*self._exact.values(), *self._patterns.values()]
        return iter({id(entry): entry for entry in both}.values())

    def _bare(self, name: str) -> Entry | None:
        namespace, _, rest = name.partition("::")
        return None if not rest or namespace in TORCH_NAMESPACES else self._exact.get(rest)

    def _refuse(self, op: str, entry: Entry) -> None:
        if entry.bare and _BARE.fullmatch(op):
            pass
        elif not (_NAME.fullmatch(op) or (_PATTERN.fullmatch(op) and ("*" in op or "?" in op))):
            raise UsageError(f"{entry.place}: {op!r} is no op; write namespace::op, or namespace::op* for several")
        earlier = self._exact.get(op) or self._patterns.get(op)
        # The same place again is the same file run again.
        if earlier is not None and earlier.place != entry.place:
            raise UsageError(
                f"{op} has a user {self._what} already, from {earlier.place}; {entry.place} registers another",
                hint="Leave one of them out.",
            )
