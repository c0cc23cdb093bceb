"""One table of users' functions by op: who is found, who is refused, who was never asked for."""

from __future__ import annotations

import re

import pytest

from opreplay.initializers.user_table import Taken, UserFunction, UserTable


def first() -> None: ...


def second() -> None: ...


def entry(*ops: str, function: object = first, device: str | None = None) -> UserFunction:
    return UserFunction(ops=ops, function=function, device=device)  # type: ignore[arg-type]


def test_names_go_before_patterns_and_a_device_before_all_devices() -> None:
    table: UserTable[UserFunction] = UserTable("rule")
    every, one, named = entry(r"my::\w+", function=second), entry("my::a", device="910b3"), entry("my::a")
    table.add(every, {r"my::\w+": re.compile(r"my::\w+")})
    table.add(one)
    table.add(named)
    assert table.find("my::a", device="910b3") is one
    assert table.find("my::a", device="910b4") is named
    assert table.find("my::b") is every
    assert table.find("other::b", "my::b") is every
    assert table.find("other::b") is None
    assert list(table) == [one, named, every]


def test_a_pattern_for_one_device_goes_before_one_for_all_devices() -> None:
    table: UserTable[UserFunction] = UserTable("rule")
    table.add(every := entry("my::*"), {"my::*": re.compile("my::")})
    table.add(one := entry("my::b*", device="910b3"), {"my::b*": re.compile("my::b")})
    assert table.find("my::b", device="910b3") is one
    assert table.find("my::b", device="910b2") is every


def test_a_second_function_is_refused_unless_it_replaces() -> None:
    table: UserTable[UserFunction] = UserTable("rule", remedy="say replace")
    table.add(entry("my::a"))
    table.add(entry("my::a"))  # the same file once more
    with pytest.raises(Taken, match=r"my::a already has a user's rule from .*, but .* registers another: say replace"):
        table.add(entry("my::b", "my::a", function=second))
    assert table.find("my::b") is None, "a refused registration leaves nothing behind"
    table.add(entry("my::a", function=second, device="910b3"))
    table.add(later := entry("my::a", function=second), replace=True)
    assert table.find("my::a") is later


def test_what_was_never_asked_for_is_known() -> None:
    table: UserTable[UserFunction] = UserTable("rule")
    table.add(used := entry("my::a"))
    table.add(idle := entry("my::b"))
    assert table.find("my::a") is used
    assert table.unused() == [idle]
    table.clear()
    assert not table
    assert table.unused() == []
