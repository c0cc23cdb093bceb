"""Which memory each tensor of an ExecutionTrace lies in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.step.linking import link
from opreplay.traces import read_trace
from opreplay.traces.dialects.et_memories import MemoryColumn
from opreplay.traces.dialects.et_nodes import Node


def at(storage: int, device: str = "cuda:0") -> list[Any]:
    return [100 + storage, storage, 0, 8, 4, device]


def column(*nodes: Node) -> MemoryColumn:
    made = MemoryColumn()
    for node in nodes:
        made.add(node)
    return made


OLD = Node(
    inputs=[at(7), 3, [at(8), at(7)], at(0), "x"],
    input_types=[
        "Tensor(float)",
        "Int",
        "GenericList[Tensor(float),Tensor(float)]",
        "Tensor(nullptr (uninitialized))",
        "String",
    ],
    outputs=[at(9)],
    output_types=["Tensor(float)"],
)
NEW = Node(
    inputs={
        "values": [at(9), at(7, "cpu"), [1, 2]],
        "types": ["Tensor(float)", "Tensor(float)", "GenericList[Int,Int]"],
    },
    outputs={"values": [[1, -1, 0, 8, 4, ""]], "types": ["Tensor(float)"]},
)


def test_storages_are_numbered_within_the_file() -> None:
    table = column(OLD, NEW).table()
    assert table is not None
    assert table.of_row(0) == ((0, 1, 0), (2,))
    assert table.of_row(1) == ((2, 3), (-1,)), "the same number on another device is another memory"


def test_slices_of_one_storage_are_told_apart_by_where_they_begin() -> None:
    """Query, key and value of a packed projection."""
    begin = [[1, 7, offset, 8, 4, "cpu"] for offset in (0, 64, 128, 64, "x")]
    table = column(Node(inputs=begin, input_types=["Tensor(float)"] * 5)).table()
    assert table is not None
    assert table.of_row(0)[0] == (0, 1, 2, 1, 0), "an offset that is none counts as the beginning"


def test_other_calls_have_those_of_their_rows_here() -> None:
    table = column(OLD, NEW).table()
    assert table is not None
    other = table.of_calls(np.array([1, -1, 0, 1]))
    assert [other.of_row(row) for row in range(4)] == [table.of_row(1), ((), ()), table.of_row(0), table.of_row(1)]
    assert table.of_calls(np.array([], dtype=np.int64)).bounds.tolist() == [0]


@pytest.mark.parametrize(
    "node",
    [
        Node(),
        Node(inputs=5, outputs="x"),
        Node(inputs=[at(1)], input_types=[None]),
        Node(inputs=[at(1)]),
        Node(inputs=[[1, "a", 0, 0, 0]], input_types=["Tensor(float)"]),
        Node(inputs={"values": 1, "types": [1]}),
        Node(inputs=["x"], input_types=["GenericList[Tensor(float)]"]),
    ],
)
def test_what_is_not_as_it_should_be_is_not_known(node: Node) -> None:
    assert column(node).table() is None
    table = column(node, OLD).table()
    assert table is not None
    assert table.of_row(1) == ((0, 1, 0), (2,))


def test_a_public_trace_tells_them_all(shared_traces: Path) -> None:
    plan = build_plan(read_trace(shared_traces / "param_linear_et.json.gz"), in_order=True)
    sequence = plan.sequence
    assert sequence is not None
    place = {op.id: at for at, op in enumerate(plan.ops)}
    calls = [place[sequence.ids[call]] for call in sequence.calls]
    known = link(plan.ops, calls, memories=sequence.memories)
    arguments = sum(source.kind != "absent" for sources in known.sources for source in sources)
    assert known.recorded > 0.99 * arguments
    used: dict[int, set[str]] = {}
    for index, sources in zip(calls, known.sources, strict=True):
        for source in sources:
            if source.kind == "outside":
                used.setdefault(source.number, set()).add(plan.ops[index].name)
    weights = [names for names in used.values() if {"aten::linear", "aten::t"} <= names]
    assert len(weights) == 20, "the weights of the forward pass are those of the backward pass"
