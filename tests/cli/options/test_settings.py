"""--set: options that are seldom changed."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result

from opreplay.cli.options.settings import Command, setting


@click.command("try", cls=Command)
@click.option("--plain", default="a")
@setting("--op-time", type=float, default=0.2, show_default=True, metavar="TIME", help="Time to measure each op.")
@setting("--twice", multiple=True, metavar="NAME", help="Named again.")
@setting("--graph", is_flag=True, help="Capture.")
def command(plain: str, op_time: float, twice: tuple[str, ...], graph: bool) -> None:
    context = click.get_current_context()
    source = context.get_parameter_source("op_time")
    assert source is not None
    click.echo(f"{plain} {op_time} {twice} {graph} {source.name}")


def run(*args: str, **extra: object) -> Result:
    return CliRunner().invoke(command, args, **extra)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ((), "a 0.2 () False DEFAULT"),
        (("--set", "op_time=3"), "a 3.0 () False COMMANDLINE"),
        (("--set", "op-time=3", "--set", "graph=true", "--plain", "b"), "b 3.0 () True COMMANDLINE"),
        (("--set", "twice=x", "--set", "twice=y"), "a 0.2 ('x', 'y') False DEFAULT"),
    ],
)
def test_a_setting_is_as_an_option_of_the_command_line(args: tuple[str, ...], shown: str) -> None:
    done = run(*args)
    assert (done.stdout.strip(), done.stderr) == (shown, "")


def test_it_wins_over_a_file_of_options() -> None:
    given = {"op_time": 7, "plain": "f"}
    assert run(default_map=given).stdout == "f 7.0 () False DEFAULT_MAP\n"
    assert run("--set", "op_time=3", default_map=given).stdout == "f 3.0 () False COMMANDLINE\n"


def test_flags_of_before_work_and_say_what_they_are_called_now() -> None:
    done = run("--op-time", "3", "--graph")
    assert done.stdout == "a 3.0 () True COMMANDLINE\n"
    assert [line.partition(" is now ")[2] for line in done.stderr.splitlines()] == [
        "--set op_time=TIME",
        "--set graph=true",
    ]


@pytest.mark.parametrize(
    ("text", "named"), [("optime=3", "op_time=VALUE"), ("op_time", "op_time=VALUE"), ("op_time=x", "not a valid float")]
)
def test_what_is_no_setting_is_refused_with_the_nearest(text: str, named: str) -> None:
    done = run("--set", text)
    assert done.exit_code == 2
    assert named in done.stderr


def test_help_lists_settings_apart() -> None:
    options, settings = run("--help").stdout.split("Settings:")
    assert "--set NAME=VALUE" in options
    assert "op-time" not in options
    for text in ("op_time=TIME", "[default: 0.2]", "graph=true", "twice=NAME"):
        assert text in settings
