# pyright: strict
"""Exit codes of the process, apart from the codes that error classes define themselves."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes, documented in docs/cli.md; kept stable."""

    OK = 0
    INCOMPLETE = 1
    """The run ended, but more ops failed or were skipped than --max-failed allows, or an op lost its process."""
    USAGE = 2
    REFUSED = 3
    """The input is malformed, over a limit, or against the policy."""
    ENVIRONMENT = 4
    """A requested device or library is missing."""
    REGRESSION = 5
    """A condition given by `compare --fail-if` is met."""
    UNTESTED = 6
    """No condition of `compare --fail-if` is known to be met, but at least one could not be tested.

    This is neither a pass nor a regression.
    """
    INTERNAL = 70
    """opreplay's own code failed on an op; all other work was done."""
    INTERRUPTED = 130
