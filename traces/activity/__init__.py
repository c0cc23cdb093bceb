# pyright: strict
"""The timing of a profile: runtime calls, device tasks, flow arrows, waits and memory. Does not import torch."""

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
