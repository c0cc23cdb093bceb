# pyright: strict
"""The terminal: consoles for data and narration, made when they are needed; owns no content."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from opreplay.replay.report.view import View


_results: list[TextIO] = []


@contextlib.contextmanager
def prints_to_stderr() -> Generator[None, None, None]:
    """Send what users' code prints to stderr; results go to the stdout of before (`stdout`)."""
    _results.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def stdout() -> TextIO:
    """Return the stream for results."""
    return _results[-1] if _results else sys.stdout


def make_console(*, stderr: bool = False) -> Console:
    """A console that takes every string literally: no markup, no emoji, no guessed colours.

    Width comes from COLUMNS or the terminal, 80 otherwise; NO_COLOR and TERM=dumb are honoured.
    """
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            """The reader has left, which is no failure; rich itself would end the command with exit code 1."""
            raise BrokenPipeError

    return PipeConsole(
        file=sys.stderr if stderr else stdout(), markup=False, emoji=False, highlight=False, soft_wrap=False
    )


@contextlib.contextmanager
def naming_stdout() -> Generator[None, None, None]:
    """An OSError of a stream, which names no file, names stdout: all that is written elsewhere says where."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = "stdout"
        raise


def show(renderable: RenderableType) -> None:
    """Print to stdout."""
    with naming_stdout():
        make_console().print(renderable)


def show_fitted(render: Callable[[int], RenderableType]) -> None:
    """Print to stdout what `render` makes for the width there."""
    console = make_console()
    with naming_stdout():
        console.print(render(console.width))


def show_line(text: str) -> None:
    """One line to stdout: broken between words on a terminal, else never, so that scripts can take it whole."""
    from rich.text import Text

    console = make_console()
    with naming_stdout():
        console.print(Text(text, style="bold"), soft_wrap=not console.file.isatty())


def show_view(view: View, form: str) -> None:
    """One result on stdout: its lines and its table, or another form of it as it is."""
    if form != "table":
        write(view.text(form, command_line()))
        return
    for line in view.lines:
        show_line(line)
    show_fitted(view.render)


def command_line() -> str:
    """What was typed, ready to be run again."""
    return shlex.join(["opreplay", *sys.argv[1:]])


def plain_text(view: View, width: int = 160) -> str:
    """What `show_view` would print on a terminal that wide without colours, for files."""
    import io

    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, markup=False, emoji=False, highlight=False, width=width, no_color=True)
    console.print(view.render(width))
    return "\n".join([*view.lines, out.getvalue()])


def narrate(text: str) -> None:
    """A line to stderr, with names of files as `printable` has them."""
    import click

    from opreplay.traces.names import printable

    click.echo(printable(text), err=True)


def write(text: str) -> None:
    """Data to stdout as it is."""
    with naming_stdout():
        stdout().write(text)


def json_text(value: Any) -> str:
    """A value as indented JSON; msgspec structs and what they hold are known."""
    from opreplay.replay.report.text import shown_json

    return shown_json(value)
