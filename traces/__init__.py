# pyright: strict
"""Read profile files; no torch.

The names are looked up when they are first used: a process that reads a part of a file needs hardly any of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opreplay.traces.limits import Limits as Limits
    from opreplay.traces.links.annotations import BatchContext as BatchContext
    from opreplay.traces.links.annotations import batch_context as batch_context
    from opreplay.traces.links.parents import innermost_parent as innermost_parent
    from opreplay.traces.literals import format_literal as format_literal
    from opreplay.traces.literals import parse_literal as parse_literal
    from opreplay.traces.model import KernelTable as KernelTable
    from opreplay.traces.model import OpSignature as OpSignature
    from opreplay.traces.model import OpTable as OpTable
    from opreplay.traces.model import TensorMeta as TensorMeta
    from opreplay.traces.model import Trace as Trace
    from opreplay.traces.model import TraceInfo as TraceInfo
    from opreplay.traces.reader import expand_paths as expand_paths
    from opreplay.traces.reader import read_trace as read_trace
    from opreplay.traces.reader import the_one_path as the_one_path
    from opreplay.traces.summary import TraceSummary as TraceSummary
    from opreplay.traces.summary import summarize as summarize

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

_HOMES = {
    "BatchContext": "links.annotations",
    "KernelTable": "model",
    "Limits": "limits",
    "OpSignature": "model",
    "OpTable": "model",
    "TensorMeta": "model",
    "Trace": "model",
    "TraceInfo": "model",
    "TraceSummary": "summary",
    "batch_context": "links.annotations",
    "expand_paths": "reader",
    "format_literal": "literals",
    "innermost_parent": "links.parents",
    "parse_literal": "literals",
    "read_trace": "reader",
    "summarize": "summary",
    "the_one_path": "reader",
}
"""Where each name is defined, below `opreplay.traces`."""


def __getattr__(name: str) -> Any:
    """A public name, when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'opreplay.traces' has no attribute {name!r}")
    value = getattr(import_module(f"opreplay.traces.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
