# pyright: strict
"""The `opreplay` command. It finds subcommands, and turns errors into messages and exit codes.

To keep `--help` fast, a command's module is imported when the command is used, and imports the library when it runs.
"""

from __future__ import annotations

import errno
import functools
import gc
import importlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options.settings import say_renamed
from opreplay.cli.terminal import console
from opreplay.cli.terminal.signals import Interrupts

if TYPE_CHECKING:
    from opreplay.cli.settings import Settings

COLLECT_AFTER = 150_000
"""New objects after which Python looks for cycles. With its default of 700 to 2,000, it goes through the
objects of all imported modules again and again, for 5 % of the time of a short command.
"""
INTERRUPTS = Interrupts()
"""Signal handlers of this process; `main` installs them."""
COMMANDS = (
    "run",
    "check",
    "batch",
    "inspect",
    "plan",
    "simulate",
    "timeline",
    "capture",
    "op",
    "tile",
    "trim",
    "compare",
    "show",
    "export",
    "validate",
    "calibrate",
    "list",
    "doctor",
    "trust",
    "mcp",
    "new",
    "completion",
    "man",
)
"""Commands in the order of --help. Each is the function `command` in the module of `commands` that has its name."""
RENAMED = {
    "devices": ("list", "devices"),
    "initializers": ("list", "initializers"),
    "plugins": ("list", "plugins"),
    "report": ("show",),
}
"""Former command → its new form; former names work for one more version."""


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""errno values of failed writes: the disk is full, the file is too large, or stdout is closed."""
NO_THREAD = "can't start new thread"
"""Message of Python's RuntimeError if the system has no more threads."""
UNBEARABLE = (RecursionError, OverflowError, MemoryError)
"""Errors raised by inputs that are nested too deeply, too large or too many and that no reader rejected earlier."""


class OpReplayGroup(click.Group):
    """Imports the module of a command when it is used, and exits with the codes in `exit_codes`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name == "mcp":  # whose protocol is on stdout
            return importlib.import_module(f"opreplay.cli.commands.{cmd_name}").command
        return _keeping_stdout(importlib.import_module(f"opreplay.cli.commands.{cmd_name}").command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command like click does, but also accept former names.

        The error for an unknown command suggests the nearest name.
        """
        if args and (new := RENAMED.get(args[0])) is not None:
            say_renamed(f"`{args[0]}`", f"`opreplay {' '.join(new)}`")
            args = [*new, *args[1:]]
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0].lower(), COMMANDS, n=1) if args else ()
            if near and "Did you mean" not in error.message:
                ctx.fail(f"{error.message} Did you mean {near[0]}?")
            raise

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line and exit. If `standalone_mode` is off, let click's exceptions through."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        sys.exit(self._exit_code(*args, **extra))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand and flush stdout.

        If stdout is a broken pipe, the exit code is 0; click itself would exit with 1. Raises EnvironmentRefused if the
        subcommand needs torch and torch is missing or cannot be imported.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_stdout()
            return ExitCode.OK
        except (ImportError, OSError) as error:
            from opreplay.replay.host.needs_torch import refuse_unloadable

            refuse_unloadable(error)
            raise
        return result

    def _exit_code(self, *args: Any, **extra: Any) -> int:
        try:
            code = int(super().main(*args, standalone_mode=False, **extra) or ExitCode.OK)
            # One that was swallowed on its way up.
            return ExitCode.INTERRUPTED if INTERRUPTS.came and code == ExitCode.OK else code
        except click.ClickException as error:
            from opreplay.traces.names import escape_controls

            shown = io.StringIO()
            error.show(shown)
            click.echo(escape_controls(shown.getvalue()), err=True, nl=False)
            return error.exit_code
        except click.Abort:
            click.echo("interrupted", err=True)
            return ExitCode.INTERRUPTED
        except Exception as error:
            # Imported late: the package that holds the error tree is not needed to print help.
            from opreplay.traces.errors import OpReplayError

            if isinstance(error, OpReplayError):
                return show_error(error.problem, error.hint, error.exit_code)
            if isinstance(error, OSError) and (error.errno in FULL or error.filename is not None):
                return _show_full_disk(error)
            if isinstance(error, BlockingIOError) or str(error) == NO_THREAD:
                hint = "End other programs, or raise the limit: ulimit -u."
                return show_error("the system cannot start more threads or processes", hint, ExitCode.ENVIRONMENT)
            if isinstance(error, UNBEARABLE):
                what = f"computing with this input failed: {type(error).__name__}: {error}".removesuffix(": ")
                hint = (
                    "The input probably has too many values, or values that are too large or nested "
                    "too deeply. If not, please report this."
                )
                return show_error(what, hint, ExitCode.REFUSED)
            raise


