"""Arguments of views that a search on meta tensors gives: what the next call reads, and nothing where it takes long."""

from __future__ import annotations

import time
from typing import Any

import pytest

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.resolve.guess.guess import by_rules
from opreplay.replay.resolve.guess.search import search
from opreplay.replay.resolve.guess.values import Context, Relatives
from opreplay.replay.resolve.schema import specs_of
from opreplay.traces.model import OpSignature, TensorMeta


def call(name: str, *shapes: tuple[int, ...]) -> OpSignature:
    return OpSignature(name=name, dims=shapes, types=("float",) * len(shapes))


def found(name: str, overload: str, shape: tuple[int, ...], around: Relatives) -> dict[str, Any] | None:
    spec = next(one for one in specs_of(f"aten::{name}") if one.overload == overload)
    known = Call({"self": ReplayArg(name="self", type="Tensor", tensors=(TensorMeta(shape=shape, dtype="float32"),))})
    tried = search(spec, known, Context(relatives=lambda: around), by_rules)
    return None if tried is None else dict(tried.values)


@pytest.mark.parametrize(
    ("name", "overload", "shape", "read", "values"),
    [
        ("transpose", "int", (2, 3, 4), (2, 4, 3), {"dim0": 1, "dim1": 2}),
        ("permute", "", (2, 3, 4), (4, 2, 3), {"dims": (2, 0, 1)}),
        ("select", "int", (2, 3, 4), (2, 4), {"dim": 1, "index": 0}),
        ("unsqueeze", "", (2, 3), (2, 1, 3), {"dim": 1}),
        ("slice", "Tensor", (8, 6), (8, 2), {"dim": 1, "start": 0, "end": 2, "step": 1}),
        ("flatten", "using_ints", (2, 3, 4), (2, 12), {"start_dim": 1, "end_dim": 2}),
        ("unflatten", "int", (2, 12), (2, 3, 4), {"dim": 1, "sizes": (3, 4)}),
        ("split", "Tensor", (6, 4), (2, 4), {"split_size": 2, "dim": 0}),
        ("expand", "", (3, 1), (5, 3, 4), {"size": (5, 3, 4)}),
    ],
)
def test_the_first_choice_whose_result_is_read_next(
    name: str, overload: str, shape: tuple[int, ...], read: tuple[int, ...], values: dict[str, Any]
) -> None:
    around = Relatives(following=(call("aten::relu", (7, 7)), call("aten::relu", read)), levels=(0, 0))
    assert found(name, overload, shape, around) == values


def test_nothing_where_no_choice_gives_what_is_read() -> None:
    around = Relatives(following=(call("aten::relu", (7, 7)),), levels=(0,))
    assert found("transpose", "int", (2, 3), around) is None


def test_the_view_inside_a_view_has_the_result_of_that_one() -> None:
    outside = Relatives(name="aten::transpose", following=(call("aten::relu", (2, 4, 3)),), levels=(0,))
    parent = OpSignature(name="aten::transpose", dims=((2, 3, 4), (), ()), types=("float", "Scalar", "Scalar"))
    inside = Relatives(
        name="aten::as_strided",
        parent=parent,
        ancestors=(parent,),
        places=(0,),
        above=lambda number: outside,
    )
    assert found("as_strided", "", (2, 3, 4), inside) == {"size": (2, 4, 3), "stride": (12, 1, 4)}


@pytest.mark.parametrize(("name", "overload"), [("unbind", "int"), ("split", "Tensor"), ("unflatten", "int")])
def test_sizes_of_a_damaged_trace_take_no_time(name: str, overload: str) -> None:
    """A list of a billion results is never made, and tensors of many dimensions are not tried."""
    readers = tuple(call("aten::relu", (1,) * rank) for rank in range(1, 40))
    start = time.process_time()
    assert found(name, overload, (1 << 40, 3), Relatives(following=readers, levels=(0,) * len(readers))) is None
    assert found(name, overload, (2,) * 60, Relatives(following=readers, levels=(0,) * len(readers))) is None
    assert time.process_time() - start < 2
