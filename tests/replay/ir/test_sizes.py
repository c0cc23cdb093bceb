from __future__ import annotations

import msgspec
import pytest

from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, Value
from opreplay.traces.model import TensorMeta


def op_of(*args: ReplayArg, outputs: tuple[TensorMeta | None, ...] | None = None) -> ReplayOp:
    recorded = Recorded(host_us_total=1, host_us_median=1)
    return ReplayOp(id="0" * 12, name="aten::x", count=1, recorded=recorded, args=args, outputs=outputs)


def tensor(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None, offset: int = 0) -> TensorMeta:
    return TensorMeta(shape=shape, dtype=dtype, strides=strides, storage_offset=offset)


def arg(meta: TensorMeta) -> ReplayArg:
    return ReplayArg(name="self", type="Tensor", tensors=(meta,))


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (tensor(2, 3), 6),
        (tensor(), 1),
        (tensor(0, 5), 0),
        (tensor(2, 3, strides=(1, 2)), 6),
        (tensor(2, 3, strides=(10, 1)), 13),
        (tensor(2**40, strides=(0,)), 1),
        (tensor(4, strides=(2,), offset=5), 12),
    ],
)
def test_extent_is_what_storage_must_hold(meta: TensorMeta, expected: int) -> None:
    assert budget.extent(meta) == expected


def test_expanded_tensor_counts_as_large_as_it_looks() -> None:
    trap = arg(tensor(2**40, strides=(0,)))
    reason = budget.over_budget(op_of(trap), 10**9)
    assert reason is not None
    assert str(reason) == "budget: needs about 8.8 TB, limit 1.0 GB (--set max_op_memory)"


def test_gaps_between_strides_count() -> None:
    assert budget.tensor_bytes(tensor(2, strides=(2**40,))) == 4 * (2**40 + 1)


def test_known_outputs_are_added() -> None:
    need = budget.need_of(op_of(arg(tensor(10)), outputs=(tensor(1000), None)))
    assert (need.inputs, need.outputs, need.outputs_known) == (40, 4000, True)
    assert budget.over_budget(op_of(arg(tensor(10)), outputs=(tensor(1000),)), 4040) is None


def test_in_place_op_makes_nothing_new() -> None:
    meta = tensor(1000)
    written = ReplayArg(name="self", type="Tensor", tensors=(meta,), mutated=True)
    recorded = Recorded(host_us_total=1, host_us_median=1)
    op = ReplayOp(id="0" * 12, name="aten::relu_", count=1, recorded=recorded, args=(written,), outputs=(meta,))
    assert budget.need_of(op).total == 4000


@pytest.mark.parametrize(("before", "result"), [(1000, 0), (0, 4000)])
def test_what_out_is_given_counts_once(before: int, result: int) -> None:
    """One of another size than the result grows."""
    out = ReplayArg(name="out", type="Tensor", tensors=(tensor(before),), keyword_only=True, mutated=True)
    op = op_of(arg(tensor(1000)), out, outputs=(tensor(1000),))
    schema = "aten::exp.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)"
    need = budget.need_of(msgspec.structs.replace(op, schema=schema))
    assert (need.inputs, need.outputs) == (4000 + 4 * before, result)


@pytest.mark.parametrize(("size", "expected"), [((10**12,), 4 * 10**12), ((2, -1, 3), 24), (None, 0)])
def test_size_arguments_of_factories_count(size: Value, expected: int) -> None:
    need = budget.need_of(op_of(ReplayArg(name="size", type="int[]", value=size)))
    assert need.outputs == expected


def test_unknown_outputs_are_at_least_the_broadcast_of_the_inputs() -> None:
    assert budget.need_of(op_of(arg(tensor(2**20, 1)), arg(tensor(2**20)))).outputs == 4 * 2**40
    assert budget.need_of(op_of(arg(tensor(3, 4)), arg(tensor(5)))).outputs == 48, "shapes that do not broadcast"
    wide_index = op_of(arg(tensor(1000, 4)), arg(tensor(10, dtype="int64")))
    assert budget.need_of(wide_index).outputs == 16_000, "an index does not widen the rows"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3_200_000_000, "3.2 GB"), (10**18, "1000.0 PB")]
)
def test_readable(size: int, text: str) -> None:
    assert budget.readable(size) == text


@pytest.mark.parametrize(("size", "text"), [(10**400, "2^1328"), (-(10**400), "-2^1328"), (5 * 10**20, "5e+20")])
def test_sizes_beyond_a_float_are_shown(size: int, text: str) -> None:
    assert f"self of {text} x 2" in budget.absurd_sizes("self", [size, 2]).detail
    assert budget.readable(10**400) == "2^1328 B"
