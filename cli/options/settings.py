# pyright: strict
"""Settings: options that are rarely changed, given as `--set NAME=VALUE` and listed in a separate section of --help.

Commands and options files treat a setting like any other option. The former flag of a setting works for one more
version, and prints a message on stderr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import click
from click.core import ParameterSource

OTHERS = "Options"
GROUPS = {
    "Input": ("execution_trace", "trace", "file", "files", "engine", "workers"),
    "Selection": ("select", "include", "exclude", "top", "op", "step"),
    "Devices": ("device", "soc", "cluster", "l2"),
    "Measuring": (
        "quick",
        "dry_run",
        "cache",
        "resume",
        "mode",
        "ranks",
        "max_failed",
        "stop_on_error",
        "check",
        "measure",
    ),
    "Plugins": ("plugin", "allow_import", "with_plugins"),
    "Output": ("output", "history", "force", "format_", "rows", "all_rows", "notes", "timeline_file"),
}
"""Section of --help → its parameters.

Parameters not listed here come last. A command with few parameters has no sections.
"""
UNGROUPED = 12
_CHOSEN = "opreplay.settings"
"""Key in a click context's `meta` that holds the names of the settings given by --set."""


class Named(click.Option):
    """Option that also accepts `former` flags, which --help does not list."""

    def __init__(self, *names: Any, former: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.shown = [*self.opts]
        self.opts += former

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the current flags and the description; former flags are left out."""
        opts, self.opts = self.opts, self.shown
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = opts


class Renamed(Named):
    """Hidden former flag, which works for one more version. `now` is its new spelling, or "" if the flag stays."""

    def __init__(self, *names: Any, now: str, **attributes: Any) -> None:
        super().__init__(*names, **attributes, hidden=True)
        self.now = now

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Parse like click; if the flag has a new spelling, report it on stderr."""
        value, args = super().handle_parse_result(ctx, opts, args)
        assert self.name is not None
        if self.now and ctx.get_parameter_source(self.name) is ParameterSource.COMMANDLINE:
            say_renamed(self.opts[-1], self.now)
        return value, args


class Setting(Renamed):
    """Option listed as NAME=VALUE in --help; its flag is deprecated, unless `flag_stays`."""

    def __init__(self, *names: Any, flag_stays: bool = False, **attributes: Any) -> None:
        super().__init__(*names, **attributes, now="")
        self.flag_stays = flag_stays
        if not flag_stays:
            self.now = f"--set {self.name}={'true' if self.is_flag else self.metavar or 'VALUE'}"

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Parse like click; a value from --set counts as given by a flag."""
        value, args = super().handle_parse_result(ctx, opts, args)
        if self.name in ctx.meta.get(_CHOSEN, ()):
            ctx.set_parameter_source(self.name, ParameterSource.COMMANDLINE)
        return value, args

    def record(self, ctx: click.Context) -> tuple[str, str]:
        """Return ("NAME=VALUE", description) for --help."""
        self.hidden = False
        shown = self.get_help_record(ctx)
        self.hidden = True
        assert shown is not None
        value = "true" if self.is_flag else shown[0].partition(" ")[2]
        return f"{self.name}={value}", shown[1]


def say_renamed(old: str, new: str) -> None:
    """Report on stderr that a name has changed from `old` to `new`."""
    click.echo(f"opreplay: {old} is now {new}", err=True)


def setting(*names: str, **attributes: Any) -> Callable[[Any], Any]:
    """Declare a setting of a `Command`; takes the same arguments as `click.option`."""
    return click.option(*names, cls=Setting, **attributes)


def is_given(name: str, *, environment: bool = False) -> bool:
    """Check whether an option or argument is given on the command line.

    With `environment`, an environment variable counts as well.
    """
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE or (environment and source is ParameterSource.ENVIRONMENT)


def is_default(name: str) -> bool:
    """Check that an option is set neither on the command line nor by a file or an environment variable."""
    return click.get_current_context().get_parameter_source(name) in (None, ParameterSource.DEFAULT)


def refuse_given(names: Iterable[str], message: str, hint: str = "Leave it out.", *, environment: bool = False) -> None:
    """Raise UsageError for the first of these options or arguments that the user has given.

    In `message`, {} stands for the name of the option.
    """
    from opreplay.traces.errors import UsageError

    context = click.get_current_context()
    for name in names:
        if is_given(name, environment=environment):
            raise UsageError(message.format(_written(context.command, name)), hint=hint)


def _written(command: click.Command, name: str) -> str:
    """Return the spelling of a parameter on the command line: ARGUMENT, --flag, or --set name."""
    parameter = next(parameter for parameter in command.params if parameter.name == name)
    if isinstance(parameter, click.Argument):
        return name.upper()
    return f"--set {name}" if isinstance(parameter, Setting) else f"--{name.replace('_', '-')}"


class Command(click.Command):
    """Command that accepts its settings through --set."""

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
                    help="Change a setting (listed below). Repeatable.",
                )
            )

    def _begun(self, ctx: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
        """Return the names of settings that begin with `incomplete`, for completion in a shell."""
        return [f"{name}=" for name in self.settings if name.startswith(incomplete)]

    @property
    def settings(self) -> dict[str, Setting]:
        """Return the settings by name."""
        return {option.name or "": option for option in self.params if isinstance(option, Setting)}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the options (in groups, if there are many) and then the settings."""
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
        name = next((now for now, option in known.items() if f"--{name.replace('_', '-')}" in option.opts), name)
        if name not in known or not sign:
            near = get_close_matches(name, known, n=1)
            what = f"no setting {name!r}" if name not in known else f"{name} has no value"
            todo = f"write it as {near[0]}=VALUE" if near else f"{ctx.command.name} takes {', '.join(sorted(known))}"
            raise click.BadParameter(f"{what}; {todo}", ctx, option)
        chosen[name] = [*chosen.get(name, ()), value] if known[name].multiple else value
    ctx.meta[_CHOSEN] = frozenset(chosen)
    ctx.default_map = {**(ctx.default_map or {}), **chosen}
