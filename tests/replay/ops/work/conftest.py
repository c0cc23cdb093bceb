"""Calls whose arguments the built-in initializers fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from opreplay.initializers.amounts import Work
from opreplay.initializers.base import InitContext
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.table import work_of
from opreplay.traces.links.annotations import BatchContext

Count = Callable[..., Work]


def _context(op: str, args: dict[str, Any], batch: BatchContext | None, seed: int) -> InitContext:
    return InitContext(
        op=op, args=args, generator=torch.Generator().manual_seed(seed), seed=seed, run_seed=seed, batch=batch
    )


@pytest.fixture
def before() -> Count:
    """(op, args) -> work of arguments as they are."""

    def count(op: str, args: dict[str, Any]) -> Work:
        found = work_of(_context(op, args, None, 0))
        assert found is not None
        return found

    return count


@pytest.fixture
def after() -> Count:
    """(op, args, *settings, batch=, seed=) -> work once the op's initializer has filled the arguments in place."""

    def count(op: str, args: dict[str, Any], *settings: str, batch: BatchContext | None = None, seed: int = 0) -> Work:
        registry = built_in()
        context = _context(op, args, batch, seed)
        rule = registry.find(context)
        assert rule is not None
        registry.configure([f"{rule.name}.{setting}" for setting in settings])
        report = registry.apply(rule, context)
        found = work_of(context, report.lengths)
        assert found is not None
        return found

    return count
