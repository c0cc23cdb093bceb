"""Lists that a trace lacks: recovered from the calls inside, from what reads the result, from autograd's labels."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.relatives import RelativesIndex
from opreplay.traces.model import OpSignature
from tests.replay.plan.test_build import trace


def call(name: str, *args: tuple[object, str] | tuple[object, str, str]) -> OpSignature:
    """args: (dims, type) or (dims, type, concrete text)."""
    concrete = tuple(str(arg[2]) if len(arg) > 2 else "" for arg in args)
    dims: Any = tuple(arg[0] for arg in args)
    return OpSignature(name=name, dims=dims, types=tuple(arg[1] for arg in args), concrete=concrete)


LIST, FLAG = ((), "TensorList"), ((), "Scalar")


def zero() -> tuple[object, str, str]:
    return ((), "Scalar", "0")


def f(*shape: int) -> tuple[object, str]:
    return (shape, "float")


def planned(name: str, *rows: tuple[OpSignature, int, int]) -> ReplayOp:
    return next(op for op in build_plan(trace(list(rows)), select="all").ops if op.name == name)


def argument(op: ReplayOp, name: str) -> ReplayArg:
    return next(arg for arg in op.args if arg.name == name)


def shapes(op: ReplayOp, name: str) -> list[tuple[int, ...]]:
    return [meta.shape for meta in argument(op, name).tensors if meta is not None]


def note(op: ReplayOp, name: str) -> str:
    return "; ".join(found.what for found in op.assumptions if found.argument == name)


CAT = call("aten::cat", LIST, zero())


def test_parts_of_cat_from_the_views_of_its_result() -> None:
    """torch 1.x on a GPU narrows the result once a part."""
    inside = call("aten::narrow", ((417,), "long int"), FLAG, FLAG, FLAG)
    op = planned("aten::cat", (CAT, 0, 100), (inside, 10, 5), (inside, 20, 5), (inside, 30, 5))
    assert shapes(op, "tensors") == [(139,), (139,), (139,)]
    assert all(meta is not None and meta.dtype == "int64" for meta in argument(op, "tensors").tensors)
    assert "3 parts of the result [417]" in note(op, "tensors")


def test_parts_of_concat_from_what_cat_does_inside() -> None:
    inside = call("aten::narrow", f(10, 4), FLAG, FLAG, FLAG)
    rows = [(call("aten::concat", LIST, zero()), 0, 100), (CAT, 10, 80), (inside, 20, 5), (inside, 30, 5)]
    assert shapes(planned("aten::concat", *rows), "tensors") == [(5, 4), (5, 4)]


def test_parts_of_cat_from_what_reads_the_result() -> None:
    """DDP flattens its parameters and broadcasts them: a list of one tensor, whose type the kernel has to tell."""
    op = planned("aten::cat", (CAT, 0, 100), (call("aten::mul", f(9600), FLAG), 120, 50))
    assert shapes(op, "tensors") == [(4800,), (4800,)]
    assert "two halves of the tensor that aten::mul reads next, [9600]" in note(op, "tensors")


def test_a_list_that_is_left_out_where_others_are_recorded_had_more_than_30_elements() -> None:
    reader = call("c10d::broadcast_", (((9600,),), "TensorList"), FLAG)
    op = planned("aten::cat", (CAT, 0, 100), (CAT, 110, 5), (reader, 120, 50))
    assert shapes(op, "tensors") == [(300,)] * 32
    assert "32 equal parts of the tensor that c10d::broadcast_ reads next, [9600]" in note(op, "tensors")
    assert "2 calls are grouped as this op" in note(op, "tensors")
    op = planned("aten::cat", (CAT, 0, 100), (call("c10d::broadcast_", (((12,),), "TensorList"), FLAG), 120, 50))
    assert str(op.reason) == (
        "metadata missing: shapes of tensor list tensors (a list of more than 30 tensors is not recorded, "
        "and an empty one looks the same; an ExecutionTrace records it: --execution-trace)"
    )


def test_types_of_joined_tensors_are_those_of_what_reads_the_result() -> None:
    given = call("aten::cat", (((2, 9), (2, 1)), "TensorList"), ((), "Scalar", "1"))
    op = planned("aten::cat", (given, 0, 9), (call("aten::embedding", f(99, 8), ((2, 10), "long int")), 10, 9))
    assert [meta and meta.dtype for meta in argument(op, "tensors").tensors] == ["int64", "int64"]
    assert note(op, "tensors") == "int64: aten::embedding reads the result"
    given = call("aten::stack", (((7, 5), (7, 5)), "TensorList"), ((), "Scalar", "-1"))
    op = planned("aten::stack", (given, 0, 9), (call("aten::view", ((7, 5, 2), "long int"), LIST), 10, 9))
    assert note(op, "tensors") == "int64: aten::view reads the result"


def test_types_of_tensors_that_are_expanded_inside_and_read_next() -> None:
    given = call("aten::broadcast_tensors", (((16, 1), (16, 4)), "TensorList"))
    inside = call("aten::expand", ((16, 1), "long int"), LIST, FLAG)
    reader = call("aten::gather", ((16, 4), "double"), FLAG, ((16, 1), "long int"), FLAG)
    op = planned("aten::broadcast_tensors", (given, 0, 100), (inside, 10, 5), (reader, 120, 5))
    assert [meta and meta.dtype for meta in argument(op, "tensors").tensors] == ["int64", "float64"]


def test_a_comparison_of_what_was_broadcast_does_not_tell_its_type() -> None:
    given = call("aten::broadcast_tensors", (((16, 4), (1, 1)), "TensorList"))
    inside = call("aten::expand", f(1, 1))
    readers = [call("aten::gt", f(16, 4), f(1, 1)), call("aten::all", ((16, 4), "bool"))]
    op = planned(
        "aten::broadcast_tensors", (given, 0, 100), (inside, 10, 5), (readers[0], 120, 5), (readers[1], 130, 5)
    )
    assert [meta and meta.dtype for meta in argument(op, "tensors").tensors] == ["float32", "float32"]


def test_a_fused_optimizer_is_not_as_large_as_what_it_calls_inside() -> None:
    """Its calls inside read step counters: 64 parameters became 64 scalars."""
    adam = call("aten::_fused_adamw_", *[LIST] * 6, *[FLAG] * 7, ((), ""), ((), ""))
    inside = call("aten::item", ((), "float"))
    rows = [(adam, 0, 900), *((inside, 10 + i, 1) for i in range(64))]
    assert "shapes of tensor list self" in str(planned("aten::_fused_adamw_", *rows).reason)


def test_a_call_on_another_thread_is_no_reader() -> None:
    made = trace([(CAT, 0, 100), (call("aten::neg", f(8)), 120, 50)])
    made.ops.track[1] = 1
    op = next(op for op in build_plan(made, select="all").ops if op.name == "aten::cat")
    assert str(op.reason) == "metadata missing: shapes of tensor list tensors"


def test_stack_from_its_unsqueezes() -> None:
    inside = call("aten::unsqueeze", f(8), FLAG)
    rows = [(call("aten::stack", LIST, zero()), 0, 100), *((inside, 10 * i, 5) for i in range(1, 4))]
    assert shapes(planned("aten::stack", *rows), "tensors") == [(8,), (8,), (8,)]


def test_all_parameters_of_a_foreach_from_the_calls_inside() -> None:
    """62 parameters of a ResNet: a list of more than 30 elements is not recorded."""
    sizes = [(64, 3, 7, 7), (64,), (128, 64, 3, 3)] * 20 + [(1000, 512), (1000,)]
    inside = [(call("aten::result_type", f(*size), FLAG), 10 + i, 1) for i, size in enumerate(sizes)]
    op = planned("aten::_foreach_add_", (call("aten::_foreach_add_", LIST, LIST, zero()), 0, 1000), *inside)
    assert shapes(op, "self") == shapes(op, "other") == sizes


def test_a_fused_optimizer_has_the_parameters_that_gradients_were_accumulated_for() -> None:
    """Two steps: every gradient appears twice."""
    label = "torch::autograd::AccumulateGrad"
    grads = [call(label, f(64, 32)), call(label, f(64)), call(label, f(64))]
    rows = [(grad, 10 * i, 5) for i, grad in enumerate(grads * 2)]
    lists = [LIST] * 6
    fused = call("aten::_fused_sgd_", *lists[:3], zero(), zero(), zero(), zero(), zero(), zero(), zero())
    op = planned("aten::_fused_sgd_", *rows, (fused, 200, 50))
    assert sorted(shapes(op, "self")) == [(64,), (64,), (64, 32)]
    assert shapes(op, "grads") == shapes(op, "self")
    assert "gradients of a backward pass" in note(op, "self")


@pytest.mark.parametrize("exact", [True, False])
def test_sizes_of_pieces(exact: bool) -> None:
    whole = ((6, 416), "float")
    text = "[6, {}]" if exact else ""
    inside = [
        (call("aten::as_strided", whole, ((), "ScalarList", text.format(n)), ((), "ScalarList", ""), FLAG), 10 * i, 5)
        for i, n in enumerate((13, 3, 400), start=1)
    ]
    split = call("aten::split_with_sizes", whole, ((), ""), ((), "Scalar", "1"))
    op = planned("aten::split_with_sizes", (split, 0, 100), *inside)
    assert argument(op, "split_sizes").value == ((13, 3, 400) if exact else (139, 139, 138))
    assert ("3 pieces created inside" if exact else "3 even pieces") in note(op, "split_sizes")


def test_sizes_of_new_tensors_from_what_is_written_two_levels_below() -> None:
    zeros = call("aten::zeros", ((), ""), ((), ""), ((), ""), ((), ""), FLAG)
    rows = [(zeros, 0, 100), (call("aten::zeros", *[((), "")] * 5), 10, 80), (call("aten::zero_", f(7, 3)), 20, 5)]
    assert argument(planned("aten::zeros", *rows), "size").value == (7, 3)


def test_an_allocation_of_unknown_size_is_small_and_says_so() -> None:
    op = planned("aten::empty", (call("aten::empty", ((), ""), ((), ""), ((), ""), ((), ""), FLAG, ((), "")), 0, 5))
    assert op.reason is None
    assert argument(op, "size").value == (1,)
    assert "the trace does not show the" in note(op, "size")


def test_an_equation_that_no_call_inside_tells_is_not_invented() -> None:
    shapes = ((16, 64), (32, 64))
    signature = OpSignature(
        name="aten::einsum",
        dims=((), shapes, ()),
        types=("", "TensorList", ""),
        strides=((), ((64, 1), (64, 1)), ()),
        concrete=("", "", ""),
    )
    op = planned("aten::einsum", (signature, 0, 10))
    assert op.reason is not None
    assert op.reason.kind == "metadata missing"


def test_a_single_scalar_tensor_of_an_npu_profile() -> None:
    """torch_npu writes the dimensions of a lone 0-dim tensor as an empty text."""
    op = planned("aten::item", (OpSignature(name="aten::item", dims=(), types=("double",)), 0, 10))
    assert (shapes(op, "self"), op.reason) == ([()], None)


def test_ops_that_are_their_own_ancestors_do_no_harm() -> None:
    """A damaged ExecutionTrace may say so."""
    made = trace([(CAT, 0, 100), (CAT, 10, 50)])
    looped = msgspec.structs.replace(
        made, ops=msgspec.structs.replace(made.ops, parent=np.array([1, 0], dtype=np.int64))
    )
    around = RelativesIndex(looped).around(0)
    assert around.parent is not None
    assert len(around.inner) <= 64


def test_parameters_of_an_optimizer_have_the_element_type_of_their_gradients() -> None:
    """Most of a model may be frozen in bfloat16 while what is trained is not; step counters never are."""
    bf16 = ((8, 8), "c10::BFloat16")
    lists = (((4, 8), (8, 4)), "TensorList")
    op = planned(
        "aten::_fused_adamw_",
        (call("aten::mm", bf16, bf16), 0, 10),
        (call("aten::mm", bf16, bf16), 10, 10),
        (call("torch::autograd::AccumulateGrad", f(4, 8)), 20, 5),
        (call("torch::autograd::AccumulateGrad", f(8, 4)), 30, 5),
        (
            call("aten::_fused_adamw_", *[lists] * 4, ((), "TensorList"), (((), ()), "TensorList"), *[zero()] * 7),
            40,
            50,
        ),
    )
    for name in ("self", "grads", "exp_avgs"):
        assert [meta.dtype for meta in argument(op, name).tensors if meta is not None] == ["float32", "float32"]
    assert {meta.dtype for meta in argument(op, "state_steps").tensors if meta is not None} == {"float32"}
