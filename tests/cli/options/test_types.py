"""Values of flags."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result

from opreplay.cli.options.types import Count, Duration


@click.command()
@click.option("--op-time", type=Duration(), default="0.2s")
def command(op_time: float) -> None:
    click.echo(op_time)


def run(*args: str) -> Result:
    return CliRunner().invoke(command, args)


def test_a_time_without_a_unit_says_what_it_is_taken_for() -> None:
    """50 was meant for milliseconds, and took a minute an op."""
    bare = run("--op-time", "50")
    assert (bare.stdout, "op_time is taken as 50 s" in bare.stderr) == ("50.0\n", True)
    for args in (("--op-time", "50ms"), ("--op-time", "2min"), ()):
        assert run(*args).stderr == ""


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", None), ("0.5", None), ("5.", None), ("5s", 5.0), ("500ms", 0.5), ("2min", 120.0)]
)
def test_a_time_that_may_be_taken_for_a_number_needs_a_unit(text: str, seconds: float | None) -> None:
    kind = Duration(without_unit="write 60s")
    if seconds is None:
        with pytest.raises(click.BadParameter, match="has no unit: write 60s"):
            kind.convert(text, None, None)
    else:
        assert kind.convert(text, None, None) == seconds


@pytest.mark.parametrize(("text", "count"), [("4k", 4096), ("2^12", 4096), ("7", 7)])
def test_counts_are_written_as_sizes_of_a_sweep_are(text: str, count: int) -> None:
    assert Count(min=1).convert(text, None, None) == count


@pytest.mark.parametrize("text", ["0", "1.5", "4K8", "-1", "k", ""])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Count(min=1).convert(text, None, None)
