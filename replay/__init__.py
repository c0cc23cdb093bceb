# pyright: strict
"""From a trace to results: the IR, resolution, execution, prediction and reports.

This package exports names for plugins. They are looked up when they are first used, because an import of any module in
this folder also imports this one.
"""

from typing import TYPE_CHECKING

from opreplay.replay.host.lazy_names import lazy_names

if TYPE_CHECKING:
    from opreplay.replay.ir.recorded_call import RecordedArg
    from opreplay.replay.resolve.user.conversions import Conversion, RecordedCall, register_conversion
    from opreplay.replay.resolve.user.executors import register_executor
    from opreplay.traces.model import TensorMeta

__all__ = ["Conversion", "RecordedArg", "RecordedCall", "TensorMeta", "register_conversion", "register_executor"]

_HOMES = {
    "Conversion": "replay.resolve.user.conversions",
    "RecordedArg": "replay.ir.recorded_call",
    "RecordedCall": "replay.resolve.user.conversions",
    "TensorMeta": "traces.model",
    "register_conversion": "replay.resolve.user.conversions",
    "register_executor": "replay.resolve.user.executors",
}
"""Name → module below `opreplay` that defines it."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
