"""Which tensor an argument is, and that sequences of any ops keep to any budget that has room for each of them."""

from __future__ import annotations

import itertools
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.execute.sequence.lifetimes import need_bytes, plan_memory
from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.replay.plan.step.linking import Linked, Source, Value, link, results_of, tensors_of
from opreplay.traces.model import TensorMeta
from tests.factories import meta

RECORDED = Recorded(host_us_total=1.0, host_us_median=1.0)


def op(name: str, inputs: dict[str, TensorMeta | None], *outputs: TensorMeta, mutates: str = "") -> ReplayOp:
    args = tuple(
        ReplayArg(name=key, type="Tensor", tensors=(value,), mutated=key == mutates) for key, value in inputs.items()
    )
    id_ = f"{crc32(repr((name, inputs, outputs)).encode()):012x}"
    return ReplayOp(id=id_, name=name, count=1, recorded=RECORDED, resolved_by="jit", args=args, outputs=outputs)


X = meta(4, 8)
RELU = op("aten::relu", {"self": X}, X)
LINEAR = op("aten::linear", {"input": X, "weight": meta(8, 8), "bias": meta(8)}, X)
ADD = op("aten::add", {"self": X, "other": X}, X)
RELU_ = op("aten::relu_", {"self": X}, X, mutates="self")


def kinds(linked: Linked) -> list[list[str]]:
    return [[source.kind for source in sources] for sources in linked.sources]


def test_an_argument_is_the_latest_result_that_looks_like_it() -> None:
    linked = link([RELU], [0, 0, 0])
    assert [sources[0] for sources in linked.sources] == [
        Source("outside", number=0),
        Source("result", Value(0, 0)),
        Source("result", Value(1, 0)),
    ]


def test_each_call_of_an_op_has_weights_of_its_own() -> None:
    linked = link([LINEAR], [0] * 24)
    weights = {sources[1].number for sources in linked.sources}
    assert len(weights) == 24, "24 layers have 24 weights"
    assert all(sources[0].kind == "result" for sources in linked.sources[1:]), "the activations are handed on"


def test_a_parameter_is_no_result_that_happens_to_have_its_size() -> None:
    made = op("aten::relu", {"self": meta(8, 8)}, meta(8, 8))
    assert link([made, LINEAR], [0, 1]).sources[1][1].kind == "outside"
    cast = op("aten::_to_copy", {"self": meta(8, 8, dtype="bfloat16")}, meta(8, 8))
    assert link([cast, LINEAR], [0, 1]).sources[1][1] == Source("result", Value(0, 0)), "autocast makes them"


def test_one_call_takes_no_result_twice() -> None:
    linked = link([RELU, ADD], [0, 1])
    assert kinds(linked)[1] == ["result", "outside"]
    linked = link([RELU, ADD], [0, 0, 1])
    assert {source.value for source in linked.sources[2]} == {Value(0, 0), Value(1, 0)}


def test_a_result_without_gaps_is_seen_through_a_view_that_was_not_selected() -> None:
    flat = op("aten::gelu", {"self": meta(32)}, meta(32))
    assert link([RELU, flat], [0, 1]).sources[1] == (Source("view", Value(0, 0)),)
    turned = op("aten::gelu", {"self": meta(8, 4, strides=(1, 8))}, meta(8, 4))
    assert link([RELU, turned], [0, 1]).sources[1] == (Source("view", Value(0, 0)),)
    gaps = op("aten::gelu", {"self": meta(4, 8, strides=(16, 1))}, meta(4, 8))
    assert kinds(link([RELU, gaps], [0, 1]))[1] == ["outside"]


def test_a_view_of_a_parameter_is_none_of_another_parameter() -> None:
    wide, back = meta(8, 4), meta(4, 8)
    up = op("aten::t", {"self": wide}, meta(4, 8, strides=(1, 4)))
    down = op("aten::t", {"self": back}, meta(8, 4, strides=(1, 8)))
    linked = link([up, down], [0, 1, 0])
    assert [source[0] for source in linked.sources] == [Source("outside", number=n) for n in range(3)]
    again = op("aten::t", {"self": meta(4, 8, strides=(1, 4))}, wide)
    assert link([up, again], [0, 1]).sources[1] == (Source("result", Value(0, 0)),), "a view of that very view is one"
    made = op("aten::relu", {"self": wide}, wide)
    assert kinds(link([made, up, down], [0, 1, 2]))[2] == ["view"], "and views of results are views as before"


