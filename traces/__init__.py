# pyright: strict
"""Read profile files. Does not import torch."""

from opreplay.traces.limits import Limits
from opreplay.traces.links.annotations import BatchContext, batch_context
from opreplay.traces.links.parents import innermost_parent
from opreplay.traces.literals import format_literal, parse_literal
from opreplay.traces.model import KernelTable, OpSignature, OpTable, TensorMeta, Trace, TraceInfo
from opreplay.traces.reader import expand_paths, read_trace, the_one_path
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
    "the_one_path",
]
