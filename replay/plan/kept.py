# pyright: strict
"""Caches plans and argument contents between runs, under a key of everything they depend on.

The key covers the trace or plan with all its values, the options and opreplay's source files. It also covers the
versions of Python, torch and the packages that torch loads, and the environment settings of opreplay and torch. A
result is not cached if it depends on user code or an imported library, or if a time limit made it incomplete.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import numpy as np

from opreplay.initializers.user_code import entry_points
from opreplay.replay.host import kept
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ops.work.contents import Contents
from opreplay.replay.plan.selection import Selection
from opreplay.traces.links.annotations import AnnotationTable
from opreplay.traces.model import OpSignature

if TYPE_CHECKING:
    from opreplay.replay.ops.work.expected import ExpectedContents
    from opreplay.replay.resolve.written.sweep import Written
    from opreplay.traces import Trace

_Value = TypeVar("_Value")
_FILES = (".py", ".txt", ".toml", ".json", ".so")
_SETTINGS = ("OPREPLAY_", "TORCH", "PYTORCH")
"""Prefixes of environment variables that may affect a plan."""


def cached_plan(
    read: Trace | ReplayPlan, selection: Selection, *, device: str, order: bool, make: Callable[[], ReplayPlan]
) -> ReplayPlan:
    """Return the cached plan of the same input. If there is none, make the plan with `make` and cache it.

    A plan is not cached if it is for another device than the CPU, or if it uses imported libraries. The key does not
    say which devices and libraries are available.
    """
    key = None if selection.allow_imports or device != "cpu" else key_of("plan", read, selection, order)
    return _load_or_make(key, ReplayPlan, make)


def cached_plan_of_calls(
    cases: Sequence[Written],
    *,
    allow_imports: Mapping[str, str] | None = None,
    device: str = "cpu",
) -> tuple[ReplayPlan, tuple[str, ...]]:
    """Return the result of `plan_of_calls` from the cache, or compute and cache it; see `cached_plan`."""
    from opreplay.replay.resolve.written.sweep import plan_of_calls

    key = None if allow_imports or device != "cpu" else key_of("calls", *cases)
    kind = tuple[ReplayPlan, tuple[str, ...]]
    return _load_or_make(key, kind, lambda: plan_of_calls(cases, allow_imports=allow_imports, device=device))


def _load_or_make(key: str | None, kind: type[_Value], make: Callable[[], _Value]) -> _Value:
    """Return the cached value for a key. If there is none, make the value and cache it. With the key None, the value is
    made and not cached.
    """
    if (known := _loaded(key, kind)) is not None:
        return known
    value = make()
    from opreplay.replay.resolve.meta import forked

    if key is not None and not forked.any_lost():
        kept.store(key, msgspec.msgpack.encode(value))
    return value


def _loaded(key: str | None, kind: type[_Value]) -> _Value | None:
    if key is None or (body := kept.load(key)) is None:
        return None
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError:
        return None  # written by other hands


class _Known(msgspec.Struct, frozen=True, array_like=True):
    contents: Contents | None
    problem: str = ""
    impossible: str = ""
    unrecorded: str = ""


class CachedContents:
    """Cached `ExpectedContents` of one plan with the built-in initializers. Contents that are not cached are computed
    when they are needed.
    """

    def __init__(self, make: Callable[[], ExpectedContents], plan: ReplayPlan, seed: int) -> None:
        self._make, self._real = make, None
        self._key = key_of("contents", plan, seed)
        self._new = False
        self._known = _loaded(self._key, dict[str, _Known]) or {}
        self.problems: dict[str, str] = {}
        self.impossible: dict[str, str] = {}
        self.unrecorded: dict[str, str] = {}

    def __call__(self, op: ReplayOp) -> Contents | None:
        """Return the contents of an op's arguments, as `ExpectedContents` does."""
        look = blake2b(msgspec.msgpack.encode(op), digest_size=16).hexdigest()
        known = self._known.get(look)
        if known is None:
            real = self._real = self._make() if self._real is None else self._real
            contents = real(op)
            problems = (kind.get(op.id, "") for kind in (real.problems, real.impossible, real.unrecorded))
            known = _Known(contents, *problems)
            self._known[look], self._new = known, True
        if known.problem:
            self.problems[op.id] = known.problem
        if known.impossible:
            self.impossible[op.id] = known.impossible
        if known.unrecorded:
            self.unrecorded[op.id] = known.unrecorded
        return known.contents

    def store_new(self) -> None:
        """Write the newly computed contents to the cache."""
        if self._new and self._key is not None:
            kept.store(self._key, msgspec.msgpack.encode(self._known))


def key_of(kind: str, *values: Any) -> str | None:
    """Return a cache key for these values and the installed software. None if one of the values has no
    canonical form.
    """
    hasher = blake2b(digest_size=32)
    try:
        for value in (kind, _software(), *values):
            _feed(hasher, value)
    except (TypeError, msgspec.MsgspecError):
        return None
    return hasher.hexdigest()


_SIGNATURE = tuple(field.name for field in dataclasses.fields(OpSignature))


def _feed(hasher: Any, value: Any) -> None:
    """Add every part of a value to the hash. Raises TypeError for values without a canonical form."""
    hasher.update(f"<{type(value).__name__}>".encode())
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, np.dtype[Any]]", value)
        if array.dtype.hasobject:
            raise TypeError("an array of objects")
        hasher.update(repr((array.dtype.str, array.shape)).encode())
        hasher.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    elif isinstance(value, AnnotationTable):
        for name, part in sorted(vars(value).items()):
            hasher.update(name.encode())
            _feed(hasher, part)
    elif isinstance(value, msgspec.Struct | OpSignature):
        names = value.__struct_fields__ if isinstance(value, msgspec.Struct) else _SIGNATURE
        for name in names:
            hasher.update(name.encode())
            _feed(hasher, getattr(value, name))
    else:
        # The name of a file may hold bytes that no JSON takes.
        body = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else msgspec.msgpack.encode(value)
        hasher.update(len(body).to_bytes(8, "little"))
        hasher.update(body)


def _stamps(package: str) -> Iterator[Any]:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for base, folders, files in os.walk(folder):
            folders.sort()
            yield from (_stamp(os.path.join(base, file)) for file in sorted(files) if file.endswith(_FILES))


@cache
def _software() -> tuple[Any, ...]:
    """Return the facts about this installation that may affect a plan. Does not import torch."""
    parts: list[Any] = [sys.version, platform.machine(), sys.platform]
    for name in ("opreplay.traces", "opreplay.initializers", "opreplay.replay"):
        parts += _stamps(name)
    for name in ("torch", "numpy", "msgspec"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            place = Path(spec.origin).parent
            parts += [_stamp(str(path)) for path in (place / "__init__.py", place / "version.py") if path.is_file()]
    parts += sorted((entry.name, entry.value) for entry in entry_points("torch.backends"))
    parts += sorted((name, text) for name, text in os.environ.items() if name.startswith(_SETTINGS))
    return tuple(parts)


def _stamp(path: str) -> tuple[str, int, int]:
    what = os.stat(path)
    return path, what.st_size, what.st_mtime_ns
