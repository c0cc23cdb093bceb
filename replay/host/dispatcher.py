# pyright: strict
"""Queries to torch's dispatcher and operator registry.

Only this module uses these private functions of torch. They are the same from torch 2.4 to 2.13 and have no public
counterpart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def _internal() -> Any:
    import torch

    return getattr(torch, "_C")  # noqa: B009 -- an attribute of this name is private to type checkers


_NUMBERS_OF_TYPES = {"int8": 1, "float16": 5, "bfloat16": 15}
"""torch's ScalarType codes of the dtypes that vendors use as defaults."""
_NAMED_DEFAULT = re.compile(rf"=({'|'.join(_NUMBERS_OF_TYPES)})\b")


def with_numbered_types(text: str) -> str:
    """Return a schema with dtype names in its defaults replaced by codes. torch 2.4 cannot parse the names."""
    return _NAMED_DEFAULT.sub(lambda found: f"={_NUMBERS_OF_TYPES[found[1]]}", text)


def parse_schema(text: str) -> Any:
    """Parse a schema such as "ns::op(Tensor x) -> Tensor" to a `FunctionSchema`. Raises RuntimeError if it is
    invalid.
    """
    return _internal().parse_schema(with_numbered_types(text))


def registered_schemas(name: str) -> Sequence[Any]:
    """Return the `FunctionSchema`s of all overloads of "ns::op"; empty for an unknown op."""
    return _internal()._jit_get_schemas_for_operator(name)


def has_kernel(full_name: str, key: str) -> bool:
    """Check whether "ns::op.overload" has a kernel registered for this dispatch key itself.

    Raises RuntimeError for an unknown op.
    """
    return bool(_internal()._dispatch_has_kernel_for_dispatch_key(full_name, key))


def has_computed_kernel(full_name: str, key: str) -> bool:
    """Check whether the dispatcher finds a kernel for the dispatch key.

    Alias and composite kernels count. Raises RuntimeError for an unknown op.
    """
    return bool(_internal()._dispatch_has_computed_kernel_for_dispatch_key(full_name, key))


def registered_ops() -> Sequence[str]:
    """Return the names of all ops that the dispatcher knows."""
    return _internal()._dispatch_get_all_op_names()


def registered_in(full_name: str) -> str | None:
    """Return the source file that defines "ns::op.overload", or None for an unknown op or a C++ definition."""
    try:
        text = str(_internal()._dispatch_dump(full_name))
    except RuntimeError:
        return None
    match = re.search(r"^debug: registered at (.+\.py):\d+$", text, re.MULTILINE)
    return None if match is None else match[1]
