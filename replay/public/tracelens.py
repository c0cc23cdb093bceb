# pyright: strict
"""For programs written for TraceLens: `from opreplay.tracelens import EventReplayer, benchmark_func`."""

from opreplay.replay.session.tracelens import (
    CustomInit,
    EventReplayer,
    TensorCfg,
    _custom_init_registry,  # pyright: ignore[reportPrivateUsage]
    benchmark_func,
    extract_batch_context,
    list_custom_inits,
    register_custom_init,
    register_namespace,
)

__all__ = [
    "CustomInit",
    "EventReplayer",
    "TensorCfg",
    "_custom_init_registry",
    "benchmark_func",
    "extract_batch_context",
    "list_custom_inits",
    "register_custom_init",
    "register_namespace",
]
