"""Element types of lists, which no profiler records, against the tensors of ops that are recorded here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from opreplay.replay.plan.build import build_plan
from opreplay.traces import read_trace

NAMESPACE = "element_types_of_lists"


def recorded_types(tmp_path: Path, name: str, run: Callable[[], object]) -> dict[str, list[str]]:
    """The element types that the plan of a recorded call has, by argument."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    file = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(file))
    op = next(op for op in build_plan(read_trace(file), select="all").ops if op.name == name)
    return {arg.name: [meta.dtype for meta in arg.tensors if meta] for arg in op.args if arg.type == "Tensor[]"}


def tensors(*dtypes: torch.dtype, rows: Sequence[int] = (3, 5, 7)) -> list[torch.Tensor]:
    return [torch.ones(n, 4).to(dtype) for n, dtype in zip(rows, dtypes, strict=False)]


F32, F64, BF16, F16, I64, I32 = torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32


@pytest.mark.parametrize(
    ("name", "lists"),
    [
        ("_foreach_copy_", ((F32, F32), (BF16, BF16))),
        ("_foreach_copy_", ((F64, BF16), (I64, F16))),
        ("_foreach_add_", ((F32, F32), (BF16, F16))),
        ("_foreach_mul", ((F32, F32), (BF16, BF16))),
        ("_foreach_div", ((F16, F32), (F32, F16))),
        ("_foreach_addcmul_", ((F32, F32), (BF16, BF16), (F16, F32))),
        ("_foreach_addcdiv", ((F32, F32), (F16, F16), (BF16, BF16))),
        ("_foreach_pow", ((F32, F32), (F64, F64))),
    ],
)
@pytest.mark.parametrize("rows", [(3, 5), (3, 3)])
def test_each_list_of_a_foreach_op_has_its_own_types(
    tmp_path: Path, name: str, lists: tuple[tuple[torch.dtype, ...], ...], rows: tuple[int, int]
) -> None:
    given = [tensors(*dtypes, rows=rows) for dtypes in lists]
    types = recorded_types(tmp_path, f"aten::{name}", lambda: getattr(torch, name)(*given))
    assert list(types.values()) == [[str(dtype).removeprefix("torch.") for dtype in dtypes] for dtypes in lists]


def test_lists_of_a_foreach_op_that_are_too_long_to_be_recorded(tmp_path: Path) -> None:
    into, source = tensors(*[F32] * 40, rows=range(1, 41)), tensors(*[F16] * 40, rows=range(1, 41))

    def run() -> None:
        torch._foreach_neg([torch.ones(2)])
        torch._foreach_copy_(into, source)

    types = recorded_types(tmp_path, "aten::_foreach_copy_", run)
    assert types == {"self": ["float32"] * 40, "src": ["float16"] * 40}


@pytest.mark.parametrize(
    ("name", "join"),
    [
        ("cat", torch.cat),
        ("concat", torch.concat),
        ("vstack", torch.vstack),
    ],
)
@pytest.mark.parametrize("dtypes", [(F32, BF16, F32), (BF16, F64, F16), (I64, F32, torch.bool), (I32, I64, I64)])
def test_joined_tensors_of_several_types(
    tmp_path: Path,
    name: str,
    join: Callable[[list[torch.Tensor]], torch.Tensor],
    dtypes: tuple[torch.dtype, ...],
) -> None:
    parts = tensors(*dtypes)
    types = recorded_types(tmp_path, f"aten::{name}", lambda: join(parts) * 2)
    assert types == {"tensors": [str(dtype).removeprefix("torch.") for dtype in dtypes]}


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library(NAMESPACE, "DEF")
    yield made
    made._destroy()


def define(library: torch.library.Library, schema: str, function: Callable[..., torch.Tensor]) -> Callable[..., object]:
    library.define(schema)
    name = schema.partition("(")[0]
    library.impl(name, function, "CompositeExplicitAutograd")
    return getattr(getattr(torch.ops, NAMESPACE), name)


def planned_types(tmp_path: Path, op: Callable[..., object], *args: object) -> dict[str, list[str]]:
    name = str(op).replace(".", "::", 1)
    return recorded_types(tmp_path, name, lambda: op(*args))


def test_tables_beside_ids_are_what_is_indexed_inside(tmp_path: Path, library: torch.library.Library) -> None:
    def lookups(ids: torch.Tensor, tables: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([table[ids[:n]].sum(0) for table in tables for n in (1, 2)])

    op = define(library, "lookups(Tensor ids, Tensor[] tables) -> Tensor", lookups)
    assert planned_types(tmp_path, op, torch.arange(2), tensors(F16, F16)) == {"tables": ["float16", "float16"]}


def test_two_lists_of_equal_sizes_of_a_custom_op(tmp_path: Path, library: torch.library.Library) -> None:
    def scaled(a: list[torch.Tensor], b: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([(x * y).float() for x, y in zip(a, b, strict=True)])

    op = define(library, "scaled(Tensor[] a, Tensor[] b) -> Tensor", scaled)
    types = planned_types(tmp_path, op, tensors(BF16, BF16), tensors(F64, F64))
    assert types == {"a": ["bfloat16"] * 2, "b": ["float64"] * 2}


def test_lists_that_calls_inside_read_one_after_the_other(tmp_path: Path, library: torch.library.Library) -> None:
    def apart(a: list[torch.Tensor], b: list[torch.Tensor]) -> torch.Tensor:
        return sum(x.relu().sum() for x in a) + sum(y.sigmoid().sum() for y in b)  # type: ignore[return-value]

    op = define(library, "apart(Tensor[] a, Tensor[] b) -> Tensor", apart)
    types = planned_types(tmp_path, op, tensors(F64, F64), tensors(F32, F32))
    assert types == {"a": ["float64"] * 2, "b": ["float32"] * 2}


def test_a_list_that_is_joined_inside(tmp_path: Path, library: torch.library.Library) -> None:
    def total(parts: list[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
        return torch.cat(parts).exp().sum() * weights.sum()

    op = define(library, "total(Tensor[] parts, Tensor weights) -> Tensor", total)
    types = planned_types(tmp_path, op, tensors(F64, F64), torch.arange(3))
    assert types == {"parts": ["float64", "float64"]}


@pytest.mark.parametrize(
    ("schema", "dtype"),
    [
        ("opaque(Tensor[] tables, Tensor rows) -> Tensor", "float32"),
        ("unread(Tensor[] ids, Tensor rows) -> Tensor", "int64"),
    ],
)
def test_ids_are_no_evidence_for_a_table(
    tmp_path: Path, library: torch.library.Library, schema: str, dtype: str
) -> None:
    op = define(library, schema, lambda _, rows: rows.clone())
    given = tensors(getattr(torch, dtype), getattr(torch, dtype))
    types = planned_types(tmp_path, op, given, torch.arange(6))
    assert list(types.values()) == [[dtype] * 2]


def test_a_mask_of_the_size_of_a_stack_does_not_make_it_a_mask(tmp_path: Path) -> None:
    """What is read next may be another tensor of that size; the view that stack makes of its result has its type."""
    mask = torch.rand(4, 3) > 0.5
    parts = [torch.arange(3) for _ in range(4)]
    types = recorded_types(tmp_path, "aten::stack", lambda: torch.stack(parts).masked_fill_(~mask, -1))
    assert types == {"tensors": ["int64"] * 4}
