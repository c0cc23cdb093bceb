# pyright: strict
"""A table of user registrations by op and device that refuses duplicates and says where an entry came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from opreplay.initializers.user_code import PROGRAM, current_source, place_of
from opreplay.traces.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


class CustomOpError(UsageError):
    """A user's custom-op file, registration or function failed; the message names file and line."""


Key = tuple[str, str | None]
"""(op name, device name or None for all devices)."""


def op_name(op: Any) -> str:
    """ "ns::name" of a torch op, an overload packet, or that text itself. Raises TypeError for anything else."""
    name = op if isinstance(op, str) else getattr(op, "_qualified_op_name", None)
    if name is None:
        # An overload knows its schema; `_schema.name` has no overload name in it.
        name = getattr(getattr(op, "_schema", None), "name", None)
    if not isinstance(name, str) or "::" not in name:
        raise TypeError(f"{op!r} is no op: give torch.ops.namespace.name or 'namespace::name'")
    namespace, _, rest = name.partition("::")
    return f"{namespace}::{rest.split('.')[0]}"


def device_name(device: Any) -> str | None:
    """The name of a device given as itself or by name, canonical where it ships; None stands for all devices.

    Raises CustomOpError for a name that neither ships nor was loaded; while a user's file is loaded the devices of the
    command are not known yet, and `unknown_devices` tells.
    """
    if device is None:
        return None
    from opreplay.replay.ascend.devices.file import canonical_name, is_known, no_such_device

    name = device if isinstance(device, str) else getattr(device, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"{device!r} is no device: give a DeviceProfile, its name, or None for all devices")
    if isinstance(device, str) and not is_known(name) and current_source() == PROGRAM:
        message, hint = no_such_device(name)
        raise CustomOpError(message, hint=hint)
    return canonical_name(name) or name


class Registry(Generic[Function]):
    """Functions by op and device."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._functions: dict[Key, Function] = {}
        self._sources: dict[Key, str] = {}
        self._used: set[Key] = set()

    def add(self, op: str, device: str | None, function: Function, *, override: bool) -> None:
        """Register; raises ValueError that names the earlier place for a duplicate, unless `override`."""
        earlier = self._functions.get((op, device))
        if earlier is not None and not override and place_of(earlier) != place_of(function):
            raise ValueError(
                f"{op} has user {self._what} already{f' for {device}' if device else ''}, from {place_of(earlier)}; "
                f"override=True replaces them"
            )
        self._functions[op, device] = function
        self._sources[op, device] = current_source()

    def find(self, op: str, device: str | None) -> Function | None:
        """The function for an op on a device: one for that device, else one for all; None when there is none."""
        plain = op_name(op)
        key = (plain, device) if (plain, device) in self._functions else (plain, None)
        found = self._functions.get(key)
        if found is not None:
            self._used.add(key)
        return found

    def unused(self) -> Iterator[tuple[str, str | None, Function]]:
        """(op, device, function) of each registration that nobody has asked for."""
        return iter([(*key, function) for key, function in self._functions.items() if key not in self._used])

    def __iter__(self) -> Iterator[tuple[str, str | None, Function, str]]:
        """(op, device, function, what loaded it) of each registration, in order."""
        return iter([(*key, function, self._sources[key]) for key, function in self._functions.items()])

    def __bool__(self) -> bool:
        return bool(self._functions)

    def clear(self) -> None:
        """Forget all registrations."""
        self._functions.clear()
        self._sources.clear()
        self._used.clear()