def _keeping_stdout(command: click.Command) -> click.Command:
    """Wrap a command and its subcommands to send text printed by user code to stderr; return the command."""
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _keeping_stdout(inner)
    run = command.callback
    if run is None or getattr(run, "keeps_stdout", False):
        return command

    @functools.wraps(run)
    def quiet(*args: Any, **options: Any) -> Any:
        from opreplay.cli.terminal.console import prints_to_stderr

        with prints_to_stderr():
            return run(*args, **options)

    quiet.keeps_stdout = True  # type: ignore[attr-defined]
    command.callback = quiet
    return command


def show_error(message: str, hint: str, exit_code: int) -> int:
    """Print an error and its hint to stderr, with control characters escaped; return the exit code."""
    from opreplay.replay.report.text import safe

    click.echo(f"opreplay: {safe(message)}", err=True)
    if hint:
        click.echo(f"hint: {safe(hint)}", err=True)
    return exit_code


def _show_full_disk(error: OSError) -> int:
    where = "stdout: " if _stdout_is_full() else ""
    _discard_stdout()
    where = where if error.filename is None else f"{error.filename}: "
    return show_error(f"{where}{error.strerror}", "Check the disk and its permissions.", ExitCode.ENVIRONMENT)


def _stdout_is_full() -> bool:
    """Check whether flushing stdout fails because it is full or closed."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return True
    return False


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null. Otherwise the interpreter's final flush would fail on a closed pipe."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


@click.group(
    cls=OpReplayGroup,
    epilog="Also: `opreplay doctor` checks Python, torch, devices and libraries; `opreplay trust` lets a file of "
    "options name code; `opreplay mcp` answers an assistant; `opreplay new` writes a file "
    "to start from; `opreplay completion` and `opreplay man` are for shells.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="opreplay", message="%(prog)s %(version)s")
@click.option(
    "--config",
    metavar="FILE",
    envvar="OPREPLAY_CONFIG",
    show_envvar=True,
    help=("Read options from this file; none to use no file.  [default: the nearest opreplay.toml or pyproject.toml]"),
)
@click.pass_context
def opreplay(ctx: click.Context, config: str | None) -> None:
    """Replay the ops of a profiler trace here, and predict them on a simulated Ascend NPU.

    \b
    opreplay inspect trace.json.gz                 what is in the trace
    opreplay plan trace.json.gz                    what would run, and how
    opreplay run trace.json.gz --soc 910b3         recorded, measured and simulated times
    """
    from opreplay.cli.settings import Settings, is_usage_error, refuse_untrusted

    try:
        ctx.obj = settings = _settings(ctx, config)
    except Exception as error:
        if ctx.invoked_subcommand not in ("doctor", "trust") or not is_usage_error(error):
            raise
        ctx.obj = settings = Settings(problem=error.problem)  # doctor is who reports it
    refuse_untrusted(settings, ctx.invoked_subcommand or "")
    ctx.default_map = {name: dict(values) for name, values in settings.values.items()}
    used = settings.used.get(ctx.invoked_subcommand or "", ())
    if used:
        console.narrate(f"opreplay: options {', '.join(used)} are from {settings.path}")


def _settings(ctx: click.Context, config: str | None) -> Settings:
    """Return the settings in the options file; empty if there is no file. Raises UsageError for an invalid file."""
    from opreplay.cli.settings import NONE, Settings, find_file, irregular_file, read_settings

    path = None if config == NONE else find_file(Path.cwd()) if config is None else Path(config)
    if config is None and (other := irregular_file(Path.cwd(), path)) is not None:
        console.narrate(f"opreplay: {other} was ignored: it is not a regular file")
    if path is None:
        return Settings()
    group = ctx.command
    assert isinstance(group, OpReplayGroup)
    commands = {name: command for name in COMMANDS if (command := group.get_command(ctx, name)) is not None}
    return read_settings(path, commands, named=config is not None)


def _fill_closed_streams() -> None:
    """Open a descriptor in place of each closed standard stream.

    Otherwise a file that is opened later would get the stream's number, and with it the stream's output. Writing to a
    closed stdout fails as on a full disk. Writing to a closed stderr has no effect.
    """
    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def main() -> NoReturn:
    """Entry point of the command line; does not return."""
    gc.set_threshold(COLLECT_AFTER)
    _fill_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 gets escapes instead of a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    INTERRUPTS.install()
    console.escape_messages()
    opreplay()
    raise AssertionError("unreachable: click exits")
