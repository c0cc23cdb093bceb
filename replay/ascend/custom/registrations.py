# pyright: strict
"""Validates the op and the device that a user registers something for, given as objects or as names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opreplay.initializers.user_code import PROGRAM, current_source, place_of
from opreplay.initializers.user_table import UserFunction, UserTable
from opreplay.traces.errors import UsageError

USER_RULES: UserTable[UserFunction] = UserTable("rule", remedy="override=True replaces it")
"""Users' own lowering rules, by op name or by a regular expression for its start; tried before built-in rules."""


class CustomOpError(UsageError):
    """Raised if a user's custom-op file, registration or function fails; the message names file and line."""


_OP = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)+(?:\.\w*)?")


class NoOp(CustomOpError, TypeError):
    """Raised if a registration is made for something that is not an op."""


def _caller() -> str:
    """Return "file:line: " of the innermost caller outside opreplay; "" if all callers are inside."""
    own = str(Path(__file__).parents[2])
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}: "


def refuse_no_op(names: Sequence[str], what: str, function: Callable[..., Any]) -> None:
    """Raise CustomOpError if a registration names no op or contains an invalid op name."""
    if not names:
        raise CustomOpError(f"{place_of(function)}: a {what} needs at least one op, such as mylib::norm")
    for name in names:
        if not _OP.fullmatch(name):
            hint = "lowers_like takes regular expressions." if re.search(r"[*?\[]", name) else "Write namespace::op."
            raise CustomOpError(f"{place_of(function)}: {name!r} is not an op", hint=hint)


def op_name(op: Any) -> str:
    """Return "ns::name" for a torch op, an overload packet, or text of this form. Raises NoOp for other values."""
    name = op if isinstance(op, str) else getattr(op, "_qualified_op_name", None)
    if name is None:
        # An overload knows its schema; `_schema.name` has no overload name in it.
        name = getattr(getattr(op, "_schema", None), "name", None)
    if not isinstance(name, str) or not _OP.fullmatch(name):
        raise NoOp(f"{_caller()}{op!r} is not an op: give torch.ops.namespace.name or 'namespace::name'")
    namespace, _, rest = name.partition("::")
    return f"{namespace}::{rest.split('.')[0]}"


def device_name(device: Any) -> str | None:
    """Return the canonical name of a device given as an object or as a name; None means all devices.

    Raises CustomOpError for a name that is neither shipped nor loaded, except while a user's file is being loaded. The
    devices of the command are not known yet at that time.
    """
    if device is None:
        return None
    from opreplay.replay.ascend.devices.file import canonical_name, is_known, no_such_device

    name = device if isinstance(device, str) else getattr(device, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"{device!r} is not a device: give a DeviceProfile, its name, or None for all devices")
    if isinstance(device, str) and not is_known(name) and current_source() == PROGRAM:
        message, hint = no_such_device(name)
        raise CustomOpError(message, hint=hint)
    return canonical_name(name) or name
