# pyright: strict
"""Table of user functions by op.

Exact names take precedence over patterns. Among exact names, a function for one device takes precedence over one for
all devices. A name has one function per device. The table records what loaded each function and which functions were
never used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Generic, Literal, TypeVar
from weakref import WeakSet

import msgspec

from opreplay.initializers.user_code import current_source, place_of, redefines, shown_place
from opreplay.traces.errors import UsageError


class UserFunction(msgspec.Struct, frozen=True, kw_only=True):
    """Registration of one user function."""

    ops: tuple[str, ...]
    """Op names "namespace::op", or patterns that match op names."""
    function: Callable[..., Any]
    device: str | None = None
    """Simulated device to which the function applies; None for all devices."""
    override: bool = False
    """Whether the function takes precedence over opreplay's and torch's implementation.

    If False, it is used only for ops that cannot be replayed otherwise.
    """
    source: str = msgspec.field(default_factory=current_source)
    """The option or plugin that loaded the function, e.g. "--plugin my_ops.py"."""

    @property
    def name(self) -> str:
        """Return the function's name."""
        return getattr(self.function, "__name__", "a callable")

    @property
    def place(self) -> str:
        """Return "file:line" of the function."""
        return place_of(self.function)

    @property
    def shown(self) -> str:
        """Return "name (file.py:line)", without the folder, for results."""
        return shown_place(self.function)


Kind = Literal["conversion", "executor", "initializer", "estimator", "properties", "tile program", "rule"]
"""Kinds of registrations, in the order in which reports list them."""

_tables: WeakSet[UserTable[Any]] = WeakSet()


def tables() -> list[UserTable[Any]]:
    """Return the tables that have registrations."""
    return [table for table in _tables if table]


Entry = TypeVar("Entry", bound=UserFunction)
Key = tuple[str, str | None]
"""(op or pattern, device); the device is None for all devices."""


class Taken(UsageError, ValueError):
    """Raised if another function is already registered for the op."""


class UserTable(Generic[Entry]):
    """Registrations of one kind of user function; without patterns this is a plain lookup by name."""

    def __init__(self, what: Kind, *, remedy: str = "leave one of them out") -> None:
        """Create an empty table; `remedy` tells the user what to do about a duplicate registration."""
        self.what: Kind = what
        self._remedy = remedy
        self._exact: dict[Key, Entry] = {}
        self._patterns: dict[Key, tuple[re.Pattern[str], Entry]] = {}
        self._used: set[int] = set()
        _tables.add(self)

    def add(
        self, entry: Entry, patterns: Mapping[str, re.Pattern[str]] | None = None, *, replace: bool = False
    ) -> None:
        """Register a function. Ops in `patterns` match the start of a name, other ops match the whole name.

        Raises Taken for an op that has another function for the same device, unless `replace` is set. New versions from
        a file that is run again or from an edited notebook cell replace the earlier ones.
        """
        patterns = patterns or {}
        earlier = [(op, other) for op in entry.ops if (other := self._at((op, entry.device))) is not None]
        for op, other in () if replace else earlier:
            if not redefines(entry.function, other.function):
                where = f" for {entry.device}" if entry.device else ""
                raise Taken(
                    f"{op} already has a user's {self.what}{where} from {other.place}, but {entry.place} registers "
                    f"another: {self._remedy}"
                )
        self._used.difference_update(id(other) for _, other in earlier)
        for op in entry.ops:
            if op in patterns:
                self._patterns[op, entry.device] = patterns[op], entry
            else:
                self._exact[op, entry.device] = entry

    def find(self, *names: str, device: str | None = None) -> Entry | None:
        """Return the function for an op and mark it as used; None if there is none.

        `names` are all spellings of the op's name. Exact matches of any spelling come before patterns. Within each,
        earlier spellings come first.
        """
        match = next((entry for name in names if (entry := self.exactly(name, device)) is not None), None)
        if match is None and self._patterns:
            match = next((entry for name in names for _, entry in self.matching(name, device)), None)
        return self.mark_used(match)

    def exactly(self, name: str, device: str | None = None) -> Entry | None:
        """Return the function registered for a name and device, otherwise the function for all devices, or None."""
        return self._exact.get((name, device)) or self._exact.get((name, None))

    def matching(self, name: str, device: str | None = None) -> list[tuple[str, Entry]]:
        """Return (pattern, function) of each pattern that matches a name: those for the device, then those for all
        devices, each in the order of registration.
        """
        matches = [
            (on is None, op, entry)
            for (op, on), (pattern, entry) in self._patterns.items()
            if on in (device, None) and pattern.match(name)
        ]
        return [(op, entry) for _, op, entry in sorted(matches, key=itemgetter(0))]

    def mark_used(self, entry: Entry | None) -> Entry | None:
        """Mark a function as used and return it."""
        if entry is not None:
            self._used.add(id(entry))
        return entry

    def unused(self) -> list[Entry]:
        """Return the functions that were never used."""
        return [entry for entry in self if id(entry) not in self._used]

    def clear(self) -> None:
        """Remove all registrations."""
        self._exact.clear()
        self._patterns.clear()
        self._used.clear()

    def __iter__(self) -> Iterator[Entry]:
        """Yield each registration once: exact names first, then patterns."""
        both = [*self._exact.values(), *(entry for _, entry in self._patterns.values())]
        return iter({id(entry): entry for entry in both}.values())

    def __bool__(self) -> bool:
        return bool(self._exact or self._patterns)

    def _at(self, key: Key) -> Entry | None:
        pattern = self._patterns.get(key)
        return self._exact.get(key) or (pattern[1] if pattern else None)
