# pyright: strict
"""Readers of profiles, one per file kind; a new kind needs a file with a `Dialect` and an entry in `kinds`."""

from opreplay.traces.dialects.kinds import CHAKRA, DIALECTS, EXECUTION_TRACE, TRACE_EVENTS

__all__ = ["CHAKRA", "DIALECTS", "EXECUTION_TRACE", "TRACE_EVENTS"]