def test_strides_of_dimensions_of_one_element_mean_nothing() -> None:
    made = op("aten::relu", {"self": meta(1, 8)}, meta(1, 8, strides=(99, 1)))
    taken = op("aten::gelu", {"self": meta(1, 8, strides=(8, 1))}, meta(1, 8))
    assert kinds(link([made, taken], [0, 1]))[1] == ["result"]


def test_integers_of_ops_that_index_are_their_initializers() -> None:
    index = meta(4, dtype="int64")
    arange = op("aten::arange", {}, index)
    embed = op("aten::embedding", {"weight": meta(9, 8), "indices": index}, X)
    assert kinds(link([arange, embed], [0, 1]))[1] == ["outside", "result"]
    assert kinds(link([arange, embed], [0, 1], fixed_integers={embed.id}))[1] == ["outside", "outside"]


def test_ops_of_their_own_and_results_that_are_not_as_planned_are_not_linked() -> None:
    assert kinds(link([RELU], [0, 0], own={RELU.id})) == [["outside"], ["outside"]]
    assert kinds(link([RELU], [0, 0], unknown={(RELU.id, 0)})) == [["outside"], ["outside"]]


def test_arguments_that_share_memory_within_a_call_stay_together() -> None:
    shared = TensorMeta(shape=(4, 8), dtype="float32", storage=0)
    both = op("aten::mul", {"self": shared, "other": shared}, X)
    assert kinds(link([RELU, both], [0, 1]))[1] == ["outside", "outside"]


def test_a_result_dies_after_its_last_use() -> None:
    plan = plan_memory([RELU, ADD], link([RELU, ADD], [0, 0, 1]))
    assert plan.drops == ((), (), (Value(0, 0), Value(1, 0), Value(2, 0)))
    plan = plan_memory([RELU], link([RELU], [0, 0, 0]))
    assert plan.drops == ((), (Value(0, 0),), (Value(1, 0), Value(2, 0)))


def test_what_an_op_in_place_returns_takes_no_memory() -> None:
    size = budget.tensor_bytes(X)
    assert plan_memory([RELU, RELU_], link([RELU, RELU_], [0, 1, 1, 1])).peak_bytes == 2 * size
    assert plan_memory([RELU], link([RELU], [0, 0, 0])).peak_bytes == 3 * size


def test_weights_share_memory_first_and_the_largest_do() -> None:
    ops, calls = [LINEAR], [0] * 24
    whole = plan_memory(ops, link(ops, calls))
    less = plan_memory(ops, link(ops, calls), whole.peak_bytes - 1)
    assert (less.recycled, less.remade) == (1, 0)
    assert less.outside_bytes == whole.outside_bytes - budget.tensor_bytes(meta(8, 8))
    turns = [sources[1].number for sources in less.linked.sources]
    assert sorted(turns.count(number) for number in set(turns)) == [1] * 22 + [2]


def test_a_budget_without_room_for_an_op_is_refused() -> None:
    with pytest.raises(ValueError, match="an op needs 256 bytes, but the budget is 255"):
        plan_memory([RELU], link([RELU], [0]), 255)


def test_recorded_memory_says_which_tensor_is_which() -> None:
    """The result of call 0 goes to call 2 though that of call 1 looks the same; both layers have one weight."""
    memories = [((1, 2, 3), (4,)), ((1, 2, 5), (6,)), ((4,), (7,))]
    linked = link([LINEAR, RELU], [0, 0, 1], memories=memories)
    assert linked.recorded == 7
    assert linked.sources[2] == (Source("result", Value(0, 0)),)
    first, second = linked.sources[:2]
    assert (first[0], first[1]) == (second[0], second[1])
    assert first[2] != second[2]


