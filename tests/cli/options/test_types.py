"""Values of flags."""

from __future__ import annotations

import click
from click.testing import CliRunner, Result

from opreplay.cli.options.types import Duration


@click.command()
@click.option("--op-time", type=Duration(), default="0.2s")
def command(op_time: float) -> None:
    click.echo(op_time)


def run(*args: str) -> Result:
    return CliRunner().invoke(command, args)


def test_a_time_without_a_unit_says_what_it_is_taken_for() -> None:
    """50 was meant for milliseconds, and took a minute an op."""
    bare = run("--op-time", "50")
    assert (bare.stdout, "op_time is 50 s" in bare.stderr) == ("50.0\n", True)
    for args in (("--op-time", "50ms"), ("--op-time", "2min"), ()):
        assert run(*args).stderr == ""
