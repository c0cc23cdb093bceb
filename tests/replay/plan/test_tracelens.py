"""TraceLens IR files: exact round trips, and a clear refusal of whatever is none."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opreplay.cli.main import opreplay
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.plan import tracelens as tracelens_ir
from opreplay.replay.plan.tracelens import read_tracelens_ir, write_tracelens_ir
from opreplay.replay.plan.tracelens_values import Unknown, kind_of
from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.errors import FormatError, UsageError
from opreplay.traces.model import TensorMeta, contiguous_strides

TENSOR = {"shape": [4, 8], "dtype": "c10::BFloat16", "strides": [8, 1], "init": "normal"}
ADDMM = {
    "op_name": "aten::addmm",
    "replay_ir": {
        "list_pos_args": [
            {"arg_name": "self", "arg_type": "Tensor", "value": {**TENSOR, "shape": [8], "strides": [1]}},
            {"arg_name": "mat1", "arg_type": "Tensor", "value": TENSOR, "note": "kept"},
            {"arg_name": "mat2", "arg_type": "Tensor", "value": {**TENSOR, "device": "cuda:0"}},
        ],
        "list_kwargs": [{"arg_name": "beta", "arg_type": "Scalar", "value": 1}],
    },
    "event_uid": 17,
}


def saved(tmp_path: Path, value: Any) -> Path:
    path = tmp_path / "event_replay_ir.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def entry(*positional: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"op_name": "aten::x", "replay_ir": {"list_pos_args": list(positional), "list_kwargs": []}} | changes


def square_product(size: int, count: int) -> dict[str, Any]:
    value = {"shape": [size, size], "dtype": "float", "strides": [size, 1], "init": "normal"}
    args = [{"arg_name": name, "arg_type": "Tensor", "value": value} for name in ("self", "mat2")]
    return entry(*args, op_name="aten::mm", count=count)


def test_reads_names_types_tensors_and_values(tmp_path: Path) -> None:
    plan = read_tracelens_ir(saved(tmp_path, [ADDMM]))
    (op,) = plan.ops
    assert (op.name, op.count, op.reason) == ("aten::addmm", 1, None)
    assert op.args[1] == ReplayArg(
        name="mat1", type="Tensor", tensors=(TensorMeta(shape=(4, 8), dtype="bfloat16", strides=(8, 1)),)
    )
    assert op.args[3] == ReplayArg(name="beta", type="Scalar", value=1, keyword_only=True)


def test_counts_of_calls_are_read_and_written(tmp_path: Path) -> None:
    entries = [ADDMM | {"count": 7}, entry(count=2), ADDMM]
    plan = read_tracelens_ir(saved(tmp_path, entries))
    assert [op.count for op in plan.ops] == [7, 2, 1]
    write_tracelens_ir(plan, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == entries
    more = msgspec.structs.replace(
        plan, ops=tuple(msgspec.structs.replace(op, count=5, origin=None) for op in plan.ops)
    )
    write_tracelens_ir(more, tmp_path / "more.json")
    assert [op.count for op in read_tracelens_ir(tmp_path / "more.json").ops] == [5, 5, 5]


def test_counts_are_in_plans_totals_and_exports(tmp_path: Path) -> None:
    addmm: Any = copy.deepcopy(ADDMM)
    addmm["replay_ir"]["list_pos_args"][2]["value"]["shape"] = [8, 8]
    path, out = saved(tmp_path, [addmm, square_product(8, 9), square_product(16, 3)]), tmp_path / "o.json"
    planned = CliRunner().invoke(opreplay, ["plan", str(path), "--format", "json"])
    assert [op["count"] for op in json.loads(planned.stdout)["unique_ops"]] == [1, 9, 3], "in the order of the file"
    args = ["simulate", str(path), "--soc", "910b3", "--l2", "cold", "--format", "json"]
    simulated = json.loads(CliRunner().invoke(opreplay, args).stdout)
    times = [(op["count"], op["simulated"]["910b3"]) for op in simulated["unique_ops"]]
    assert all(one["total_us"] == pytest.approx(count * one["time_us"]) for count, one in times)
    total_us = sum(one["total_us"] for _, one in times)
    assert simulated["socs"]["910b3"]["total_us"] == pytest.approx(total_us)
    exported = CliRunner().invoke(opreplay, ["export", str(path), "--format", "tracelens", "-o", str(out)])
    assert exported.exit_code == 0, exported.output
    assert sorted(entry.get("count", 1) for entry in json.loads(out.read_text())) == [1, 3, 9]


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "7", None, 1 << 60])
def test_what_is_no_count_of_calls_is_refused(tmp_path: Path, count: Any) -> None:
    with pytest.raises(FormatError, match="entry 0: count"):
        read_tracelens_ir(saved(tmp_path, [ADDMM | {"count": count}]))


def test_unknown_fields_order_and_duplicates_survive(tmp_path: Path) -> None:
    entries = [ADDMM, entry(), ADDMM]
    plan = read_tracelens_ir(saved(tmp_path, entries))
    assert len({op.id for op in plan.ops}) == 3
    assert write_tracelens_ir(plan, tmp_path / "out.json") == 0
    assert json.loads((tmp_path / "out.json").read_text()) == entries


def test_a_changed_op_is_written_as_it_is_now(tmp_path: Path) -> None:
    plan = read_tracelens_ir(saved(tmp_path, [ADDMM]))
    beta = msgspec.structs.replace(plan.ops[0].args[3], value=2)
    changed = msgspec.structs.replace(plan.ops[0], args=(*plan.ops[0].args[:3], beta))
    write_tracelens_ir(msgspec.structs.replace(plan, ops=(changed,)), tmp_path / "out.json")
    (written,) = json.loads((tmp_path / "out.json").read_text())
    assert written["replay_ir"]["list_kwargs"] == [{"arg_name": "beta", "arg_type": "Scalar", "value": 2}]
    assert written["replay_ir"]["list_pos_args"][1]["value"] == TENSOR


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("Tensor", "Tensor"),
        ("Tensor(a!)", "Tensor"),
        ("Tensor?", "Tensor"),
        ("Tensor?[]", "Tensor[]"),
        ("SymInt[2]?", "int[]"),
        ("int[1]", "int[]"),
        ("Optional[List[int]]", "int[]"),
        ("number", "Scalar"),
        ("List[Optional[Tensor]]", "Tensor[]"),
        ("Optional[ScalarType]", "ScalarType"),
        ("Layout?", "Layout"),
    ],
)
def test_declared_types(declared: str, kind: str) -> None:
    assert kind_of(declared) == kind


def test_unknown_types_and_dtypes_keep_the_op_with_a_reason(tmp_path: Path) -> None:
    entries = [
        entry({"arg_name": "a", "arg_type": "__torch__.Thing", "value": None}),
        entry({"arg_name": "a", "arg_type": "Tensor", "value": {**TENSOR, "dtype": "float3"}}),
    ]
    plan = read_tracelens_ir(saved(tmp_path, entries))
    assert [str(op.reason) for op in plan.ops] == [
        "failed: argument a: argument type '__torch__.Thing'",
        "failed: argument a: dtype 'float3'",
    ]
    write_tracelens_ir(plan, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == entries
    with pytest.raises(Unknown):
        kind_of("Dict[str, int]")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("", "not JSON"),
        ("{}", "not contain a list of ops"),
        ("[" * 100_000, "not JSON"),
        ('[{"op_name": 1, "op_name": 2}]', "duplicate keys"),
        ([entry(), 3], "entry 1: is no object"),
        ([entry(op_name=None)], "entry 0: op_name"),
        ([entry(replay_ir=[])], "entry 0: replay_ir"),
        ([entry(replay_ir={"list_pos_args": []})], "entry 0: list_pos_args or list_kwargs"),
        ([entry({"arg_name": "a b", "arg_type": "int", "value": 1})], "arg_name"),
        ([entry({"arg_name": "a", "arg_type": 7, "value": 1})], "argument a: arg_type"),
        ([entry({"arg_name": "a", "arg_type": "int"})], "argument a: the value is missing"),
        ([entry({"arg_name": "a", "arg_type": "int", "value": {"x": 1}})], "not a number"),
        ([entry({"arg_name": "a", "arg_type": "int", "value": 2**64})], "65 bits"),
        ([entry({"arg_name": "a", "arg_type": "Tensor", "value": [1]})], "tensor is not an object"),
        ([entry({"arg_name": "a", "arg_type": "Tensor", "value": {**TENSOR, "shape": [-1, 2]}})], "shape"),
        (
            [entry({"arg_name": "a", "arg_type": "Tensor", "value": {**TENSOR, "strides": [1]}})],
            "2 dims do not match 1 strides",
        ),
        ([entry({"arg_name": "a", "arg_type": "Tensor", "value": {**TENSOR, "shape": [1] * 65}})], "rank 65"),
        (
            [entry({"arg_name": "a", "arg_type": "int", "value": 1}, {"arg_name": "a", "arg_type": "int", "value": 1})],
            "occurs twice",
        ),
    ],
)
def test_refusals_name_the_entry(tmp_path: Path, bad: Any, says: str) -> None:
    with pytest.raises(FormatError, match=says.replace("[", r"\[")):
        read_tracelens_ir(saved(tmp_path, bad))


def test_limits_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FormatError, match="cannot read"):
        read_tracelens_ir(tmp_path / "absent.json")
    path = saved(tmp_path, [ADDMM, ADDMM])
    plan = read_tracelens_ir(path)
    with pytest.raises(UsageError, match="exists"):
        write_tracelens_ir(plan, path)
    write_tracelens_ir(plan, path, force=True)
    monkeypatch.setattr(tracelens_ir, "MAX_ENTRIES", 1)
    with pytest.raises(FormatError, match="2 entries exceed the limit"):
        read_tracelens_ir(path)
    monkeypatch.setattr(tracelens_ir, "MAX_FILE_BYTES", 10)
    with pytest.raises(FormatError, match="over the limit of 10"):
        read_tracelens_ir(path)


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
NUMBERS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
SIZES = st.lists(st.integers(0, 2**40), max_size=5)
JSON_TENSORS = SIZES.flatmap(
    lambda shape: st.fixed_dictionaries(
        {
            "shape": st.just(shape),
            "dtype": st.sampled_from(["float", "c10::Half", "long int", "long", "c10::Float8_e4m3fn", "bool"]),
            "strides": st.lists(st.integers(0, 2**40), min_size=len(shape), max_size=len(shape)),
            "init": st.sampled_from(["normal", "zeros"]),
        }
    )
)
JSON_ARGUMENTS = st.one_of(
    st.tuples(st.sampled_from(["Tensor", "Tensor?", "Tensor(a!)"]), JSON_TENSORS),
    st.tuples(st.just("Tensor[]"), st.lists(JSON_TENSORS | st.none(), max_size=3)),
    st.tuples(st.sampled_from(["int", "SymInt?", "float", "bool", "Scalar"]), NUMBERS | st.none()),
    st.tuples(st.sampled_from(["SymInt[2]", "int[]", "float[]?"]), st.lists(NUMBERS, max_size=4)),
    st.tuples(st.just("ScalarType?"), st.integers(0, 40)),
    st.tuples(st.just("str"), st.text(max_size=10)),
)


@st.composite
def tracelens_entries(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(NAMES, unique=True, max_size=5))
    args = []
    for name in names:
        declared, value = draw(JSON_ARGUMENTS)
        args.append({"arg_name": name, "arg_type": declared, "value": value})
    cut = draw(st.integers(0, len(args)))
    return {
        "op_name": draw(st.text(min_size=1, max_size=20)),
        "replay_ir": {"list_pos_args": args[:cut], "list_kwargs": args[cut:]},
    } | draw(st.dictionaries(st.just("event_uid"), st.integers(0, 5)))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(tracelens_entries(), max_size=4))
def test_tracelens_to_ours_to_tracelens_is_exact(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    plan = read_tracelens_ir(saved(tmp_path, entries))
    write_tracelens_ir(plan, tmp_path / "out.json", force=True)
    assert json.loads((tmp_path / "out.json").read_text()) == entries


def test_infinities_survive(tmp_path: Path) -> None:
    text = '[{"op_name":"a::b","replay_ir":{"list_pos_args":[{"arg_name":"x","arg_type":"float","value":-Infinity},'
    text += '{"arg_name":"y","arg_type":"Scalar","value":NaN}],"list_kwargs":[]}}]'
    plan = read_tracelens_ir(saved(tmp_path, text))
    assert [argument.value for argument in plan.ops[0].args] == ["-inf", "nan"]
    stripped = msgspec.structs.replace(plan.ops[0], origin=None)
    write_tracelens_ir(msgspec.structs.replace(plan, ops=(stripped,)), tmp_path / "out.json")
    (written,) = json.loads((tmp_path / "out.json").read_text())
    values = [argument["value"] for argument in written["replay_ir"]["list_pos_args"]]
    assert values[0] == -math.inf
    assert math.isnan(values[1])


METAS = st.builds(
    lambda shape, dtype: TensorMeta(shape=tuple(shape), dtype=dtype, strides=contiguous_strides(tuple(shape))),
    st.lists(st.integers(0, 1000), max_size=5),
    st.sampled_from(sorted(ITEMSIZE_BYTES)),
)
OUR_ARGUMENTS = st.one_of(
    st.builds(lambda meta: {"type": "Tensor", "tensors": (meta,)}, METAS),
    st.builds(lambda metas: {"type": "Tensor[]", "tensors": tuple(metas)}, st.lists(METAS | st.none(), min_size=1)),
    st.just({"type": "Tensor[]", "value": ()}),
    st.builds(lambda value: {"type": "Scalar", "value": value}, st.integers(-5, 5) | st.sampled_from(["inf", "nan"])),
    st.builds(lambda value: {"type": "int[]", "value": tuple(value)}, st.lists(st.integers(-5, 5))),
    st.just({"type": "ScalarType", "value": "torch.bfloat16"}),
    st.just({"type": "MemoryFormat", "value": "torch.channels_last"}),
    st.just({"type": "Tensor", "value": None}),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, OUR_ARGUMENTS, max_size=4), st.integers(0, 4))
def test_our_arguments_survive_tracelens(tmp_path: Path, arguments: dict[str, Any], positional: int) -> None:
    args = tuple(
        ReplayArg(name=name, keyword_only=index >= positional, **parts)
        for index, (name, parts) in enumerate(arguments.items())
    )
    op = ReplayOp(
        id="0" * 12, name="aten::x", count=3, recorded=Recorded(host_us_total=1.0, host_us_median=1.0), args=args
    )
    plan = ReplayPlan(source="t", device_us_total=1.0, host_us_total=1.0, ops=(op,))
    write_tracelens_ir(plan, tmp_path / "out.json", force=True)
    (read,) = read_tracelens_ir(tmp_path / "out.json").ops
    assert (read.args, read.count) == (args, 3)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=ReplayPlan) == plan
