# pyright: strict
"""One reader per kind of profile; a new kind is a file with a `Dialect` and a row here."""

from opreplay.traces.dialects.execution_trace import CHAKRA, EXECUTION_TRACE
from opreplay.traces.dialects.trace_events import TRACE_EVENTS

DIALECTS = (CHAKRA, EXECUTION_TRACE, TRACE_EVENTS)
"""In the order in which they are asked whether a file is theirs; the last takes what is left, and says what is wrong
with a file that is no profile."""

__all__ = ["CHAKRA", "DIALECTS", "EXECUTION_TRACE", "TRACE_EVENTS"]
