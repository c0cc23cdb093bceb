"""Index tensors are no part of a profile; what an indexing calls inside and what is read next tell them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.guess.indices import index_tensors, indices_for
from opreplay.replay.resolve.guess.values import Context, Guess, Relatives
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.traces import read_trace
from opreplay.traces.model import OpSignature, TensorMeta

X = torch.randn(6, 5, 4)
K, J = torch.randint(0, 4, (9,)), torch.randint(0, 4, (9,))
MASK, ROWS, COLUMNS = torch.rand(6, 5) > 0.5, torch.rand(6) > 0.5, torch.rand(5) > 0.5
Y = torch.zeros(6, 5)


def _put(key: object, value: object) -> None:
    Y[key] = value  # type: ignore[index, assignment]


CASES: tuple[tuple[str, Callable[[], object], tuple[tuple[tuple[int, ...], str] | None, ...]], ...] = (
    ("aten::index", lambda: X[K], (((9,), "int64"),)),
    ("aten::index", lambda: X[:, K] + 1, (None, ((9,), "int64"))),
    ("aten::index", lambda: X[K, J] + 1, (((9,), "int64"), ((9,), "int64"))),
    ("aten::index", lambda: X[:, K, J] + 1, (None, ((9,), "int64"), ((9,), "int64"))),
    ("aten::index", lambda: X[K, :, J] + 1, (((9,), "int64"), None, ((9,), "int64"))),
    ("aten::index", lambda: X[K[:, None], J] + 1, (((9, 1), "int64"), ((9,), "int64"))),
    ("aten::index", lambda: X[K.int()] + 1, (((9,), "int32"),)),
    ("aten::index", lambda: X[MASK] + 1, (((6, 5), "bool"),)),
    ("aten::index", lambda: X[ROWS] + 1, (((6,), "bool"),)),
    ("aten::index_put_", lambda: _put(K, 1.0), (((9,), "int64"),)),
    ("aten::index_put_", lambda: _put(MASK, 1.0), (((6, 5), "bool"),)),
    ("aten::index_put_", lambda: _put(ROWS, 1.0), (((6,), "bool"),)),
    ("aten::index_put_", lambda: _put((slice(None), COLUMNS), 1.0), (None, ((5,), "bool"))),
    ("aten::index_put_", lambda: _put(ROWS, torch.rand(5)), (((6,), "bool"),)),
    ("aten::index_put_", lambda: _put((slice(None), K), torch.rand(6, 9)), (None, ((9,), "int64"))),
    ("aten::_index_put_impl_", lambda: _put((K, J), torch.rand(9)), (((9,), "int64"), ((9,), "int64"))),
)


def exported(profiler: profile, folder: Path, columns: tuple[str, ...]) -> Path:
    """The recorded trace less some columns."""
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        for column in columns:
            event.get("args", {}).pop(column, None)
    path.write_text(json.dumps(trace))
    return path


@pytest.mark.parametrize("columns", [(), ("Input Strides", "Concrete Inputs")], ids=["all", "sizes and types"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_recorded_index_tensors_are_found(case: int, columns: tuple[str, ...], tmp_path: Path) -> None:
    name, step, expected = CASES[case]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    path = exported(profiler, tmp_path, columns)
    plan = build_plan(read_trace(path), select="all")
    (op,) = (op for op in plan.ops if op.name == name)
    (indices,) = (arg.tensors for arg in op.args if arg.name == "indices")
    assert tuple(meta and (meta.shape, meta.dtype) for meta in indices) == expected
    assert any(
        (note.argument == "indices" and "inferred from" in note.what) or "masked_fill_" in note.what
        for note in op.assumptions
    )


def _guessed(shape: tuple[int, ...], context: Context) -> Guess:
    own = ReplayArg(name="self", type="Tensor", tensors=(TensorMeta(shape=shape, dtype="float32"),))
    found = index_tensors(Call({"self": own}), context)
    assert found is not None
    return found


def test_without_calls_inside_the_rows_are_those_that_are_read_next() -> None:
    reader = OpSignature(name="aten::mul", dims=((15, 4096), ()), types=("float", "Scalar"))
    found = _guessed((15360, 4096), Context(relatives=lambda: Relatives(following=(reader,))))
    assert found.tensors == (TensorMeta(shape=(15,), dtype="int64"),)
    assert "aten::mul reads" in found.why


def test_rows_that_nothing_tells_are_bounded_by_what_memory_can_move() -> None:
    found = _guessed((15360, 4096), Context(recorded_us=10.0))
    assert found.tensors == (TensorMeta(shape=(2441,), dtype="int64"),)
    assert "as many as memory can move" in found.why
    assert _guessed((15, 4), Context(recorded_us=10.0)).tensors == (TensorMeta(shape=(15,), dtype="int64"),)


def test_a_damaged_list_of_calls_inside_is_no_error() -> None:
    odd = OpSignature(name="aten::reshape", dims=((3,), ()), types=("long int", "ScalarList"))
    mask = OpSignature(name="aten::nonzero", dims=((7, 7, 7),), types=("bool",))
    for calls in ((odd,), (odd, odd, odd), (mask, odd), (mask,)):
        _guessed((6, 5), Context(relatives=lambda calls=calls: Relatives(children=calls)))


def test_indices_follow_from_the_values_that_are_put() -> None:
    found = indices_for((16, 27, 27), (16, 351))
    assert found is not None
    assert found.tensors is not None
    assert [meta and meta.shape for meta in found.tensors] == [None, (351,), (351,)]
    assert indices_for((4, 5), ()) is None


@pytest.mark.parametrize("step", [lambda: X[MASK] + 1, lambda: X[:, COLUMNS] + 1, lambda: X[ROWS] + 1])
def test_results_of_masks_have_as_many_rows_as_the_calls_inside_tell(
    step: Callable[[], torch.Tensor], tmp_path: Path
) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        result = step()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    plan = with_outputs(build_plan(read_trace(path)))
    found = next(op for op in plan.ops if op.name == "aten::index")
    assert found.outputs is not None
    assert found.outputs[0] is not None
    assert found.outputs[0].shape == tuple(result.shape)
    # The kernels move what the result holds, not what the mask could.
    moved = lower(found).kernels[-1]
    assert moved.type == "Index"
    assert moved.attrs["moved_bytes"] == result.nbytes


@pytest.mark.parametrize("columns", [(), ("Input Strides",), ("Input Strides", "Concrete Inputs")])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_index_of_one_element_is_the_one_that_is_expanded(
    tmp_path: Path, order: tuple[int, int], columns: tuple[str, ...]
) -> None:
    given = (torch.tensor([0, 3, 1]), torch.tensor(2))
    indices = tuple(given[at] for at in order)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        Y.index_put_(indices, torch.ones(3))
    path = exported(profiler, tmp_path, columns)
    (op,) = (op for op in build_plan(read_trace(path), select="all").ops if op.name == "aten::index_put_")
    (told,) = (arg.tensors for arg in op.args if arg.name == "indices")
    assert [meta and meta.shape for meta in told] == [tuple(index.shape) for index in indices]


@pytest.mark.parametrize("columns", [(), ("Input Strides",)], ids=["all", "no strides"])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_an_index_under_vmap(tmp_path: Path, shape: tuple[int, ...], columns: tuple[str, ...]) -> None:
    """The call for a row has the index of a row, those inside the batch's range and index."""
    rows, at = torch.rand(4, 5), torch.randint(0, 5, (4, *shape))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        torch.vmap(lambda row, index: row[index])(rows, at)
    path = exported(profiler, tmp_path, columns)
    told = {
        (op.args[0].tensors[0].shape, tuple(meta.shape for meta in op.args[1].tensors if meta))  # type: ignore[union-attr]
        for op in build_plan(read_trace(path), select="all").ops
        if op.name == "aten::index"
    }
    batch = ((4, *(1,) * len(shape)), (4, *shape))
    assert told == {((5,), (shape,)), ((4, 5), batch)}


def test_an_index_that_is_cast_beside_others_that_are_expanded(tmp_path: Path) -> None:
    """Indices of int32 among those of int64, of which only some are expanded first."""
    target, values = torch.zeros(2, 3, 4), torch.ones(2, 2)
    rows, columns = torch.tensor([[0], [1]]), torch.tensor([[0, 1], [2, 0]], dtype=torch.int32)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        torch.ops.aten.index_put_(target, [rows, columns, torch.tensor([1, 3])], values)
    file = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(file))
    plan = build_plan(read_trace(file), select="all")
    op = next(op for op in plan.ops if op.name == "aten::_index_put_impl_")
    indices = next(arg for arg in op.args if arg.name == "indices")
    assert [(meta.shape, meta.dtype) for meta in indices.tensors if meta] == [
        ((2, 1), "int64"),
        ((2, 2), "int32"),
        ((2,), "int64"),
    ]
