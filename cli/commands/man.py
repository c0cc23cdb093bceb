# pyright: strict
"""`opreplay man`: the manual page, made from the commands."""

from __future__ import annotations

import click


@click.command("man", short_help="Print the manual page.")
@click.pass_context
def command(ctx: click.Context) -> None:
    """Print opreplay(1) for man: all commands and options of this version.

    \b
    opreplay man | man -l -
    opreplay man > ~/.local/share/man/man1/opreplay.1
    """
    from opreplay.cli.main import COMMANDS
    from opreplay.cli.manual import manual
    from opreplay.replay.host.environment import opreplay_version

    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    commands = {name: subcommand for name in COMMANDS if (subcommand := group.get_command(ctx, name)) is not None}
    click.echo(manual(group, commands, opreplay_version()), nl=False)
