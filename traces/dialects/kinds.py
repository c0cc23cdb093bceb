# pyright: strict
"""List the supported kinds of profiles; readers of rare kinds are imported only when a file of that kind is read."""

from opreplay.traces.dialects.dialect import Dialect, Want
from opreplay.traces.dialects.trace_events import TRACE_EVENTS
from opreplay.traces.model import Trace
from opreplay.traces.reading.opening import Opening
from opreplay.traces.reading.source import Source


def _is_chakra(opening: Opening) -> bool:
    if opening.keys:  # JSON
        return False
    from opreplay.traces.dialects.chakra import is_chakra

    return is_chakra(opening.data)


def _chakra(source: Source, want: Want) -> Trace:
    from opreplay.traces.dialects.execution_trace import read_chakra

    return read_chakra(source)


def _is_execution_trace(opening: Opening) -> bool:
    keys = list(opening.keys)
    return opening.layout == "object" and opening.keys.get("nodes") == "[" and "schema" in keys[: keys.index("nodes")]


def _execution_trace(source: Source, want: Want) -> Trace:
    from opreplay.traces.dialects.execution_trace import read_execution_trace

    return read_execution_trace(source, want)


CHAKRA = Dialect("chakra", sniff=_is_chakra, read=_chakra)
EXECUTION_TRACE = Dialect("execution_trace", sniff=_is_execution_trace, read=_execution_trace)
DIALECTS = (CHAKRA, EXECUTION_TRACE, TRACE_EVENTS)
"""The dialects in the order in which they are tried.

The last one accepts any remaining file, and reports the error for a file that is not a profile.
"""
