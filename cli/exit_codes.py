# pyright: strict
"""Exit codes of the process; errors carry their own code, the others are named here."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Documented in docs/cli.md; kept stable."""

    OK = 0
    INCOMPLETE = 1
    """Ran, but more ops failed or were skipped than --max-failed allows, or a process was lost with its op."""
    USAGE = 2
    REFUSED = 3
    """Input that is malformed, over a limit, or against the policy."""
    ENVIRONMENT = 4
    """A device or library that was asked for is missing."""
    REGRESSION = 5
    """A condition of `compare --fail-if` holds."""
    UNTESTED = 6
    """Of none of those conditions that is told, but one of them could not be tested: no pass, and no regression."""
    INTERNAL = 70
    """Code of opreplay's own failed on an op; everything else was done."""
    INTERRUPTED = 130