def test_recorded_memory_is_seen_with_another_shape() -> None:
    turned = op("aten::gelu", {"self": meta(8, 4, strides=(1, 8))}, meta(8, 4))
    linked = link([RELU, turned], [0, 1, 1], memories=[((1,), (2,)), ((2,), (3,)), ((1,), (4,))])
    assert linked.sources[1] == (Source("view", Value(0, 0)),)
    assert linked.sources[2] == (Source("outside", number=0, seen=True),)


def test_memory_that_does_not_fit_the_arguments_is_not_taken() -> None:
    linked = link([RELU], [0, 0], memories=[((1, 2), (3,)), ((-1,), ())])
    assert linked.recorded == 0
    assert kinds(linked) == [["outside"], ["result"]]


def test_recorded_memory_does_not_bring_indices() -> None:
    embed = op("aten::embedding", {"weight": meta(9, 8), "indices": meta(4, dtype="int64")}, X)
    memories = [((1, 2), (3,)), ((1, 2), (4,))]
    linked = link([embed], [0, 0], fixed_integers={embed.id}, memories=memories)
    assert linked.sources[0][0] == linked.sources[1][0]
    assert linked.sources[0][1] != linked.sources[1][1]


SHAPES = st.sampled_from([(2, 3), (6,), (3, 2), (64,), (8, 8), (500,)])
TENSORS = st.builds(
    lambda shape, dtype: TensorMeta(shape=shape, dtype=dtype), SHAPES, st.sampled_from(["float32", "int64"])
)
OPS = st.builds(
    op,
    st.sampled_from(["aten::relu", "aten::linear", "aten::view", "aten::select", "aten::add_", "my::op"]),
    st.dictionaries(st.sampled_from(["self", "other", "weight", "mat2"]), TENSORS, max_size=3),
    TENSORS,
)


@given(st.lists(OPS, min_size=1, max_size=6, unique_by=lambda one: one.id), st.data())
def test_any_sequence_keeps_to_any_budget_and_every_argument_is_there(ops: list[ReplayOp], data: st.DataObject) -> None:
    calls = data.draw(st.lists(st.integers(0, len(ops) - 1), max_size=30))
    memories = data.draw(st.one_of(st.just(()), st.just([drawn(ops[index], data) for index in calls])))
    linked = link(ops, calls, memories=memories)
    assert linked == link(ops, calls, memories=memories), "linking depends on nothing but its arguments"
    whole = plan_memory(ops, linked)
    largest = max((need_bytes(ops[index]) for index in calls), default=0)
    limit = data.draw(st.integers(largest, max(largest, whole.peak_bytes)))
    plan = plan_memory(ops, linked, limit)
    assert plan.peak_bytes <= limit
    assert counted(ops, plan.linked, plan.drops) <= limit


def drawn(one: ReplayOp, data: st.DataObject) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Memories of a call's tensors, few enough to be used again and again."""
    numbers = st.integers(-1, 4)
    return tuple(data.draw(numbers) for _ in tensors_of(one)), tuple(data.draw(numbers) for _ in results_of(one))


def counted(ops: list[ReplayOp], linked: Linked, drops: tuple[tuple[Value, ...], ...]) -> int:
    """Most bytes at a time, counted again from what a pass does; views of results count as nothing of their own."""
    alive: dict[Value, tuple[Value | None, int]] = {}
    held = sum(budget.tensor_bytes(tensors_of(ops[one.op])[one.argument][2] or X) for one in linked.outside)
    peak = held
    for place, (index, sources) in enumerate(zip(linked.calls, linked.sources, strict=True)):
        for source in sources:
            assert source.value is None or source.value in alive, "an argument is gone before its call"
            assert source.kind != "outside" or source.number < len(linked.outside)
        made = sum(budget.tensor_bytes(m) for _, _, m in tensors_of(ops[index]) if m is not None)
        own = made if any(source.kind == "own" for source in sources) else 0
        for output, result in enumerate(results_of(ops[index])):
            shares = sources and sources[0].kind != "absent" and ops[index].name in ("aten::view", "aten::select")
            root = sources[0].value if shares else None
            free = shares and root is None
            alive[Value(place, output)] = (root, 0 if free else budget.tensor_bytes(result or X))
        peak = max(peak, held + own + sum(size for root, size in alive.values() if root is None))
        for value in drops[place]:
            del alive[value]
    assert not alive, "nothing outlives the step"
    return peak


