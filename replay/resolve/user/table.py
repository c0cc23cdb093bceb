# pyright: strict
"""Users' functions for recorded ops: valid names for registrations, and the lookup by recorded name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from typing import TypeVar

from opreplay.initializers.user_table import UserFunction, UserTable
from opreplay.replay.ir.reasons import NOT_NEEDED
from opreplay.replay.resolve.policy import TORCH_NAMESPACES
from opreplay.traces.errors import UsageError

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_PATTERN = re.compile(r"[A-Za-z_]\w*::[\w*?]+")
_BARE = re.compile(r"[A-Za-z_]\w*")


class OpFunction(UserFunction, frozen=True, kw_only=True):
    """A user's function for recorded ops; the part of an op name after the namespace may contain * and ?."""

    bare: bool = False
    """Whether names without a namespace are allowed. Such a name matches ops of that name in any library, even if the
    library is not part of torch.
    """


def not_needed_text(entry: OpFunction) -> str:
    """Return the note for an op that has a registration without override and can be replayed as recorded."""
    return f"{entry.shown}{NOT_NEEDED}"


Entry = TypeVar("Entry", bound=OpFunction)


class OpTable(UserTable[Entry]):
    """The users' functions of one kind, e.g. executors, by op name."""

    def add(
        self, entry: Entry, patterns: Mapping[str, re.Pattern[str]] | None = None, *, replace: bool = False
    ) -> None:
        """Register a function. Raises UsageError for a missing op, a malformed name, or a name or pattern that is
        already registered.
        """
        if not entry.ops:
            raise UsageError(f"{entry.place}: a user's {self.what} needs at least one op, such as mylib::norm")
        for op in entry.ops:
            if not (_is_name(op, entry) or (_PATTERN.fullmatch(op) and ("*" in op or "?" in op))):
                raise UsageError(
                    f"{entry.place}: {op!r} is not an op; write namespace::op, or namespace::op* for several"
                )
        globs = {op: re.compile(translate(op)) for op in entry.ops if not _is_name(op, entry)}
        super().add(entry, {**globs, **(patterns or {})}, replace=replace)

    def find(self, *names: str, device: str | None = None) -> Entry | None:
        """Return the registration for an op.

        An exact name takes precedence over a pattern, and a pattern over a name without namespace. Raises UsageError if
        two patterns match.
        """
        for name in names:
            entry = self.exactly(name, device) or self._only(name, self.matching(name, device)) or self._bare(name)
            if entry is not None:
                return self.mark_used(entry)
        return None

    def _only(self, name: str, matches: Sequence[tuple[str, Entry]]) -> Entry | None:
        if len({id(entry) for _, entry in matches}) > 1:
            shown = " and ".join(pattern for pattern, _ in matches)
            raise UsageError(f"{name} matches two user {self.what}s: {shown}", hint="Register its exact name.")
        return matches[0][1] if matches else None

    def _bare(self, name: str) -> Entry | None:
        namespace, _, rest = name.partition("::")
        return None if not rest or namespace in TORCH_NAMESPACES else self.exactly(rest)


def _is_name(op: str, entry: OpFunction) -> bool:
    return _NAME.fullmatch(op) is not None or (entry.bare and _BARE.fullmatch(op) is not None)
