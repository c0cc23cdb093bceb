# pyright: strict
"""`opreplay man`: print the manual page, generated from the commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

import click

from opreplay.cli.options.settings import Setting


@click.command("man", hidden=True, short_help="Print the manual page.")
@click.pass_context
def command(ctx: click.Context) -> None:
    """Print opreplay(1) for man: all commands and options of this version.

    \b
    opreplay man | man -l -
    opreplay man > ~/.local/share/man/man1/opreplay.1
    """
    from opreplay.cli.main import COMMANDS
    from opreplay.cli.terminal.console import write
    from opreplay.replay.host.environment import opreplay_version

    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    commands = {name: subcommand for name in COMMANDS if (subcommand := group.get_command(ctx, name)) is not None}
    write(manual(group, commands, opreplay_version()))


_SPECIAL = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "…": "...", "·": r"\(pc"}
"""Characters with a special meaning in troff, and their escapes."""


def manual(group: click.Command, commands: Mapping[str, click.Command], version: str) -> str:
    """Return opreplay(1): the synopsis, each command with its options, and the exit codes."""
    from opreplay.cli.exit_codes import ExitCode

    lines = [
        f'.TH OPREPLAY 1 "" "opreplay {_escaped(version)}" "User Commands"',
        ".SH NAME",
        r"opreplay \- replay the ops of a profiler trace, and predict them on a simulated Ascend NPU",
        ".SH SYNOPSIS",
        ".B opreplay",
        r"[\fIoptions\fR] \fIcommand\fR [\fIarguments\fR]",
        ".SH DESCRIPTION",
        *_paragraphs(group.help or ""),
        ".SH OPTIONS",
        *_options(group),
        ".SH COMMANDS",
    ]
    for name, command in commands.items():
        lines += [f'.SS "opreplay {name}"', *_synopsis(name, command), *_paragraphs(command.help or "")]
        lines += _options(command)
    lines.append(".SH EXIT STATUS")
    for code in ExitCode:
        lines += [".TP", f".B {int(code)}", _escaped(code.name.lower().replace("_", " "))]
    lines += [".SH FILES", ".TP", ".I opreplay.toml, pyproject.toml", "Default options, named like the flags."]
    return "\n".join(lines) + "\n"


def _synopsis(name: str, command: click.Command) -> list[str]:
    pieces = command.collect_usage_pieces(click.Context(command, info_name=name))
    return [".PP", f".B opreplay {name}", _escaped(" ".join(pieces)), ".PP"]


def _options(command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if isinstance(parameter, Setting):
            record = parameter.record(context)
            record = (f"--set {record[0]}", record[1])
        if record is not None:
            yield from (".TP", f".B {_escaped(record[0])}", _escaped(" ".join(record[1].split())))


def _paragraphs(text: str) -> Iterator[str]:
    """A help text; what begins with \\b keeps its lines."""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        yield ".PP"
        if part.startswith("\b"):
            yield from (".nf", *map(_escaped, part.lstrip("\b\n").splitlines()), ".fi")
        else:
            yield _escaped(" ".join(part.split()))


def _escaped(text: str) -> str:
    """Escape text for troff."""
    shown = (
        text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("…", "...").replace("·", r"\(pc")
    )
    return rf"\&{shown}" if shown.startswith(".") else shown
