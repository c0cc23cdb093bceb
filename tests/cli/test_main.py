"""The command group: help, errors as messages and exit codes, lazy imports."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.padding import Padding

from opreplay.cli import main
from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.terminal import console
from opreplay.traces.errors import EnvironmentRefused, Malformed, UsageError
from opreplay.traces.samples import sample_path


def invoke_raising(error: BaseException) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that raises `error`."""

    @click.command("broken")
    def broken() -> None:
        raise error

    group = main.OpReplayGroup("opreplay")
    group.get_command = lambda ctx, name: broken  # type: ignore[method-assign]
    result = CliRunner().invoke(group, ["broken"])
    return result.exit_code, result.stdout, result.stderr


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(main.opreplay, ["--help"])
    assert result.exit_code == 0
    for name in main.COMMANDS:
        hidden = main.opreplay.get_command(click.Context(main.opreplay), name).hidden
        assert (f"\n  {name} " in result.output) != hidden


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (["devices", "--show", "910b3", "--format", "json"], ["list", "devices", "910b3", "--format", "json"]),
        (["plugins", "--format", "json"], ["list", "plugins", "--format", "json"]),
        (["report", "none.jsonl"], ["show", "none.jsonl"]),
    ],
)
def test_names_of_before_do_as_the_new_ones_and_say_so(before: list[str], now: list[str]) -> None:
    old, new = (CliRunner().invoke(main.opreplay, args) for args in (before, now))
    assert (old.exit_code, old.stdout) == (new.exit_code, new.stdout)
    assert f"`opreplay {now[0]}" in old.stderr.splitlines()[0]


@pytest.mark.parametrize("name", list(main.COMMANDS))
def test_every_command_has_help_that_fits_80_columns(name: str) -> None:
    result = CliRunner().invoke(main.opreplay, [name, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80


def test_version() -> None:
    result = CliRunner().invoke(main.opreplay, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("opreplay ")


@pytest.mark.parametrize("args", [["fly"], ["run"], ["run", "x", "--select", "best"], ["inspect", "a", "b"]])
def test_usage_errors_exit_with_2(args: list[str]) -> None:
    result = CliRunner().invoke(main.opreplay, args)
    assert result.exit_code == ExitCode.USAGE
    assert "Usage:" in result.stderr


@pytest.mark.parametrize(("error", "code"), [(UsageError("u"), 2), (Malformed("m"), 3), (EnvironmentRefused("e"), 4)])
def test_errors_have_their_own_exit_code(error: Exception, code: int) -> None:
    exit_code, out, err = invoke_raising(error)
    assert exit_code == code
    assert out == ""
    assert err == f"opreplay: {error}\n"


def test_hints_are_printed_and_text_from_the_input_is_escaped() -> None:
    _, _, err = invoke_raising(Malformed("bad name \x1b[2J\nforged line", hint="Try [bold]this[/bold]."))
    assert err == "opreplay: bad name \\x1b[2J\\x0aforged line\nhint: Try [bold]this[/bold].\n"


def test_an_interrupt_exits_with_130() -> None:
    exit_code, _, err = invoke_raising(KeyboardInterrupt())
    assert exit_code == ExitCode.INTERRUPTED
    assert err.endswith("interrupted\n")


def test_a_closed_pipe_is_no_error() -> None:
    assert invoke_raising(BrokenPipeError()) == (0, "", "")


@pytest.mark.parametrize("show", [lambda: console.show_line("x"), lambda: console.show_fitted(lambda width: "x")])
def test_a_table_for_a_closed_pipe_is_no_error(show: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):  # which the group turns into exit code 0
        show()


def test_a_pipe_gets_no_spaces_at_the_ends_of_lines(capsys: pytest.CaptureFixture[str]) -> None:
    console.show(Padding("first\nsecond line", (0, 0, 0, 2)))  # which rich fills to the width
    assert capsys.readouterr().out == "  first\n  second line\n"


def test_bugs_are_not_hidden() -> None:
    @click.command("broken")
    def broken() -> None:
        raise ZeroDivisionError

    group = main.OpReplayGroup("opreplay")
    group.get_command = lambda ctx, name: broken  # type: ignore[method-assign]
    assert isinstance(CliRunner().invoke(group, ["broken"]).exception, ZeroDivisionError)


@pytest.mark.parametrize(("typed", "near"), [("simualte", "simulate"), ("RUN", "run"), ("zzz", None)])
def test_a_command_that_there_is_not_gets_the_nearest_name(typed: str, near: str | None) -> None:
    result = CliRunner().invoke(main.opreplay, [typed])
    assert result.exit_code == 2
    assert f"No such command '{typed}'" in result.stderr
    assert (f"Did you mean {near}?" in result.stderr) is (near is not None)


@pytest.mark.parametrize(("terminal", "longest"), [(True, 40), (False, 100)])
def test_a_first_line_is_broken_on_a_terminal_alone(
    terminal: bool, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console.show_line("would replay " * 7)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    lines = plain.splitlines()
    assert max(map(len, lines)) <= longest
    assert (len(lines) > 1) == terminal
    assert {word for line in lines for word in line.split()} == {"would", "replay"}, "broken between words"


@pytest.mark.parametrize("command", [("trim", "t.json.gz", "--step", "0", "-o", "out.json"), ("inspect", "t.json.gz")])
def test_a_machine_without_threads_is_an_error_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    shutil.copy(sample_path("transformer_infer"), tmp_path / "t.json.gz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = CliRunner().invoke(main.opreplay, list(command))
    assert done.exit_code == 4
    assert "cannot start more threads" in done.stderr


def test_an_interrupt_during_the_imports_ends_without_a_traceback() -> None:
    """Sent by the first module that is imported, before anything of the command is there."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'opreplay.cli.main':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from opreplay.cli.start import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 130
    assert done.stderr == "interrupted\n"


def test_warnings_and_tracebacks_are_escaped() -> None:
    code = (
        "import sys, warnings\n"
        "from opreplay.cli.terminal.console import escape_messages\n"
        "escape_messages()\n"
        "warnings.warn('a\\x1b]0;b\\x07\\x9b\\u202e')\n"
        "raise ValueError('c\\x1b[31m\\r')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "a\\x1b]0;b\\x07\\x9b\\u202e" in done.stderr
    assert "ValueError: c\\x1b[31m\\x0d" in done.stderr
    assert not set(done.stderr) & set("\x1b\x07\x9b\u202e\r")
