# pyright: strict
"""From a trace to results: the IR, resolution, execution, prediction and reports; here what users' plugins need."""

from opreplay.replay.ir.recorded_call import RecordedArg
from opreplay.replay.resolve.user.conversions import Conversion, RecordedCall, register_conversion
from opreplay.replay.resolve.user.executors import register_executor
from opreplay.traces.model import TensorMeta

__all__ = ["Conversion", "RecordedArg", "RecordedCall", "TensorMeta", "register_conversion", "register_executor"]
