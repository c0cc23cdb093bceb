"""Whatever an initializer makes data-dependent, a counter counts; and how amounts read."""

from __future__ import annotations

import pytest

from opreplay.initializers.amounts import Amount, amount_text, work, work_text
from opreplay.initializers.base import InitContext
from opreplay.initializers.rules import (
    attention,
    embedding_tables,
    indices,
    jagged,
    masks,
    moe_routing,
    paged_attention,
    positions,
)
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.table import load, row, work_of
from tests.replay.ops.names import counted_ops

UNCOUNTED = {"sorted", "few_ties", "ctc", "attention_backward"}
"""Initializers of values that change no amount of work."""


def test_every_data_dependent_op_has_a_counter() -> None:
    known = set(counted_ops())
    modules = (attention, embedding_tables, indices, jagged, masks, moe_routing, paged_attention, positions)
    counted = {rule.name for module in modules for rule in module.INITIALIZERS} - UNCOUNTED
    rules = [rule for rule in built_in() if rule.name in counted]
    assert len(rules) == len(counted)
    missing = {op for rule in rules for op in rule.op_patterns} - known
    assert not missing, f"no counter of work for {sorted(missing)}"


def test_other_ops_have_no_work() -> None:
    import torch

    assert work_of(InitContext(op="aten::mm", args={}, generator=torch.Generator())) is None


def test_what_a_row_has_is_not_given_again() -> None:
    load("families")
    with pytest.raises(ValueError, match="aten::embedding already has its inputs"):
        row("aten::embedding").give(inputs="index")


@pytest.mark.parametrize(
    ("done", "most", "text"),
    [
        (8192, 65536, "8,192 of 65,536 context tokens (12.5 %)"),
        (0, 5, "0 of 5 context tokens"),
        (5, 5, "5 of 5 context tokens"),
        (1234, None, "1,234 context tokens"),
    ],
)
def test_text(done: int, most: int | None, text: str) -> None:
    amount = Amount(what="context tokens", done=done, most=most)
    assert amount_text(amount) == text
    assert work_text(work(amount, amount)) == f"{text}; {text}"


@pytest.mark.parametrize(
    ("done", "most", "same", "idle"),
    [
        (0, 5, False, True),
        (0, 0, False, False),
        (0, None, False, True),
        (1, 5, True, True),
        (1, 5, False, False),
        (1, 1, True, False),
        (2, 5, True, False),
    ],
)
def test_idle(done: int, most: int | None, same: bool, idle: bool) -> None:
    assert work(Amount(what="rows", done=done, most=most), same=same).idle is idle
