# pyright: strict
"""The root of opreplay's error tree; every error a user can meet has an exit code and a hint.

    OpReplayError
    ├── UsageError              2   flags or option values that make no sense together
    ├── TraceError              3   the input file was refused
    │   ├── Malformed               not JSON, not a trace, or damaged beyond salvage
    │   ├── TooLarge                over a limit of `traces.limits.Limits`
    │   └── UnknownDialect          JSON, but of no kind that opreplay reads
    ├── PolicyError             3   the input asks for something that opreplay never does
    ├── FormatError             3   a plan, result or device file with the wrong schema or version
    └── EnvironmentRefused      4   a device or library that was asked for is missing

Reasons why a single op was not replayed are no errors: see `opreplay.replay.ir.model.Reason`.
"""

from __future__ import annotations


class OpReplayError(Exception):
    """An error for the user: `str()` says what is wrong, `hint` says what to do next."""

    exit_code: int = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(OpReplayError):
    """Flags or option values that make no sense, alone or together."""

    exit_code = 2


class TraceError(OpReplayError):
    """The input file was refused."""

    exit_code = 3


class Malformed(TraceError):
    """Not JSON, not a trace, or damaged beyond salvage."""


class TooLarge(TraceError):
    """Over a limit: the message names the limit, its value, the actual value and how to raise it."""


class UnknownDialect(TraceError):
    """JSON, but of no kind that opreplay reads."""


class PolicyError(OpReplayError):
    """The input asks for something that opreplay never does."""

    exit_code = 3


class FormatError(OpReplayError):
    """A plan, result or device file whose schema or version does not fit."""

    exit_code = 3


class EnvironmentRefused(OpReplayError):
    """A device or library that was asked for is missing; opreplay never falls back to another by itself."""

    exit_code = 4
