# pyright: strict
"""The terminal: consoles for data and narration, made when they are needed; owns no content.

Whatever is printed goes through here, and no character leaves that a terminal acts on: texts of a trace may be passed
as they are. Colours are made here, behind that.
"""

from __future__ import annotations

import contextlib
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
    from rich.segment import Segment

    from opreplay.traces.names import escape_controls

    class PipeConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            """What is printed, with controls in its texts as escapes; all that rich prints passes here."""
            for segment in super().render(renderable, options):
                shown = segment.text if segment.control else escape_controls(segment.text)
                yield segment if shown is segment.text else Segment(shown, segment.style)

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
    """One line to stdout, with line ends as escapes: broken between words on a terminal, else never, so that scripts
    can take it whole."""
    from rich.text import Text

    console = make_console()
    with naming_stdout():
        console.print(Text(one_line(text), style="bold"), soft_wrap=not console.file.isatty())


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
    """A line to stderr, whatever line ends the text has."""
    import click

    click.echo(one_line(text), err=True)


def write(text: str) -> None:
    """Data to stdout, its lines as they are."""
    from opreplay.traces.names import escape_controls

    with naming_stdout():
        stdout().write(escape_controls(text))


def one_line(text: str) -> str:
    """A text with controls and line ends as escapes."""
    from opreplay.traces.names import escape_controls

    return escape_controls(text).replace("\n", "\\n")


def escape_messages() -> None:
    """Print Python's warnings and tracebacks with controls in their texts as escapes."""
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
    """A value as indented JSON; msgspec structs and what they hold are known."""
    from opreplay.replay.report.text import shown_json

    return shown_json(value)
