# pyright: strict
"""`opreplay completion`: print a shell script that completes commands, options, devices and files."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_OPREPLAY_COMPLETE"


@click.command("completion", hidden=True, short_help="Print the shell completion script.")
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete commands, options, their values, simulated devices and files.

    \b
    bash   eval "$(opreplay completion bash)" in ~/.bashrc
    zsh    eval "$(opreplay completion zsh)" in ~/.zshrc
    fish   opreplay completion fish > ~/.config/fish/completions/opreplay.fish
    """
    from click.shell_completion import get_completion_class

    from opreplay.cli.terminal.console import write

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    write(completion_class(ctx.find_root().command, {}, "opreplay", VARIABLE).source() + "\n")
