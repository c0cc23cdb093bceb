"""torch's compiler, which the first call of a `torch.library.custom_op` imports: some seconds that are no op's time."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch._library import custom_ops


def load_for_users() -> None:
    """Import it where plugins have registered custom ops, before any op's time runs."""
    if any(not op._init_fn.__module__.startswith("torch.") for op in custom_ops.OPDEFS.values()):
        importlib.import_module("torch._dynamo")


def load_for(function: Callable[..., Any]) -> None:
    """Import it where this overload is a custom op, perhaps of a library that was imported just now."""
    if isinstance(function, torch._ops.OpOverload) and function._schema.name in custom_ops.OPDEFS:
        importlib.import_module("torch._dynamo")
