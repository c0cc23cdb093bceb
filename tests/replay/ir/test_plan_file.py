"""Plan files: exact round trip; versions, form and size are checked before anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.collectives.model import Collective
from opreplay.replay.ir.model import (
    SCHEMA_VERSION,
    Assumption,
    Reason,
    Recorded,
    RecordedKernel,
    ReplayArg,
    ReplayOp,
    ReplayPlan,
)
from opreplay.replay.ir.plan_file import dump_plan, load_plan, parse_plan
from opreplay.replay.ir.verify import verify
from opreplay.traces.errors import FormatError
from opreplay.traces.model import TensorMeta

sizes = st.integers(0, 2**40)
metas = st.builds(
    lambda shape, dtype, offset: TensorMeta(shape=tuple(shape), dtype=dtype, storage_offset=offset),
    st.lists(sizes, max_size=5),
    st.sampled_from(["float32", "bfloat16", "int64", "float8_e4m3fn"]),
    sizes,
)
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
    "str": st.text(max_size=5),
    "float": st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["inf", "-inf", "nan"])),
    "Scalar": st.one_of(st.booleans(), st.integers(-9, 9), st.just("1+2j")),
    "ScalarType": st.just("torch.bfloat16"),
    "Device": st.just("cuda:0"),
    "int[]": st.lists(st.integers(-9, 9), max_size=4).map(tuple),
}


@st.composite
def arguments(draw: st.DrawFn) -> ReplayArg:
    name = draw(st.sampled_from("abcdefgh"))
    kind = draw(st.sampled_from([*PLAIN, "Tensor", "Tensor[]"]))
    if kind == "Tensor":
        return ReplayArg(name=name, type=kind, tensors=(draw(metas),), mutated=draw(st.booleans()))
    if kind == "Tensor[]":
        tensors = tuple(draw(st.lists(st.one_of(st.none(), metas), max_size=3)))
        return ReplayArg(name=name, type=kind, tensors=tensors, value=None if tensors else ())
    return ReplayArg(name=name, type=kind, value=draw(st.one_of(st.none(), PLAIN[kind])))


@st.composite
def plans(draw: st.DrawFn) -> ReplayPlan:
    ops = []
    for i in range(draw(st.integers(0, 3))):
        args = draw(st.lists(arguments(), max_size=4, unique_by=lambda arg: arg.name))
        ops.append(
            ReplayOp(
                id=f"{i:012x}",
                name="aten::op",
                count=draw(st.integers(1, 9)),
                args=tuple(args),
                resolved_by="jit",
                recorded=Recorded(
                    host_us_total=1.5,
                    host_us_median=0.5,
                    device_us_total=0.1,
                    kernels=(RecordedKernel(name="k<float>", count=1, total_us=0.1),),
                ),
                outputs=draw(st.one_of(st.none(), st.just((None,)), metas.map(lambda m: (m,)))),
                assumptions=(Assumption(argument="a", what="b"),),
                reason=draw(st.sampled_from([None, Reason("budget", "x"), Reason("collective")])),
            )
        )
    return ReplayPlan(source="t.json", device_us_total=2.0, host_us_total=1.0, ops=tuple(ops))


@pytest.mark.slow
@given(plans())
def test_round_trip_is_exact(plan: ReplayPlan) -> None:
    verify(plan)
    assert parse_plan(dump_plan(plan)) == plan


@given(st.binary(max_size=200))
def test_any_bytes_are_a_plan_or_a_clear_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_plan(data)


def plan_of(**fields: Any) -> ReplayPlan:
    op = ReplayOp(
        id="0" * 12,
        name="aten::mm",
        count=1,
        recorded=Recorded(host_us_total=1.0, host_us_median=1.0),
        resolved_by="jit",
    )
    return ReplayPlan(source="t", device_us_total=0.0, host_us_total=0.0, ops=(msgspec.structs.replace(op, **fields),))


def arg(**fields: Any) -> dict[str, Any]:
    return {"args": (ReplayArg(**{"name": "a", "type": "int", **fields}),)}


def tensor(**fields: Any) -> dict[str, Any]:
    return arg(type="Tensor", tensors=(TensorMeta(**{"shape": (2,), "dtype": "float32", **fields}),))


def moving(elements: int) -> dict[str, Any]:
    return {"collective": Collective(kind="broadcast", dtype="float32", in_elements=elements, out_elements=1)}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": "xyz"}, "hex"),
        ({"count": 0}, "count"),
        ({"name": ""}, "characters"),
        ({"name": "os.system"}, "namespace::op"),
        ({"resolved_by": None}, "neither"),
        ({"recorded": Recorded(host_us_total=float("nan"), host_us_median=1.0)}, "time"),
        ({"recorded": Recorded(host_us_total=-1.0, host_us_median=1.0)}, "time"),
        (arg(name="a b"), "not a name"),
        (arg(type="eval"), "is unknown"),
        (arg(value="x"), "not of type int"),
        (arg(value=True), "not of type int"),
        (arg(type="ScalarType", value="os.system"), "not of type ScalarType"),
        (arg(type="Device", value="cuda:0; rm"), "not of type Device"),
        (arg(type="int[]", value=3), "must be a list"),
        (arg(value=(1,)), "must not be a list"),
        (arg(tensors=(TensorMeta(shape=(), dtype="float32"),)), "contains tensors"),
        (tensor(dtype="object"), "dtype"),
        (tensor(shape=(-1,)), "negative"),
        (tensor(shape=(2**70,)), "64 bits"),
        (tensor(shape=(1,) * 65), "over the limit of 64"),
        (tensor(strides=(1, 1)), "strides"),
        ({"args": (ReplayArg(name="a", type="int"), ReplayArg(name="a", type="int"))}, "two arguments"),
        ({"args": (ReplayArg(name="a", type="int", keyword_only=True), ReplayArg(name="b", type="int"))}, "positional"),
        (moving(-5), r"has -5 elements, which are not in 0\.\."),
        (moving(2**70), "has 1180591620717411303424 elements, which are not in"),
    ],
)
def test_malformed_plans_are_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        verify(plan_of(**fields))


def test_versions(tmp_path: Path) -> None:
    newer = dump_plan(plan_of()).replace(
        b'"schema_version":%d' % SCHEMA_VERSION, b'"schema_version":%d' % (SCHEMA_VERSION + 1)
    )
    with pytest.raises(FormatError, match="reads up to"):
        parse_plan(newer)
    with pytest.raises(FormatError, match="no schema_version"):
        parse_plan(b"{}")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(dump_plan(plan_of()))
    assert load_plan(path) == plan_of()
    with pytest.raises(FormatError, match="cannot read"):
        load_plan(tmp_path / "none.json")
    with pytest.raises(FormatError, match="cannot read"):
        load_plan(tmp_path)
