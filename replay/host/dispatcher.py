# pyright: strict
"""What torch's dispatcher and operator registry know; the one place that names functions which torch keeps to itself.

They are the same from torch 2.4 to 2.13; none has a public counterpart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def _internal() -> Any:
    import torch

    return getattr(torch, "_C")  # noqa: B009 -- an attribute of this name is private to type checkers


def parse_schema(text: str) -> Any:
    """The `FunctionSchema` that a declaration such as "ns::op(Tensor x) -> Tensor" stands for. Raises RuntimeError."""
    return _internal().parse_schema(text)


def registered_schemas(name: str) -> Sequence[Any]:
    """`FunctionSchema`s of all overloads of "ns::op" in the operator registry; none for an unknown op."""
    return _internal()._jit_get_schemas_for_operator(name)


def has_kernel(full_name: str, key: str) -> bool:
    """Whether a kernel of "ns::op.overload" is registered for a dispatch key itself. Raises RuntimeError for no op."""
    return bool(_internal()._dispatch_has_kernel_for_dispatch_key(full_name, key))


def has_computed_kernel(full_name: str, key: str) -> bool:
    """Whether the dispatcher finds one for the key, also by way of an alias or a composite. Raises RuntimeError."""
    return bool(_internal()._dispatch_has_computed_kernel_for_dispatch_key(full_name, key))


def registered_ops() -> Sequence[str]:
    """Names of all ops that the dispatcher knows."""
    return _internal()._dispatch_get_all_op_names()


def registered_in(full_name: str) -> str | None:
    """The source file that defines "ns::op.overload", as its library was told; None for no op, and where it is C++."""
    try:
        text = str(_internal()._dispatch_dump(full_name))
    except RuntimeError:
        return None
    match = re.search(r"^debug: registered at (.+\.py):\d+$", text, re.MULTILINE)
    return None if match is None else match[1]
