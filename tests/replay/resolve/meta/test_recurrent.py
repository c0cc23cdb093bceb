"""Recurrent ops are called on a short sequence and have the results of the long one."""

from __future__ import annotations

from time import perf_counter

import pytest
import torch

from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.replay.resolve.meta.outputs import STEPS, lengthen_results, meta_outputs, shorten_steps
from opreplay.replay.resolve.policy import Policy
from tests.factories import meta as tensor

BATCH, INPUT, HIDDEN = 3, 4, 5


def recurrent(name: str, steps: int, *, batch_first: bool) -> ReplayOp:
    gates = {"aten::lstm": 4, "aten::gru": 3}.get(name, 1) * HIDDEN
    state = tensor(1, BATCH, HIDDEN)
    weights = (tensor(gates, INPUT), tensor(gates, HIDDEN), tensor(gates), tensor(gates))
    shape = (BATCH, steps, INPUT) if batch_first else (steps, BATCH, INPUT)
    plain = {"has_biases": True, "num_layers": 1, "dropout": 0.0, "train": False, "bidirectional": False}
    hx = (
        ReplayArg(name="hx", type="Tensor[]", tensors=(state, state))
        if name == "aten::lstm"
        else ReplayArg(name="hx", type="Tensor", tensors=(state,))
    )
    return ReplayOp(
        id="0" * 12,
        name=name,
        count=1,
        recorded=Recorded(host_us_total=1.0, host_us_median=1.0),
        resolved_by="jit",
        overload="input",
        args=(
            ReplayArg(name="input", type="Tensor", tensors=(tensor(*shape),)),
            hx,
            ReplayArg(name="params", type="Tensor[]", tensors=weights),
            *(
                ReplayArg(name=n, type={bool: "bool", int: "int", float: "float"}[type(v)], value=v)
                for n, v in plain.items()
            ),
            ReplayArg(name="batch_first", type="bool", value=batch_first),
        ),
    )


@pytest.mark.parametrize("name", ["aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_long_sequence_costs_no_more_than_a_short_one(name: str, batch_first: bool) -> None:
    begin = perf_counter()
    results = meta_outputs(recurrent(name, 10**6, batch_first=batch_first), Policy())
    assert perf_counter() - begin < 20  # step by step it would be hours
    first = (BATCH, 10**6, HIDDEN) if batch_first else (10**6, BATCH, HIDDEN)
    states = 2 if name == "aten::lstm" else 1
    assert [m and m.shape for m in results] == [first, *[(1, BATCH, HIDDEN)] * states]


def test_the_results_are_those_of_torch() -> None:
    module = torch.nn.LSTM(INPUT, HIDDEN)
    output, (h, c) = module(torch.zeros(7, BATCH, INPUT))
    found = meta_outputs(recurrent("aten::lstm", 7, batch_first=False), Policy())
    assert [m and m.shape for m in found] == [tuple(output.shape), tuple(h.shape), tuple(c.shape)]


def test_other_ops_and_short_sequences_stay_as_they_are() -> None:
    short = recurrent("aten::gru", STEPS, batch_first=False)
    assert shorten_steps(short) is short
    add = ReplayOp(
        id="0" * 12,
        name="aten::relu",
        count=1,
        recorded=Recorded(host_us_total=1.0, host_us_median=1.0),
        resolved_by="jit",
        overload="",
        args=(ReplayArg(name="self", type="Tensor", tensors=(tensor(99, 2, 2),)),),
    )
    assert shorten_steps(add) is add
    assert lengthen_results(add, (tensor(1),)) == (tensor(1),)
