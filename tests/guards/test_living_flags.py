"""Every flag is read by its command and exercised by a test."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from opreplay.cli.main import COMMANDS, opreplay
from opreplay.cli.options.settings import Setting

pytestmark = pytest.mark.slow


def command_named(name: str) -> click.Command:
    command = opreplay.get_command(click.Context(opreplay), name)
    assert command is not None
    return command


def flags() -> Iterator[tuple[str, click.Parameter]]:
    for name in COMMANDS:
        for parameter in command_named(name).params:
            yield name, parameter


def is_old(option: click.Parameter) -> bool:
    """Whether it is a name of before, of which --help says nothing."""
    return isinstance(option, click.Option) and option.hidden and not isinstance(option, Setting)


def test_messages_name_flags_of_today() -> None:
    root = Path(__file__).parents[2]
    shown = {flag for _, option in flags() if not getattr(option, "hidden", False) for flag in option.opts}
    shown |= {flag for _, option in flags() if getattr(option, "flag_stays", False) for flag in option.opts}
    old = {flag for _, option in flags() if getattr(option, "hidden", False) for flag in option.opts} - shown
    sources = [path for room in ("replay", "traces", "initializers") for path in (root / room).rglob("*.py")]
    named = [
        f"{path.relative_to(root)}:{place}: {flag}"
        for path in sources
        if path.parent != root / "replay" / "export" or not path.stem.endswith("script")  # with options of their own
        for place, line in enumerate(path.read_text().splitlines(), 1)
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)
        if flag in old and "replay.py --" not in line and "benchmarks/" not in line
    ]
    assert not named, f"write them as --set NAME=VALUE or by their new name: {named}"


def names_read(name: str) -> set[str]:
    """Names that the body of a command reads, or those of what makes values of its options for it."""
    found: set[str] = set()
    callback = command_named(name).callback
    while callback is not None:
        found |= names_in(callback)
        callback = getattr(callback, "__wrapped__", None)
    return found


def names_in(function: Callable[..., Any]) -> set[str]:
    """Names that the body of a function reads, not that of one which it wraps."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function.__code__)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    names = {
        node.id
        for statement in definition.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    if definition.args.kwarg is not None and definition.args.kwarg.arg == "options":
        # Handed on whole to functions of the command.
        functions = [function.__globals__.get(name) for name in names if name.startswith("run_")]
        names.update(*(names_in(other) for other in functions if inspect.isfunction(other)))
    return names


def test_every_parameter_is_read_by_its_command() -> None:
    dead = [f"{name} {p.opts[-1]}" for name, p in flags() if p.expose_value and p.name not in names_read(name)]
    assert not dead, f"parsed and never read: {dead}"


def test_every_option_has_a_help_text() -> None:
    silent = [
        f"{name} {p.opts[-1]}" for name, p in flags() if isinstance(p, click.Option) and not (p.help or is_old(p))
    ]
    assert not silent, f"give them a `help=`: {silent}"


@pytest.fixture(scope="module")
def words_of_tests(test_sources) -> frozenset[str]:
    """All words of the strings of all tests but the guards."""
    return frozenset(
        word
        for source in test_sources
        if source.path.parent.name != "guards"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in node.value.replace("=", " ").split()
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_exercised_by_a_test(name: str, words_of_tests: frozenset[str]) -> None:
    options = [p for p in command_named(name).params if isinstance(p, click.Option) and not is_old(p)]
    untested = [option.opts for option in options if not words_of_tests & {option.name, *option.opts}]
    assert not untested, f"no test gives {name} these: {untested}"
