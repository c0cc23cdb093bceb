"""Every op of torch on every simulated device: a finite time with a bound, whatever its arguments; who has a rule."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.replay.ascend import list_devices, load_device, lower, simulate_op
from opreplay.replay.ascend.cost.predict import variant
from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.replay.ops.table import cost_of
from opreplay.traces.model import TensorMeta
from tests.replay.ops.names import costed_ops

DEVICES = [load_device(name) for name in list_devices()]
RECORDED = Recorded(host_us_total=1.0, host_us_median=1.0)
SHAPES = ((4, 16, 32, 32), (32, 64), (), (2, 4, 8, 8, 8), (0, 4))
UNRULED = 105
"""Ops of torch that may lack a rule: those of TorchScript's lists and dicts, tests, other vendors' layouts."""

COMMON = (Path(__file__).parents[3] / "golden" / "ops_with_rules.txt").read_text().split()
"""Ops of the families that models are made of."""


def argument(schema: Any, shape: tuple[int, ...], dtype: str) -> ReplayArg:
    kind = str(schema.type)
    optional = kind.startswith("Optional")
    inner = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
    common = {
        "name": schema.name,
        "keyword_only": schema.kwarg_only,
        "mutated": bool(schema.alias_info and schema.alias_info.is_write),
    }
    meta = TensorMeta(shape=shape, dtype="int64" if "ind" in schema.name and not optional else dtype)
    if inner.startswith(("List[Tensor", "List[Optional[Tensor")):
        return ReplayArg(type="Tensor[]", tensors=(meta, meta), **common)
    if inner.startswith("Tensor"):
        return ReplayArg(type="Tensor", tensors=(meta,), **common)
    values: dict[str, Any] = {"int": 1, "SymInt": 1, "float": 1.0, "number": 1.0, "Scalar": 1.0, "bool": True}
    value = None if optional else (2, 2) if inner.startswith(("List[int", "List[SymInt")) else values.get(inner)
    return ReplayArg(type="int[]" if isinstance(value, tuple) else "Scalar", value=value, **common)


def made(schema: Any, shape: tuple[int, ...], dtype: str = "bfloat16") -> ReplayOp:
    args = tuple(argument(one, shape, dtype) for one in schema.arguments)
    return ReplayOp(id="0" * 12, name=schema.name, count=1, recorded=RECORDED, args=args)


SCHEMAS = [
    schema
    for schema in torch._C._jit_get_all_schemas()
    if schema.name.startswith("aten::") and any("Tensor" in str(arg.type) for arg in schema.arguments)
]


@pytest.mark.slow
def test_any_arguments_give_a_finite_time_with_a_bound() -> None:
    for place, schema in enumerate(SCHEMAS):
        for at, shape in enumerate(SHAPES):
            found = simulate_op(made(schema, shape), DEVICES[(place + at) % len(DEVICES)])
            assert math.isfinite(found.time_us), (schema.name, shape)
            assert 0 <= found.low_us <= found.time_us <= found.high_us, (schema.name, shape)
            assert (found.bound == "none") == (found.time_us == 0), (schema.name, shape)


@pytest.mark.slow
def test_every_overload_is_estimated_on_every_device() -> None:
    names = {schema.name for schema in SCHEMAS}
    for schema in {schema.name: schema for schema in SCHEMAS}.values():
        op = made(schema, (4, 16, 64), "float32")
        times = [simulate_op(op, device).time_us for device in DEVICES]
        assert all(math.isfinite(us) for us in times), schema.name
        assert len({us > 0 for us in times}) == 1, f"{schema.name} is free on some devices alone"
    assert len(names) > 1000


def test_few_ops_lack_a_rule() -> None:
    lacking = sorted({schema.name for schema in SCHEMAS if cost_of(schema.name) is None})
    assert len(lacking) <= UNRULED, lacking


@pytest.mark.slow
def test_rules_make_kernels_of_known_types() -> None:
    unknown: dict[str, str] = {}
    for schema in SCHEMAS:
        for shape in SHAPES[:3]:
            for kernel in lower(made(schema, shape)).kernels:
                if variant(kernel, DEVICES[0]) not in DEVICES[0].types and kernel.type != "Unknown":
                    unknown[kernel.type] = schema.name
    assert set(unknown) <= {"FFT"}, unknown


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMON)
def test_common_ops_have_a_rule(name: str) -> None:
    assert cost_of(f"aten::{name}") is not None
    assert cost_of(f"aten::{name}.out") is not None


def test_work_never_shrinks_when_tensors_grow() -> None:
    def total(kernels: tuple[KernelCall, ...]) -> int:
        return sum(k.count * math.prod(s.shape) for k in kernels for s in (*k.inputs, *k.outputs) if s is not None)

    for name in COMMON:
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
            small, large = (lower(made(schema, shape)) for shape in ((4, 16, 32, 32), (8, 16, 32, 32)))
            if small.known and large.known:
                assert total(large.kernels) >= total(small.kernels), name


TENSORS = ("self", "other", "input", "weight", "query", "key", "value", "kv_cache", "indices", "grad", "hx", "grid")
SCALARS = (
    "dim",
    "max_seqlen_k",
    "max_seqlen_q",
    "num_heads",
    "window_size_left",
    "kernel_size",
    "stride",
    "padding",
    "output_size",
    "num_layers",
    "hidden_size",
    "equation",
    "n",
    "groups",
    "total_D",
    "head_num",
    "block_size",
    "scale",
)
HUGE = ((2**44,) * 5, (2**20, 0, 2**44), (2**44, 1), (1, 2**44, 2**44, 1))
NUMBERS = (2**62, -(2**62), float("inf"), float("nan"), -1, "ii->i", (2**40, -1, 0))


@given(
    st.sampled_from([*costed_ops(), "nccl:all_reduce", "triton_poi", "fbgemm::ToFP8"]),
    st.integers(0, 2**31),
    st.sampled_from(DEVICES),
)
@settings(max_examples=200, deadline=None)
def test_sizes_that_no_memory_holds_and_odd_numbers(name: str, seed: int, device: Any) -> None:
    chance = random.Random(seed)
    args = [
        ReplayArg(name=word, type="Tensor", tensors=(TensorMeta(shape=chance.choice(HUGE), dtype="bfloat16"),))
        for word in chance.sample(TENSORS, 4)
    ]
    args += [ReplayArg(name=word, type="Scalar", value=chance.choice(NUMBERS)) for word in chance.sample(SCALARS, 6)]
    op = ReplayOp(id="0" * 12, name=name, count=1, recorded=RECORDED, args=tuple(args), ranks=2**24)
    found = simulate_op(op, device)
    assert 0 <= found.low_us <= found.time_us <= found.high_us < math.inf
