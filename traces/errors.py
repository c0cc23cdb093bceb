# pyright: strict
"""The root of opreplay's error hierarchy; every error that a user can see has an exit code and a hint.

    OpReplayError
    ├── UsageError              2   flags or option values that are invalid, alone or together
    ├── TraceError              3   the input file was refused
    │   ├── Malformed               not JSON, not a trace, or damaged beyond repair
    │   ├── TooLarge                over a limit of `traces.limits.Limits`
    │   └── UnknownDialect          JSON of a kind that opreplay does not read
    ├── PolicyError             3   the input asks for something that opreplay never does
    ├── FormatError             3   a plan, result or device file with the wrong schema or version
    ├── EnvironmentRefused      4   a requested device or library is missing
    └── InternalError          70   opreplay's own code failed

Reasons why a single op was not replayed are not errors: see `opreplay.replay.ir.model.Reason`.
"""

from __future__ import annotations

import dis
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, TracebackType


class OpReplayError(Exception):
    """An error for the user: `problem` describes the error, `hint` says what to do next, and `str()` gives both."""

    exit_code: int = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.problem = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem}\nhint: {self.hint}" if self.hint else self.problem


class UsageError(OpReplayError):
    """Invalid options or option values, alone or in combination."""

    exit_code = 2


class TraceError(OpReplayError):
    """The input file was refused."""

    exit_code = 3


class NothingRan(TraceError):
    """The step or file contains nothing that can be timed, or nothing that can be placed on the requested device."""


class Malformed(TraceError):
    """Not JSON, not a trace, or damaged beyond salvage."""


class TooLarge(TraceError):
    """A limit was exceeded: the message names the limit, its value, the actual value and how to raise it."""


class UnknownDialect(TraceError):
    """JSON of a kind that opreplay does not read."""


class PolicyError(OpReplayError):
    """The input asks for something that opreplay never does."""

    exit_code = 3


class FormatError(OpReplayError):
    """A plan, result or device file with the wrong schema or version."""

    exit_code = 3


class EnvironmentRefused(OpReplayError):
    """A requested device or library is missing; opreplay never falls back to another one by itself."""

    exit_code = 4


class InternalError(OpReplayError):
    """opreplay's own code failed on one op: a bug to report and fix, never a prediction or a reason to skip the op."""

    exit_code = 70


def internal_error(doing: str, error: Exception) -> InternalError:
    """Return the error for an unexpected exception in an opreplay function, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return InternalError(
        f"internal error: {doing}: {type(error).__name__}: {error}{place}",
        hint="This is a fault of opreplay, not of its input: please report it. --exclude NAME leaves the op out.",
    )


MEMORY_SIGNS = ("can't allocate memory", "out of memory", "bad_alloc", "not enough memory", "unable to mmap")
"""Texts in the error messages of torch, oneDNN and the C++ library when an allocation fails."""
_MACHINE = ("OutOfMemoryError", "AcceleratorError")
"""Names of torch errors caused by the machine, not the code that raises them: no memory, or a failed earlier kernel."""


def lacks_memory(error: BaseException) -> bool:
    """Check whether an error is a failed memory allocation."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in MEMORY_SIGNS)


@contextmanager
def strict(doing: str, *expected: type[Exception]) -> Generator[None, None, None]:
    """Turn an unexpected error of opreplay's code within the context into InternalError.

    Errors of the `expected` types, OpReplayErrors and errors caused by the machine, such as lack of memory, pass
    through.
    """
    try:
        yield
    except (OpReplayError, *expected):
        raise
    except Exception as error:
        if lacks_memory(error) or type(error).__name__ in _MACHINE:
            raise
        raise internal_error(doing, error) from error


_PACKAGE = Path(__file__).resolve().parents[1]
_OWN = frozenset({"cli", "initializers", "replay", "traces"})
"""Folders that contain opreplay's own code."""


def is_own_fault(error: BaseException) -> bool:
    """Check whether an error is a fault of opreplay: its own code raised it, and an op's arguments cannot explain it.

    Such errors are a missing name, attribute or key, the import of a module that opreplay lacks, or a call that an
    opreplay function does not accept. All other errors in code that runs an op are attributed to the op's arguments.
    Either torch refuses them, or a line that unpacks a shape fails, such as `rows, columns = x.shape` or `x.shape[3]`.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not _is_own_code(last.tb_frame.f_code):
        return False
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0] == "opreplay"
    return isinstance(error, AttributeError | NameError | KeyError) or (
        isinstance(error, TypeError) and _misses_own_signature(error, last)
    )


def _misses_own_signature(error: TypeError, last: TracebackType) -> bool:
    """Check whether the failing line called a function of opreplay with the wrong arguments.

    Calls with `*shape` do not count, because the length of the shape depends on the op's tensors.
    """
    frame = last.tb_frame
    called = (value for value in {**frame.f_globals, **frame.f_locals}.values() if isinstance(value, FunctionType))
    if not any(str(error).startswith(f"{call.__qualname__}() ") and _is_own_code(call.__code__) for call in called):
        return False
    steps = dis.get_instructions(frame.f_code)
    return not any(step.offset == last.tb_lasti and step.opname == "CALL_FUNCTION_EX" for step in steps)


def _is_own_code(code: CodeType) -> bool:
    place = Path(code.co_filename)
    return place.is_relative_to(_PACKAGE) and place.relative_to(_PACKAGE).parts[0] in _OWN
