# pyright: strict
"""Compatibility for programs written for TraceLens: `from opreplay.tracelens import EventReplayer, benchmark_func`."""

from typing import Any

from opreplay.replay.session.tracelens import (
    CustomInit,
    EventReplayer,
    TensorCfg,
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
    "benchmark_func",
    "extract_batch_context",
    "list_custom_inits",
    "register_custom_init",
    "register_namespace",
]


def __getattr__(name: str) -> Any:
    """Return the current `EventReplayer._custom_init_registry`, which may be replaced."""
    if name == "_custom_init_registry":
        return EventReplayer._custom_init_registry  # pyright: ignore[reportPrivateUsage]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
