# pyright: strict
"""Counters of work by exact op name; refuses duplicates and owns no counting.

Counters read the arguments alone. What an initializer says of its own doing is not asked.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from opreplay.initializers.base import BatchLengths, InitContext, InitializerError
from opreplay.replay.arguments.work.amounts import Work
from opreplay.traces.errors import strict

Counter = Callable[[InitContext, "BatchLengths | None"], "Work | None"]
"""(call, lengths handed around it) -> its work; None or InitializerError where the call lacks what that depends on."""

FAMILIES = ("attention", "moe", "indices")
"""Modules of this package that register counters."""

_counters: dict[str, Counter] = {}
_loaded = False


def counts(*ops: str) -> Callable[[Counter], Counter]:
    """Register a counter for ops by exact name. Raises ValueError for an op that has one."""

    def register(counter: Counter) -> Counter:
        for op in ops:
            if op in _counters:
                raise ValueError(f"{op} has a counter already: {_counters[op].__name__}")
            _counters[op] = counter
        return counter

    return register


def _load() -> None:
    global _loaded
    if not _loaded:
        _loaded = True
        for family in FAMILIES:
            import_module(f"opreplay.replay.arguments.work.{family}")


def counted_ops() -> list[str]:
    """Names of all ops whose work can be counted, sorted. Imports torch."""
    _load()
    return sorted(_counters)


def work_of(context: InitContext, lengths: BatchLengths | None = None) -> Work | None:
    """The work that the values of a call's arguments cause; None for an op whose work its shapes alone decide.

    Also None for a call that lacks what its work depends on. `lengths` are the batch's where the op gets them through
    no argument. Raises InternalError for a counter that fails. Imports torch.
    """
    _load()
    counter = _counters.get(context.op)
    if counter is None:
        return None
    with strict(f"counter of work {counter.__name__} for {context.op}"):
        try:
            return counter(context, lengths)
        except InitializerError:
            return None
