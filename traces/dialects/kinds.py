# pyright: strict
"""The kinds of profiles, in a row; readers of kinds that are rare are imported when a file is theirs."""

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
"""In the order in which they are asked whether a file is theirs; the last takes what is left, and says what is wrong
with a file that is no profile."""
