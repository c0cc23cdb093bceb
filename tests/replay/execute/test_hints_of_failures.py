"""A library op that fails on random whole numbers says which ones, and that an initializer makes others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
import torch

from opreplay.initializers.base import CustomInit, InitContext
from opreplay.initializers.registry import Registry
from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.torch.device import Inputs, TorchExecutor
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from tests.factories import op, tensor

NAME = "hints_of_failures::pick"


@pytest.fixture(autouse=True)
def _library() -> Iterator[None]:
    def pick(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if ids.unique().numel() != ids.numel():
            raise AssertionError("ids repeat")
        return x[ids % len(x)]

    library = torch.library.Library("hints_of_failures", "DEF")
    library.define("pick(Tensor x, Tensor ids) -> Tensor")
    library.impl("pick", pick, "CPU")
    yield
    library._destroy()


class Counts(CustomInit):
    name, op_patterns = "counts", (NAME,)

    def initialize(self, context: InitContext) -> None:
        context.need("ids").copy_(torch.arange(500) * 0 + 3)


def reason(registry: Registry) -> str:
    call = op(NAME, tensor("x", 9), tensor("ids", 500, dtype="int64"), resolved_by="torch.ops", overload="")
    make = partial(TorchExecutor, "cpu", lambda op: find_overload(op, Policy()), memory_bytes=10**8)
    with closing(make(inputs=Inputs(registry=registry))) as executor:
        return str(attempt(executor, call, seed=0, options=MeasureOptions()).reason)


def test_the_hint_names_the_arguments() -> None:
    said = reason(built_in())
    assert "ids repeat" in said
    assert "ids: random integers" in said
    assert "write an initializer" in said


def test_no_hint_where_an_initializer_filled_them() -> None:
    registry = built_in()
    registry.register(Counts())
    assert "ids repeat" in reason(registry)
    assert "initializer" not in reason(registry)
