"""Turn one profile event, given as a dictionary, into a trace of one call."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from opreplay.traces.dialects.kineto import metadata_level
from opreplay.traces.errors import Malformed
from opreplay.traces.model import KernelTable, OpTable, Trace, TraceInfo
from opreplay.traces.reading.signatures import decode_signatures

SOURCE = "event"
"""Text that stands in place of a file name in a trace of one event."""
_DIMS = ("Input Dims", "Input dims")
"""Keys of the input shapes: the current spelling, and the spelling of torch up to 1.8."""
_HINT = "A Kineto op event has a name, and args with Input Dims, Input type, Input Strides and Concrete Inputs."


def trace_of_event(event: Mapping[str, Any]) -> Trace:
    """Return a trace of one call without device time; the arguments are parsed as if they were in a file.

    `event` is an entry of `traceEvents`. Its "name" and "args" are used, and "dur" (microseconds) if it is present.
    Raises Malformed for an event without a name or with unreadable arguments.
    """
    if not isinstance(event, Mapping):
        raise Malformed(f"an event is a mapping, not {type(event).__name__}", hint=_HINT)  # pyright: ignore
    name, args = event.get("name"), event.get("args", {})
    if not isinstance(name, str) or not name or not isinstance(args, Mapping):
        raise Malformed("this event is not an op: it has no name, or its args are not an object", hint=_HINT)
    dims = next((args[key] for key in _DIMS if key in args), None)
    fields = (name, dims, args.get("Input type"), args.get("Input Strides"), args.get("Concrete Inputs"))
    try:
        key = b"\0".join(msgspec.json.encode(field) for field in fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed(f"the arguments of {name} are not JSON: {error}", hint=_HINT) from None
    losses: Counter[str] = Counter()
    signatures, _ = decode_signatures([key], losses, Counter())
    if losses:
        raise Malformed(f"the arguments of {name} cannot be read", hint=_HINT)
    duration_ns = _nanoseconds(event.get("dur"), name)
    return Trace(
        info=TraceInfo(
            path=SOURCE, dialect="kineto", bytes_read=len(key), events=1, metadata_level=metadata_level(signatures)
        ),
        signatures=signatures,
        ops=OpTable(
            signature=np.zeros(1, np.uint32),
            start_ns=np.zeros(1, np.int64),
            dur_ns=np.array([duration_ns], np.int64),
            track=np.zeros(1, np.uint16),
        ),
        tracks=(("", ""),),
        kernel_names=(),
        kernels=KernelTable.none(),
        annotations=(),
    )


def _nanoseconds(duration_us: object, name: str) -> int:
    """Return a duration in nanoseconds; 0 if there is none. Raises Malformed for an invalid duration."""
    if duration_us is None:
        return 0
    if isinstance(duration_us, bool) or not isinstance(duration_us, (int, float)) or not math.isfinite(duration_us):
        raise Malformed(f"the duration of {name} is not a number", hint=_HINT)
    if not 0 <= duration_us < 1e15:
        raise Malformed(f"the duration of {name}, {duration_us} us, is invalid", hint=_HINT)
    return round(duration_us * 1000)
