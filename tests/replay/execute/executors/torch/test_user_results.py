"""What a user's executor returned is held against what the op returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
import torch

import opreplay
from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.execute.executors.torch.user_results import result_notes
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.user.executors import EXECUTORS, register_executor

CALL = "listed::op(f32[4,8], f32[4,8])"
FAST = MeasureOptions(op_time_s=0.002)


@pytest.fixture(autouse=True)
def no_executors() -> Iterator[None]:
    yield
    EXECUTORS.clear()


def measured(function: Callable[..., Any], schema: str | None = None, **options: Any) -> tuple[str | None, list[str]]:
    """Why an op that this function runs was not measured, and what was said of its results."""
    register_executor("listed::op", schema=schema, override=True, **options)(function)
    executor = TorchExecutor("cpu", partial(find_overload, policy=Policy()), memory_bytes=1 << 28)
    try:
        found = attempt(executor, opreplay.op(CALL).ir, seed=0, options=FAST)
    finally:
        executor.close()
    notes = [note.what for note in found.assumptions if note.what.startswith("result ") or " returned " in note.what]
    return None if found.reason is None else str(found.reason), notes


def inputs_and_attrs(make: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def op(inputs: list[torch.Tensor], attrs: dict[str, Any]) -> Any:
        return make(*inputs)

    return op


ONE, TWO = "(Tensor x, Tensor y) -> Tensor", "(Tensor x, Tensor y) -> (Tensor, Tensor)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "make", "fails"),
    [
        (ONE, lambda x, y: [x, x], True),
        (ONE, lambda x, y: [x + y, x - y], True),
        (ONE, lambda x, y: [], True),
        (ONE, lambda x, y: [x + y], False),
        (TWO, lambda x, y: [x + y], True),
        (TWO, lambda x, y: [x + y, x - y], False),
        ("(Tensor x, Tensor y) -> Tensor[]", lambda x, y: [x + y, x - y, x * y], False),
        (None, lambda x, y: [x + y, x - y, x * y], False),
    ],
)
def test_another_number_of_results_than_the_schema_has_is_an_error(schema: str, make: Any, fails: bool) -> None:
    reason, notes = measured(inputs_and_attrs(make), schema)
    assert (reason is not None) == fails
    assert notes == []
    if fails:
        assert str(reason).startswith("failed: op (test_user_results.py:")


def test_the_recording_may_say_how_many_results_there_are() -> None:
    register_executor("listed::op", override=True)(inputs_and_attrs(lambda x, y: [x, y]))
    op = opreplay.op(CALL).ir
    one = msgspec.structs.replace(op, recorded_outputs=op.args[0].tensors)
    tensors = [torch.ones(3), torch.ones(3)]
    with pytest.raises(NotReplayable, match="returned 2 tensors, but listed::op has 1"):
        result_notes(one, tensors, {})
    assert result_notes(one, tensors[:1], {}) == ()
    assert result_notes(op, tensors, {}) == (), "nothing says how many"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "make", "told"),
    [
        (ONE, lambda x, y: [x], ["result 0 shares the memory of x"]),
        (ONE, lambda x, y: [y.t()], ["result 0 shares the memory of y"]),
        (TWO, lambda x, y: [x + y, y[1:]], ["result 1 shares the memory of y"]),
        ("(Tensor x, Tensor(a) y) -> Tensor(a)", lambda x, y: [y], []),
        ("(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: [x.add_(y)], []),
        (None, lambda x, y: [x.view(-1)], ["result 0 shares the memory of input0"]),
        (ONE, lambda x, y: [x.clone()], []),
    ],
)
def test_views_in_place_of_copies_are_told(schema: str | None, make: Any, told: list[str]) -> None:
    reason, notes = measured(inputs_and_attrs(make), schema)
    assert reason is None
    assert [note.partition(":")[0] for note in notes] == told


def test_one_tensor_twice_is_told() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> Any:
        total = x + y
        return total, total

    assert [note.partition(":")[0] for note in measured(both)[1]] == ["result 1 shares the memory of result 0"]


def test_a_plain_function_may_return_what_it_likes_and_the_number_is_told() -> None:
    reason, notes = measured(lambda x, y: (x + y, x - y), ONE)
    assert reason is None
    (note,) = notes
    assert note.endswith("returned 2 tensors, but listed::op has 1")
    EXECUTORS.clear()
    assert measured(lambda x, y: None, "(Tensor x, Tensor y) -> ()") == (None, [])


def test_the_op_itself_is_called_once_where_it_is_only_called() -> None:
    calls: list[int] = []
    register_executor("listed::op", schema=ONE, override=True)(
        inputs_and_attrs(lambda x, y: calls.append(1) or [x + y])
    )
    opreplay.op(CALL)()
    assert calls == [1]
