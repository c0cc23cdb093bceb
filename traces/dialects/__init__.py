# pyright: strict
"""One reader per kind of profile; a new kind is a file with a `Dialect` and a row in `kinds`."""

from opreplay.traces.dialects.kinds import CHAKRA, DIALECTS, EXECUTION_TRACE, TRACE_EVENTS

__all__ = ["CHAKRA", "DIALECTS", "EXECUTION_TRACE", "TRACE_EVENTS"]
