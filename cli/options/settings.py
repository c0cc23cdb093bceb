# pyright: strict
"""Settings: options that are seldom changed, given as `--set NAME=VALUE`, listed in a section of --help of their own.

A setting is an option like others to its command and to a file of options. Its flag of before works for one version
more, with a line on stderr.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import click
from click.core import ParameterSource

OTHERS = "Options"
GROUPS = {
    "Input": ("execution_trace", "trace", "file", "files", "engine", "lanes"),
    "Selection": ("select", "op_filter", "exclude", "top", "op", "step"),
    "Devices": ("device", "soc", "cluster", "l2"),
    "Measuring": ("quick", "dry_run", "cache", "resume", "mode", "ranks", "max_failed", "check", "measure"),
    "Plugins": ("plugin", "allow_import", "with_plugins"),
    "Output": ("output", "history", "force", "format_", "rows", "notes", "timeline_file"),
}
"""Sections of --help → names of parameters; the others stand last, or alone where there are few."""
UNGROUPED = 12
_CHOSEN = "opreplay.settings"
"""Of a context's `meta`: names of settings that --set gave."""


class Setting(click.Option):
    """An option that --help lists as NAME=VALUE."""

    def __init__(self, *names: Any, **attributes: Any) -> None:
        super().__init__(*names, **attributes, hidden=True)

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """As click does; says what the flag is called now."""
        value, args = super().handle_parse_result(ctx, opts, args)
        assert self.name is not None
        if self.name in ctx.meta.get(_CHOSEN, ()):
            ctx.set_parameter_source(self.name, ParameterSource.COMMANDLINE)
        elif ctx.get_parameter_source(self.name) is ParameterSource.COMMANDLINE:
            shown = "true" if self.is_flag else self.metavar or "VALUE"
            say_renamed(self.opts[-1], f"--set {self.name}={shown}")
        return value, args

    def record(self, ctx: click.Context) -> tuple[str, str]:
        """NAME=VALUE and what it is, as --help prints them."""
        self.hidden = False
        shown = self.get_help_record(ctx)
        self.hidden = True
        assert shown is not None
        value = "true" if self.is_flag else shown[0].partition(" ")[2]
        return f"{self.name}={value}", shown[1]


def say_renamed(old: str, new: str) -> None:
    """Tell on stderr how a name of before is written now."""
    click.echo(f"opreplay: {old} is now {new}", err=True)


def setting(*names: str, **attributes: Any) -> Callable[[Any], Any]:
    """Declare a setting of a command whose class is `Command`; arguments as of `click.option`."""
    return click.option(*names, cls=Setting, **attributes)


def flag_of(ctx: click.Context, name: str) -> str:
    """How an option is given: --flag, or --set name."""
    settings = ctx.command.settings if isinstance(ctx.command, Command) else {}
    return f"--set {name}" if name in settings else f"--{name.replace('_', '-')}"


class Command(click.Command):
    """A command that takes its settings by --set."""

    def __init__(self, *names: Any, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        if self.settings:
            self.params.append(
                click.Option(
                    ["--set"],
                    multiple=True,
                    metavar="NAME=VALUE",
                    is_eager=True,
                    expose_value=False,
                    callback=_set,
                    shell_complete=self._begun,
                    help="Change a setting, see below. Repeatable.",
                )
            )

    def _begun(self, ctx: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
        """Settings whose names begin so, for a shell."""
        return [f"{name}=" for name in self.settings if name.startswith(incomplete)]

    @property
    def settings(self) -> dict[str, Setting]:
        """By name."""
        return {option.name or "": option for option in self.params if isinstance(option, Setting)}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options by group where there are many, then the settings."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in (*GROUPS, OTHERS)}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)) is not None:
                group = next((group for group, names in GROUPS.items() if option.name in names), OTHERS)
                groups[group].append(record)
        if sum(map(len, groups.values())) <= UNGROUPED:
            groups = {OTHERS: [record for records in groups.values() for record in records]}
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
        if self.settings:
            with formatter.section("Settings"):
                formatter.write_dl([option.record(ctx) for option in self.settings.values()])


def _set(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> None:
    assert isinstance(ctx.command, Command)
    known = ctx.command.settings
    chosen: dict[str, Any] = {}
    for text in values:
        name, sign, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in known or not sign:
            near = get_close_matches(name, known, n=1) or sorted(known)
            what = f"no setting {name!r}" if name not in known else f"{name} has no value"
            raise click.BadParameter(f"{what}; write it as {near[0]}=VALUE", ctx, option)
        chosen[name] = [*chosen.get(name, ()), value] if known[name].multiple else value
    ctx.meta[_CHOSEN] = frozenset(chosen)
    ctx.default_map = {**(ctx.default_map or {}), **chosen}