def test_links_are_found_in_the_time_that_a_long_step_has() -> None:
    """A hundred thousand calls of one shape must not look through all results before them."""
    ops = [RELU, ADD, LINEAR]
    calls = list(itertools.islice(itertools.cycle(range(3)), 20_000))
    plan = plan_memory(ops, link(ops, calls))
    assert len(plan.drops) == 20_000


def test_a_call_of_thousands_of_like_tensors_takes_each_result_once() -> None:
    """Each list of results is looked through once a call, not once an argument."""
    many = 5000
    cat = op("aten::cat", {"tensors": X}, meta(4 * many, 8))
    cat = msgspec.structs.replace(cat, args=(ReplayArg(name="tensors", type="Tensor[]", tensors=(X,) * many),))
    linked = link([RELU, cat], [0] * many + [1, 1])
    for sources in linked.sources[-2:]:
        assert [source.value for source in sources] == [Value(place, 0) for place in reversed(range(many))]


GRADIENT = op("aten::gelu_backward", {"grad_output": X, "self": X}, X)
SQUARE = meta(8, 8)
MM = op("aten::mm", {"self": SQUARE, "mat2": SQUARE}, SQUARE)
BACK = op("aten::gelu_backward", {"grad_output": SQUARE, "self": SQUARE}, SQUARE)
FORWARD = op("aten::gelu", {"self": SQUARE}, SQUARE)


def test_what_a_backward_op_saved_and_the_factor_of_a_gradient_are_no_gradients() -> None:
    """Products of two gradients square their size: after six layers nothing was finite."""
    linked = link([FORWARD, BACK, MM], [0, 1, 2, 2, 1])
    saved = Source("result", Value(0, 0))
    assert linked.sources[1][1].kind == "outside", "what the forward pass made is its gradient's here"
    assert linked.sources[2] == (Source("result", Value(1, 0)), saved)
    assert linked.sources[3] == (Source("result", Value(2, 0)), saved), "the other product of this gradient came later"
    assert linked.sources[4] == (Source("result", Value(3, 0)), saved)


def test_the_saved_output_of_a_softmax_is_one() -> None:
    given = op("aten::_log_softmax_backward_data", {"grad_output": X, "output": X}, X)
    made = op("aten::_log_softmax", {"self": X}, X)
    assert link([RELU, given], [0, 0, 1]).sources[2][1].kind == "outside"
    assert link([RELU, made, given], [0, 1, 0, 2]).sources[3][1] == Source("result", Value(1, 0))


def test_the_state_of_adam_comes_from_outside_and_its_gradient_is_squared() -> None:
    number = meta(dtype="float64")
    calls = [
        op("aten::mul_", {"self": X, "other": number}, X, mutates="self"),
        op("aten::lerp_", {"self": X, "end": X}, X, mutates="self"),
        op("aten::mul_", {"self": X, "other": number, "x": None}, X, mutates="self"),
        op("aten::addcmul_", {"self": X, "tensor1": X, "tensor2": X}, X, mutates="self"),
        op("aten::sqrt", {"self": X}, X),
        op("aten::addcdiv_", {"self": X, "tensor1": X, "tensor2": X}, X, mutates="self"),
    ]
    linked = link([RELU, *calls], [0, 1, 2, 3, 4, 5, 6])
    parameter, average, square, added, root, step = linked.sources[1:]
    assert [one[0].kind for one in (parameter, average, square, step)] == ["outside"] * 4
    assert {one[1].kind for one in (parameter, square)} == {"outside"}, "numbers are no results"
    assert added[0] == Source("result", Value(3, 0))
    assert added[1] == added[2], "a gradient times itself"
    assert root == (Source("result", Value(4, 0)),)
    assert step[1:] == (Source("result", Value(2, 0)), Source("result", Value(5, 0)))
