# pyright: strict
"""Users' own lowering rules: a table apart from the built-in one, which goes first and says where each rule is from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from opreplay.initializers.user_code import current_source, place_of, shown_place


@dataclass(slots=True, kw_only=True)
class UserRule:
    """One rule that a user registered."""

    ops: tuple[str, ...]
    """Names, or regular expressions for the start of a name."""
    rule: Callable[..., Iterable[Any]]
    loaded_by: str
    used: bool = False

    @property
    def place(self) -> str:
        """ "file:line" of the rule."""
        return place_of(self.rule)

    @property
    def shown(self) -> str:
        """ "name (file.py:line)", without the folder."""
        return shown_place(self.rule)


_by_name: dict[str, UserRule] = {}
_by_pattern: dict[str, tuple[re.Pattern[str], UserRule]] = {}


def add_names(names: tuple[str, ...], rule: Callable[..., Iterable[Any]], *, override: bool) -> None:
    """Register a rule by op names. Raises ValueError for one that has a user's rule, unless it is the same place."""
    entry = UserRule(ops=names, rule=rule, loaded_by=current_source())
    for name in names:
        earlier = _by_name.get(name)
        if earlier is not None and not override and earlier.place != entry.place:
            raise ValueError(f"{name} has a rule of yours already, from {earlier.place}; override=True replaces it")
    for name in names:
        _by_name[name] = entry


def add_patterns(patterns: tuple[str, ...], rule: Callable[..., Iterable[Any]]) -> None:
    """The same for regular expressions."""
    entry = UserRule(ops=patterns, rule=rule, loaded_by=current_source())
    for pattern in patterns:
        earlier = _by_pattern.get(pattern)
        if earlier is not None and earlier[1].place != entry.place:
            raise ValueError(f"{pattern} has a rule of yours already, from {earlier[1].place}")
    for pattern in patterns:
        _by_pattern[pattern] = re.compile(pattern), entry


def find_user_rule(names: Iterable[str]) -> UserRule | None:
    """The user's rule for the first of several spellings that has one by name, else by pattern."""
    if not _by_name and not _by_pattern:
        return None
    spelled = tuple(names)
    found = next((_by_name[name] for name in spelled if name in _by_name), None)
    if found is None:
        pairs = ((name, *entry) for name in spelled for entry in _by_pattern.values())
        found = next((rule for name, pattern, rule in pairs if pattern.match(name)), None)
    if found is not None:
        found.used = True
    return found


def user_rules() -> Iterator[UserRule]:
    """Each rule once, in order."""
    both = [*_by_name.values(), *(rule for _, rule in _by_pattern.values())]
    return iter({id(rule): rule for rule in both}.values())


def forget_user_rules() -> None:
    """Forget all of them."""
    _by_name.clear()
    _by_pattern.clear()
