# pyright: strict
"""Find and load user initializers, including classes written for TraceLens.

They are registered by a decorator, or loaded from a file, a module or an entry point. `registry` decides which one an
op gets.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

from opreplay.initializers.base import CustomInit, InitContext, InitReport
from opreplay.initializers.registry import Registry, refuse_unusable
from opreplay.initializers.user_code import (
    current_source,
    forget_loaded,
    installed,
    load_entry_point,
    load_user_code,
    place_of_class,
    redefines_class,
)
from opreplay.traces.errors import UsageError

ENTRY_POINTS = "opreplay.initializers"
"""Entry point group; each entry point names a class."""
USERS_PRIORITY = 10
"""Priority of classes written for TraceLens, which has no priorities. They come before the built-ins."""

Kind = TypeVar("Kind", bound=type)

_registered: dict[str, type[CustomInit]] = {}
_sources: dict[str, str] = {}


def register_initializer(kind: Kind) -> Kind:
    """Register an initializer class; used as a decorator.

    The class is a `CustomInit`, or is written for TraceLens. If a notebook cell is edited or run again, the new class
    replaces the earlier one. Raises UsageError for a name that another class has taken, and for a class that could not
    apply to any op.
    """
    adapted = kind if issubclass(kind, CustomInit) else adapt_tracelens(kind)
    refuse_unusable(adapted, adapted.op_patterns, kind)
    known = _registered.get(adapted.name)
    adapts = getattr(known, "adapts", None)  # an initializer may have an attribute of this name
    earlier = adapts if isinstance(adapts, type) else known
    if known is not None and known is not adapted and not redefines_class(kind, earlier):
        raise UsageError(
            f"{place_of_class(kind)}: there is already an initializer named {adapted.name!r}, from "
            f"{place_of_class(known)}",
            hint="Choose another name.",
        )
    _registered[adapted.name] = adapted
    _sources[adapted.name] = current_source()
    return kind


def extend(
    registry: Registry, modules: Sequence[str] = (), settings: Sequence[str] = (), *, plugins: bool = True
) -> Registry:
    """Add the user's initializers to the registry, then apply all settings.

    `modules` are files ending in .py, or names of modules; both are run. With `plugins`, the initializers of installed
    packages are added as well. Raises UsageError for a module that cannot be loaded, for duplicates and for invalid
    settings.
    """
    for name in modules:
        load_user_code(name, flag="--plugin")
    for kind in _registered.values():
        registry.register(kind())
    for entry in installed(ENTRY_POINTS) if plugins else ():
        kind = load_entry_point(entry)
        if kind not in _registered.values():
            registry.register((kind if issubclass(kind, CustomInit) else adapt_tracelens(kind))())
    registry.configure(settings)
    return registry


def clear_registrations() -> None:
    """Clear all registrations and forget the loaded files. This is for tests and long-running programs."""
    _registered.clear()
    _sources.clear()
    forget_loaded()


@contextmanager
def without_registrations() -> Generator[None, None, None]:
    """Ignore this program's registrations of initializers inside the context."""
    before = dict(_registered)
    _registered.clear()
    try:
        yield
    finally:
        _registered.update(before)


def registered() -> dict[str, tuple[type[CustomInit], str]]:
    """Return the registered initializers by name, each with the file or module that was being loaded."""
    return {name: (kind, _sources[name]) for name, kind in _registered.items()}


def adapt_tracelens(kind: type) -> type[CustomInit]:
    """Wrap a class with TraceLens's interface as an initializer.

    The class has `op_patterns` and `initialize(replayer, **kwargs)`, and may have `applies_to(replayer)`, `name` and
    `priority`. The `replayer` argument describes the call: it has `args`, `kwargs`, `event` and `event_replay_IR`.
    Raises UsageError for any other class.
    """
    patterns = getattr(kind, "op_patterns", None)
    if not patterns or not callable(getattr(kind, "initialize", None)):
        raise UsageError(
            f"{kind.__name__} is not an initializer", hint="It needs attributes op_patterns and initialize."
        )
    original: Any = kind()

    class Adapted(CustomInit):
        __doc__ = kind.__doc__
        name = getattr(kind, "name", None) or kind.__name__
        op_patterns = tuple(patterns)
        priority = getattr(kind, "priority", USERS_PRIORITY)
        adapts = kind

        def applies_to(self, context: InitContext) -> bool:
            asked = getattr(original, "applies_to", None)
            return asked is None or bool(asked(replayer_of(context)))

        def initialize(self, context: InitContext) -> InitReport:
            said = original.initialize(replayer_of(context))
            return InitReport(summary=str(said) if said is not None else "")

    return Adapted


def replayer_of(context: InitContext) -> SimpleNamespace:
    """Return the call as the replayer object that TraceLens's initializers expect.

    Its tensors are those of the call itself, to be filled in place.
    """
    by_place = {name: value for name, value in context.args.items() if name not in context.keyword_only}
    by_name = {name: value for name, value in context.args.items() if name in context.keyword_only}
    dims = [[list(m.shape) if m else [] for m in context.metas.get(name, ())] for name in context.args]
    return SimpleNamespace(
        args=list(by_place.values()),
        kwargs=by_name,
        event={"name": context.op, "args": {"Input Dims": [d[0] if len(d) == 1 else d for d in dims]}},
        event_replay_IR={
            "list_pos_args": [{"arg_name": name, "value": value} for name, value in by_place.items()],
            "list_kwargs": [{"arg_name": name, "value": value} for name, value in by_name.items()],
        },
    )
