"""Ops of the references under test: `op("_C::rms_norm")` registers the namespace and returns the torch op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from opreplay.replay import reference


def _op(name: str) -> Any:
    namespace, _, operator = name.partition("::")
    reference.register_namespace(namespace)
    return getattr(getattr(torch.ops, namespace), operator)


@pytest.fixture
def op() -> Callable[[str], Any]:
    torch.manual_seed(0)
    return _op
