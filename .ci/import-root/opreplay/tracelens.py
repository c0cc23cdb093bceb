# pyright: strict
"""For programs written for TraceLens: `from opreplay.tracelens import EventReplayer, benchmark_func`."""

from opreplay.replay.session.tracelens import EventReplayer, benchmark_func

__all__ = ["EventReplayer", "benchmark_func"]
