# pyright: strict
"""Consoles for results and messages, created on demand.

All output goes through this module. It escapes characters that a terminal interprets, so texts of a trace may be passed
unchanged, and adds colours afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    from opreplay.replay.report.view import View


_results: list[TextIO] = []
PIPED_WIDTH = 10_000
"""Line width in characters if stdout is not a terminal. Pipes and files thus get every column."""


@contextlib.contextmanager
def prints_to_stderr() -> Generator[None, None, None]:
    """Redirect prints of user code to stderr inside the context. Results still go to the original stdout (`stdout`)."""
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
    """Return a console that prints every string literally: no markup, no emoji, no automatic colours.

    Its width comes from COLUMNS or the terminal. For a pipe or a file, the width has room for every column. NO_COLOR
    and TERM=dumb are respected.
    """
    from rich.console import Console
    from rich.segment import Segment

    from opreplay.traces.names import escape_controls

    class PipeConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            """Render with control characters escaped. Everything that rich prints passes through this method."""
            for segment in super().render(renderable, options):
                shown = segment.text if segment.control else escape_controls(segment.text)
                yield segment if shown is segment.text else Segment(shown, segment.style)

        def on_broken_pipe(self) -> None:
            """Raise BrokenPipeError if the reader has closed the pipe; rich itself would exit with code 1."""
            raise BrokenPipeError

    file = sys.stderr if stderr else stdout()
    return PipeConsole(
        file=file,
        width=None if stderr or file.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=False,
    )


@contextlib.contextmanager
def naming_stdout() -> Generator[None, None, None]:
    """Inside the context, set the file name of an OSError to "stdout" if the error names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = "stdout"
        raise


def show(renderable: RenderableType) -> None:
    """Print to stdout."""
    _print(make_console(), renderable)


def show_fitted(render: Callable[[int], RenderableType]) -> None:
    """Call `render` with the width of stdout and print the result."""
    console = make_console()
    _print(console, render(console.width))


def _print(console: Console, renderable: RenderableType) -> None:
    """Print to stdout. If stdout is not a terminal, remove trailing spaces."""
    with naming_stdout():
        if console.is_terminal:
            console.print(renderable)
            return
        with console.capture() as captured:
            console.print(renderable)
        console.file.write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))


def show_line(text: str, style: str = "bold") -> None:
    """Print one line to stdout, with line breaks escaped.

    It is wrapped between words on a terminal only. Scripts get a single line.
    """
    from rich.text import Text

    console = make_console()
    with naming_stdout():
        console.print(Text(one_line(text), style=style), soft_wrap=not console.file.isatty())


def show_view(view: View, form: str) -> None:
    """Print a view to stdout: its lines and table if `form` is "table", otherwise its text in that format."""
    if form != "table":
        write(view.text(form, command_line()))
        return
    for place, line in enumerate(view.lines):
        show_line(line, "" if place else "bold")
    show_fitted(view.render)


def command_line() -> str:
    """Return the command as typed, ready to run again."""
    return shlex.join(["opreplay", *sys.argv[1:]])


def plain_text(view: View, width: int = 160) -> str:
    """Return the text that `show_view` would print on a terminal of this width, without colours, for files."""
    import io

    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, markup=False, emoji=False, highlight=False, width=width, no_color=True)
    console.print(view.render(width))
    return "\n".join([*view.lines, out.getvalue()])


def narrate(text: str) -> None:
    """Print one line to stderr, with line breaks escaped."""
    import click

    click.echo(one_line(text), err=True)


def write(text: str) -> None:
    """Write text to stdout; line breaks are kept, other control characters are escaped."""
    from opreplay.traces.names import escape_controls

    with naming_stdout():
        stdout().write(escape_controls(text))


def one_line(text: str) -> str:
    """Return a text with control characters and line breaks escaped."""
    from opreplay.traces.names import escape_controls

    return escape_controls(text).replace("\n", "\\n")


def escape_messages() -> None:
    """Escape control characters in Python's warnings and tracebacks."""
    import traceback
    import warnings

    def escaped(text: str) -> str:
        from opreplay.traces.names import escape_controls

        return escape_controls(text)

    formatted = warnings.formatwarning

    def format_warning(*args: Any, **others: Any) -> str:
        return escaped(formatted(*args, **others))

    def print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(escaped("".join(traceback.format_exception(kind, error, trace))))

    warnings.formatwarning, sys.excepthook = format_warning, print_error


def json_text(value: Any) -> str:
    """Return a value as indented JSON; msgspec structs are supported."""
    from opreplay.replay.report.text import shown_json

    return shown_json(value)
