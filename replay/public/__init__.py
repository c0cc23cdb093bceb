# pyright: strict
"""opreplay: replay the ops of a PyTorch profiler trace, measure them here, predict them on a simulated Ascend NPU.

    import opreplay

    trace = opreplay.open("trace.json.gz")
    trace["aten::mm"].measure()

These are the public names. docs/python.md shows each at work. They are looked up when they are first used. Hence
importing opreplay takes no time and loads neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opreplay.initializers.amounts import Amount, Work
    from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport, Option
    from opreplay.initializers.extensions import register_initializer
    from opreplay.replay import tile
    from opreplay.replay.ascend.custom.estimators import register_op_estimator
    from opreplay.replay.ascend.custom.op_invoke import (
        OpInvokeInfo,
        PerformanceModel,
        PerformanceProperties,
        register_op_properties,
    )
    from opreplay.replay.capture.capture import capture
    from opreplay.replay.check.model import CheckResult
    from opreplay.replay.execute.options import RunOptions
    from opreplay.replay.ir.reasons import NotReplayable
    from opreplay.replay.resolve.user.conversions import Conversion, register_conversion
    from opreplay.replay.resolve.user.executors import register_executor
    from opreplay.replay.results.measurement import Measurement
    from opreplay.replay.session.benchmarking import benchmark
    from opreplay.replay.session.checking import check
    from opreplay.replay.session.looking import Inspection, Timeline, inspect, step, timeline
    from opreplay.replay.session.op import Op, PreparedCall
    from opreplay.replay.session.single import op, op_of_call, op_of_event
    from opreplay.replay.session.sweeping import Sweep, sweep
    from opreplay.replay.session.trace import OpenTrace, open, plan
    from opreplay.replay.session.whole import (
        Comparison,
        Results,
        Simulation,
        compare,
        read_results,
        run,
        simulate,
    )
    from opreplay.traces.errors import OpReplayError
    from opreplay.traces.reader import read_trace

    __version__: str

__all__ = [
    "Amount",
    "CheckResult",
    "Comparison",
    "Conversion",
    "CustomInit",
    "InitContext",
    "InitReport",
    "InitializerError",
    "Inspection",
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
    "Sweep",
    "Timeline",
    "Work",
    "benchmark",
    "capture",
    "check",
    "compare",
    "inspect",
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
    "step",
    "sweep",
    "tile",
    "timeline",
]

_HOMES = {
    name: module
    for module, names in {
        "initializers.amounts": "Amount Work",
        "initializers.base": "CustomInit InitContext InitReport InitializerError Option",
        "initializers.extensions": "register_initializer",
        "replay": "tile",
        "replay.ascend.custom.estimators": "register_op_estimator",
        "replay.ascend.custom.op_invoke": "OpInvokeInfo PerformanceModel PerformanceProperties register_op_properties",
        "replay.capture.capture": "capture",
        "replay.check.model": "CheckResult",
        "replay.execute.options": "RunOptions",
        "replay.ir.reasons": "NotReplayable",
        "replay.resolve.user.conversions": "Conversion register_conversion",
        "replay.resolve.user.executors": "register_executor",
        "replay.results.measurement": "Measurement",
        "replay.session.benchmarking": "benchmark",
        "replay.session.checking": "check",
        "replay.session.looking": "Inspection Timeline inspect step timeline",
        "replay.session.op": "Op PreparedCall",
        "replay.session.single": "op op_of_call op_of_event",
        "replay.session.sweeping": "Sweep sweep",
        "replay.session.trace": "OpenTrace open plan",
        "replay.session.whole": "Comparison Results Simulation compare read_results run simulate",
        "traces.errors": "OpReplayError",
        "traces.reader": "read_trace",
    }.items()
    for name in names.split()
}
"""Name → module below `opreplay` that defines it."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        value: Any = import_module("opreplay.replay.host.environment").opreplay_version()
    elif name in _HOMES:
        try:
            home = import_module(f"opreplay.{_HOMES[name]}")
        except (ImportError, OSError) as error:
            import_module("opreplay.replay.host.needs_torch").refuse_unloadable(error)
            raise
        # `tile` is a package of names.
        value = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")
    else:
        raise AttributeError(f"module 'opreplay' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
