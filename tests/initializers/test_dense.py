from __future__ import annotations

import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.dense import DenseInit


def dense(**args: object) -> InitContext:
    context = InitContext(op="my::op", args=args, generator=torch.Generator().manual_seed(0))
    DenseInit().initialize(context)
    return context


def test_unknown_integers_index_nothing_out_of_range() -> None:
    found = dense(cache=torch.empty(9, 7, 64), table=torch.empty(50, dtype=torch.int32))
    table = found.need("table")
    assert table.min() >= 0
    assert table.max() < 7
    assert table.unique().numel() > 1


def test_names_that_stand_for_squares_and_scales_are_positive() -> None:
    found = dense(running_var=torch.empty(100), rstd=torch.empty(100), k_scale=torch.empty(1), x=torch.empty(100))
    for name in ("running_var", "rstd", "k_scale"):
        assert (found.need(name) > 0.4).all()
    assert (found.need("x") < 0).any()


def test_switches_steps_and_step_sizes() -> None:
    found = dense(found_inf=torch.ones(1), lr=torch.empty(()), state_steps=[torch.empty(()), torch.empty(())])
    assert found.need("found_inf").item() == 0
    assert 9e-4 < found.need("lr").item() < 1.1e-3
    assert all(step.item() >= 1 for step in found.args["state_steps"])


def test_integers_alone_have_a_bound() -> None:
    found = dense(a=torch.empty(1000, dtype=torch.int64))
    assert found.need("a").max() < 100
