# pyright: strict
"""opreplay: replay the ops of a PyTorch profiler trace, measure them here, predict them on a simulated Ascend NPU.

    import opreplay

    trace = opreplay.open("trace.json.gz")
    trace["aten::mm"].measure()

These are the public names; docs/python.md shows each at work. They are looked up when they are first used, so that
importing opreplay takes no time and brings in neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opreplay.initializers.base import CustomInit as CustomInit
    from opreplay.initializers.base import InitContext as InitContext
    from opreplay.initializers.base import InitializerError as InitializerError
    from opreplay.initializers.base import InitReport as InitReport
    from opreplay.initializers.base import Option as Option
    from opreplay.initializers.extensions import register_initializer as register_initializer
    from opreplay.replay import tile as tile
    from opreplay.replay.ascend.custom.estimators import register_op_estimator as register_op_estimator
    from opreplay.replay.ascend.custom.op_invoke import OpInvokeInfo as OpInvokeInfo
    from opreplay.replay.ascend.custom.op_invoke import PerformanceModel as PerformanceModel
    from opreplay.replay.ascend.custom.op_invoke import PerformanceProperties as PerformanceProperties
    from opreplay.replay.ascend.custom.op_invoke import register_op_properties as register_op_properties
    from opreplay.replay.capture.capture import capture as capture
    from opreplay.replay.check.model import CheckResult as CheckResult
    from opreplay.replay.execute.options import RunOptions as RunOptions
    from opreplay.replay.ir.reasons import NotReplayable as NotReplayable
    from opreplay.replay.resolve.user.conversions import Conversion as Conversion
    from opreplay.replay.resolve.user.conversions import register_conversion as register_conversion
    from opreplay.replay.resolve.user.executors import register_executor as register_executor
    from opreplay.replay.results.measurement import Measurement as Measurement
    from opreplay.replay.session.benchmarking import benchmark as benchmark
    from opreplay.replay.session.call import PreparedCall as PreparedCall
    from opreplay.replay.session.checking import check as check
    from opreplay.replay.session.op import Op as Op
    from opreplay.replay.session.single import op as op
    from opreplay.replay.session.single import op_of_call as op_of_call
    from opreplay.replay.session.single import op_of_event as op_of_event
    from opreplay.replay.session.trace import OpenTrace as OpenTrace
    from opreplay.replay.session.trace import open as open
    from opreplay.replay.session.trace import plan as plan
    from opreplay.replay.session.whole import Comparison as Comparison
    from opreplay.replay.session.whole import Results as Results
    from opreplay.replay.session.whole import Simulation as Simulation
    from opreplay.replay.session.whole import compare as compare
    from opreplay.replay.session.whole import read_results as read_results
    from opreplay.replay.session.whole import run as run
    from opreplay.replay.session.whole import simulate as simulate
    from opreplay.traces.errors import OpReplayError as OpReplayError
    from opreplay.traces.reader import read_trace as read_trace

    __version__: str

__all__ = [
    "CheckResult",
    "Comparison",
    "Conversion",
    "CustomInit",
    "InitContext",
    "InitReport",
    "InitializerError",
    "Measurement",
    "NotReplayable",
    "Op",
    "OpInvokeInfo",
    "OpReplayError",
    "OpenTrace",
    "Option",
    "PerformanceModel",
    "PerformanceProperties",
    "PreparedCall",
    "Results",
    "RunOptions",
    "Simulation",
    "benchmark",
    "capture",
    "check",
    "compare",
    "op",
    "op_of_call",
    "op_of_event",
    "open",
    "plan",
    "read_results",
    "read_trace",
    "register_conversion",
    "register_executor",
    "register_initializer",
    "register_op_estimator",
    "register_op_properties",
    "run",
    "simulate",
    "tile",
]

_HOMES = {
    "CheckResult": "replay.check.model",
    "Comparison": "replay.session.whole",
    "Conversion": "replay.resolve.user.conversions",
    "CustomInit": "initializers.base",
    "InitContext": "initializers.base",
    "InitReport": "initializers.base",
    "InitializerError": "initializers.base",
    "Measurement": "replay.results.measurement",
    "NotReplayable": "replay.ir.reasons",
    "Op": "replay.session.op",
    "OpInvokeInfo": "replay.ascend.custom.op_invoke",
    "OpReplayError": "traces.errors",
    "OpenTrace": "replay.session.trace",
    "Option": "initializers.base",
    "PerformanceModel": "replay.ascend.custom.op_invoke",
    "PerformanceProperties": "replay.ascend.custom.op_invoke",
    "PreparedCall": "replay.session.call",
    "Results": "replay.session.whole",
    "RunOptions": "replay.execute.options",
    "Simulation": "replay.session.whole",
    "check": "replay.session.checking",
    "benchmark": "replay.session.benchmarking",
    "capture": "replay.capture.capture",
    "compare": "replay.session.whole",
    "op": "replay.session.single",
    "op_of_call": "replay.session.single",
    "op_of_event": "replay.session.single",
    "open": "replay.session.trace",
    "plan": "replay.session.trace",
    "read_results": "replay.session.whole",
    "read_trace": "traces.reader",
    "register_conversion": "replay.resolve.user.conversions",
    "register_executor": "replay.resolve.user.executors",
    "register_initializer": "initializers.extensions",
    "register_op_estimator": "replay.ascend.custom.estimators",
    "register_op_properties": "replay.ascend.custom.op_invoke",
    "run": "replay.session.whole",
    "simulate": "replay.session.whole",
    "tile": "replay",
}
"""Where each name is defined, below `opreplay`."""


def __getattr__(name: str) -> Any:
    """A public name, when it is first used."""
    if name == "__version__":
        value: Any = import_module("opreplay.replay.host.environment").opreplay_version()
    elif name in _HOMES:
        home = import_module(f"opreplay.{_HOMES[name]}")
        # `tile` is a package of names.
        value = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")
    else:
        raise AttributeError(f"module 'opreplay' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
