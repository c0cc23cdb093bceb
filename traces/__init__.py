"""Read profile files; no torch."""

from opreplay.traces.annotations import BatchContext, batch_context
from opreplay.traces.limits import Limits
from opreplay.traces.literals import format_literal, parse_literal
from opreplay.traces.model import KernelTable, OpSignature, OpTable, TensorMeta, Trace, TraceInfo
from opreplay.traces.parents import innermost_parent
from opreplay.traces.reader import expand_paths, read_trace
from opreplay.traces.summary import TraceSummary, summarize

__all__ = [
    "BatchContext",
    "KernelTable",
    "Limits",
    "OpSignature",
    "OpTable",
    "TensorMeta",
    "Trace",
    "TraceInfo",
    "TraceSummary",
    "batch_context",
    "expand_paths",
    "format_literal",
    "innermost_parent",
    "parse_literal",
    "read_trace",
    "summarize",
]
