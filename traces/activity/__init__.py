# pyright: strict
"""What ran when: calls into runtimes, device tasks, arrows, waits and memory of a profile; no torch."""

from opreplay.traces.activity.model import (
    ARROW_KINDS,
    CALL_KINDS,
    Activity,
    ArrowTable,
    CallTable,
    Collective,
    CollectiveSpans,
    MemoryTable,
    WaitTable,
)

__all__ = [
    "ARROW_KINDS",
    "CALL_KINDS",
    "Activity",
    "ArrowTable",
    "CallTable",
    "Collective",
    "CollectiveSpans",
    "MemoryTable",
    "WaitTable",
]
