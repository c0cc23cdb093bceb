"""Arguments that shared memory in the model share it in the replay: from the trace to the tensors, and no further."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.replay.arguments import tensors
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import ReplayArg, ReplayPlan
from opreplay.replay.ir.plan_file import dump_plan, parse_plan
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.traces import read_trace
from opreplay.traces.errors import FormatError
from opreplay.traces.model import OpSignature, TensorMeta
from tests.factories import jit_op as op

CPU = torch.device("cpu")
find = partial(find_overload, policy=Policy())


def meta(
    *shape: int, at: int = 0, memory: int | None = 0, dtype: str = "float32", strides: tuple[int, ...] | None = None
) -> TensorMeta:
    return TensorMeta(shape=shape, dtype=dtype, strides=strides, storage_offset=at, storage=memory)


def arg(name: str, *metas: TensorMeta, mutated: bool = False) -> ReplayArg:
    return ReplayArg(name=name, type="Tensor" if len(metas) == 1 else "Tensor[]", tensors=metas, mutated=mutated)


@pytest.fixture
def executor() -> Iterator[TorchExecutor]:
    made = TorchExecutor("cpu", find, memory_bytes=10**8)
    yield made
    made.close()


@st.composite
def members(draw: st.DrawFn) -> tuple[TensorMeta, ...]:
    """Tensors of one memory: any offsets, strides that expand, overlap or permute, zero sizes, two widths."""
    made = []
    for _ in range(draw(st.integers(2, 4))):
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        strides = draw(st.none() | st.tuples(*[st.integers(0, 9) for _ in shape]))
        dtype = draw(st.sampled_from(["float32", "float32", "bfloat16", "complex64"]))
        made.append(meta(*shape, at=draw(st.integers(0, 6)), strides=strides, dtype=dtype))
    return tuple(made)


@settings(deadline=None)
@given(members())
def test_tensors_lie_where_the_plan_says_in_one_memory(metas: tuple[TensorMeta, ...]) -> None:
    made = tensors.arguments(op("aten::x", *(arg(f"a{i}", m) for i, m in enumerate(metas))), device=CPU)
    found = [made[f"a{i}"] for i in range(len(metas))]
    base = found[0].untyped_storage()
    assert base.nbytes() == max(aliasing.reach_bytes(m) for m in metas)
    for tensor, said in zip(found, metas, strict=True):
        assert tensor.untyped_storage().data_ptr() == base.data_ptr()
        assert tuple(tensor.shape) == said.shape
        assert not tensor._is_view()
        if tensor.numel():
            assert tensor.data_ptr() == base.data_ptr() + said.storage_offset * tensor.element_size()
            tensor.fill_(0)  # every element is inside


@given(members())
def test_shared_memory_is_counted_once(metas: tuple[TensorMeta, ...]) -> None:
    shared = op("aten::x", *(arg(f"a{i}", m) for i, m in enumerate(metas)))
    own, notes = aliasing.give_own_memory(shared.args, aliasing.REFUSED)
    assert [note.argument for note in notes] == [f"a{i}" for i in range(len(metas))]
    apart = msgspec.structs.replace(shared, args=own)
    sizes = [budget.tensor_bytes(m) for m in metas]
    assert budget.need_of(shared).inputs == max(sizes)
    assert budget.need_of(apart).inputs == sum(sizes)
    assert tensors.shared_memories(apart, device=CPU) == {}


@given(st.lists(st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=3), max_size=4))
def test_settled_numbers_are_dense_and_mean_something(numbers: list[list[int | None]]) -> None:
    args = tuple(arg(f"a{i}", *(meta(2, memory=n) for n in row)) for i, row in enumerate(numbers))
    settled, notes = aliasing.normalize_sharing(args)
    found = aliasing.groups(settled)
    assert list(found) == list(range(len(found)))
    assert all(len(group) > 1 for group in found.values())
    assert notes == ()
    assert aliasing.normalize_sharing(settled) == (settled, ())
    before = [n for row in numbers for n in row]
    after = [m.storage for a in settled for m in a.tensors if m]
    for i, one in enumerate(after):
        partners = [j for j, other in enumerate(before) if other is not None and other == before[i]]
        assert (one is not None) == (len(partners) > 1)


def test_integers_share_memory_with_their_own_type_only() -> None:
    args = (
        arg("values", meta(8)),
        arg("index", meta(4, dtype="int64")),
        arg("same", meta(4, memory=1, dtype="int64")),
        arg("twin", meta(4, memory=1, dtype="int64")),
    )
    settled, notes = aliasing.normalize_sharing(args)
    assert {(note.argument, note.what) for note in notes} == {("values", aliasing.MIXED), ("index", aliasing.MIXED)}
    assert aliasing.sharing(settled) == {"same": ("twin",), "twin": ("same",)}


def test_only_recorded_sharing_is_taken() -> None:
    signature = OpSignature(
        name="aten::mul",
        dims=((4,), (4,)),
        types=("float", "float"),
        strides=((1,), (1,)),
        concrete=("", ""),
        storage=(((0, 3),), ((0, 5),)),
    )
    both = [rec.tensor for rec in recorded_args(signature)]
    assert [(m.storage, m.storage_offset) for m in both if m] == [(0, 3), (0, 5)]
    for storage in (None, (((0, 3),), ((1, 5),))):
        apart = [rec.tensor for rec in recorded_args(replace(signature, storage=storage))]
        assert [m.storage for m in apart if m] == [None, None]


def test_in_place_on_itself_stays_finite_and_is_reset(executor: TorchExecutor) -> None:
    square = op("aten::mul_", arg("self", meta(64), mutated=True), arg("other", meta(64)), overload="Tensor")
    prepared = executor.prepare(square, seed=0)
    for _ in range(3):
        results = [executor.run(prepared) for _ in range(prepared.max_calls or 1)]
        assert bool(results[-1].isfinite().all())
        executor.reset(prepared)
    args = tensors.arguments(square, device=CPU)
    assert args["self"].data_ptr() == args["other"].data_ptr()


def test_in_place_next_to_an_expanded_view_of_the_same_memory(executor: TorchExecutor) -> None:
    row = meta(4, 8, at=64, strides=(0, 1))
    made = op("aten::add_", arg("self", meta(4, 8), mutated=True), arg("other", row), overload="Tensor")
    prepared = executor.prepare(made, seed=0)
    assert tuple(executor.run(prepared).shape) == (4, 8)
    assert not [a for a in prepared.assumptions if a.what == aliasing.REFUSED]


def test_overlap_that_this_kernel_refuses_gets_memory_of_its_own_and_says_so(executor: TorchExecutor) -> None:
    made = op("aten::add_", arg("self", meta(8), mutated=True), arg("other", meta(8, at=4)), overload="Tensor")
    prepared = executor.prepare(made, seed=0)
    assert {a.argument for a in prepared.assumptions if a.what == aliasing.REFUSED} == {"self", "other"}
    assert executor.run(prepared).isfinite().all()


def test_indices_of_two_dimensions_get_memory_of_their_own(executor: TorchExecutor) -> None:
    index = meta(3, dtype="int64")
    made = op("aten::index", arg("self", meta(5, 50, memory=None)), arg("indices", index, index), overload="Tensor")
    prepared = executor.prepare(made, seed=0)
    assert next(a.what for a in prepared.assumptions if a.argument == "indices") == aliasing.INDEXED
    assert tuple(executor.run(prepared).shape) == (3,)


def test_memory_that_a_budget_does_not_allow_apart_is_refused() -> None:
    small = TorchExecutor("cpu", find, memory_bytes=5000)
    made = op("aten::add_", arg("self", meta(1000), mutated=True), arg("other", meta(1000, at=4)), overload="Tensor")
    try:
        with pytest.raises(NotReplayable, match="budget"):
            small.prepare(made, seed=0)
    finally:
        small.close()


def test_a_view_beyond_the_memory_is_refused() -> None:
    memory = torch.empty(16, dtype=torch.uint8).untyped_storage()
    assert tensors.allocate(meta(4), device=CPU, memory=memory).data_ptr() == memory.data_ptr()
    with pytest.raises(NotReplayable, match="share memory"):
        tensors.allocate(meta(4, at=1), device=CPU, memory=memory)


@given(members())
def test_plan_files_keep_it(metas: tuple[TensorMeta, ...]) -> None:
    made = op("aten::x", *(arg(f"a{i}", m) for i, m in enumerate(metas)))
    plan = ReplayPlan(source="t", device_us_total=0.0, host_us_total=1.0, ops=(made,))
    assert parse_plan(dump_plan(plan)) == plan
    broken = msgspec.structs.replace(plan, ops=(op("aten::x", arg("a", meta(2, memory=-1))),))
    with pytest.raises(FormatError, match="negative"):
        parse_plan(dump_plan(broken))


def attention_trace(path: Path) -> Path:
    """A real ExecutionTrace: attention on a packed projection, squares, an update in place, one index used twice."""
    from torch.profiler import ExecutionTraceObserver

    observer = ExecutionTraceObserver()
    observer.register_callback(str(path))
    observer.start()
    packed = torch.randn(2, 16, 3, 4, 8)
    q, k, v = packed.unbind(2)
    torch.nn.functional.scaled_dot_product_attention(q, k, v)
    x = torch.randn(8, 8)
    x.mul_(x)
    torch.addcmul(x, x, torch.randn(8))
    torch.randn(5, 5)[torch.arange(3), torch.arange(3)]
    observer.stop()
    observer.unregister_callback()
    return path


def test_from_a_real_trace_to_tensors(tmp_path: Path, executor: TorchExecutor) -> None:
    plan = with_outputs(build_plan(read_trace(attention_trace(tmp_path / "et.json")), select="all"))
    by_name = {made.name: made for made in plan.ops}
    attention = by_name["aten::scaled_dot_product_attention"]
    assert aliasing.sharing(attention.args) == {
        "query": ("key", "value"),
        "key": ("query", "value"),
        "value": ("query", "key"),
    }
    assert attention.outputs is not None
    made = tensors.arguments(attention, device=CPU)
    starts = [made[name].data_ptr() for name in ("query", "key", "value")]
    assert [start - starts[0] for start in starts] == [0, 4 * 32, 4 * 64]
    assert budget.need_of(attention).inputs == 4 * math.prod((2, 16, 3, 4, 8))
    assert aliasing.sharing(by_name["aten::mul_"].args) == {"self": ("other",), "other": ("self",)}
    assert aliasing.sharing(by_name["aten::addcmul"].args) == {"self": ("tensor1",), "tensor1": ("self",)}
    assert aliasing.sharing(by_name["aten::index"].args) == {}
    for name in ("aten::scaled_dot_product_attention", "aten::mul_", "aten::addcmul"):
        executor.run(executor.prepare(by_name[name], seed=0))
    assert parse_plan(dump_plan(plan)) == plan


def test_copies_for_cold_caches_share_memory_as_the_arguments_do(executor: TorchExecutor) -> None:
    made = op("aten::add", arg("self", meta(64)), arg("other", meta(64, at=16)), overload="Tensor")
    first, second = executor.prepare(made, seed=0).copies(2)
    for call in (first, second):
        left, right = call.args  # type: ignore[attr-defined]
        assert right.data_ptr() - left.data_ptr() == 64
        assert right.untyped_storage().data_ptr() == left.untyped_storage().data_ptr()
    assert first.args[0].data_ptr() != second.args[0].data_ptr()  # type: ignore[attr-defined]
