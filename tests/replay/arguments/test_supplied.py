"""Values for a plan: refused before anything runs where they fit no op, in place where they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.arguments.supplied import check_values_file
from opreplay.replay.execute.options import RunOptions
from opreplay.replay.ir.model import Reason, Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.results.reading import MemorySink, read_results
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta
from tests.running import run_plan

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

HOST = Recorded(host_us_total=1, host_us_median=1)
SIZES = {"I64": 8, "I32": 4, "F32": 4}


def save(path: Path, **tensors: tuple[str, tuple[int, ...], bytes]) -> str:
    header, data = {}, b""
    for key, (dtype, shape, raw) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return str(path)


def longs(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def embedding(op_id: str, rows: int, count: int, reason: Reason | None = None) -> ReplayOp:
    args = (
        ReplayArg(name="weight", type="Tensor", tensors=(TensorMeta(shape=(rows, 4), dtype="float32"),)),
        ReplayArg(name="indices", type="Tensor", tensors=(TensorMeta(shape=(count,), dtype="int64"),)),
        ReplayArg(name="padding_idx", type="int", value=-1),
    )
    return ReplayOp(
        id=op_id.ljust(12, "0"),
        name="aten::embedding",
        count=1,
        recorded=HOST,
        args=args,
        overload="",
        reason=reason,
        resolved_by="jit",
    )


def plan(*ops: ReplayOp) -> ReplayPlan:
    return ReplayPlan(source="t.json", device_us_total=0.0, host_us_total=2.0, ops=ops)


INDEX_LIST = ReplayOp(
    id="c" * 12,
    name="aten::index",
    count=1,
    recorded=HOST,
    resolved_by="jit",
    args=(
        ReplayArg(name="self", type="Tensor", tensors=(TensorMeta(shape=(4, 4), dtype="float32"),)),
        ReplayArg(name="indices", type="Tensor[]", tensors=(None, TensorMeta(shape=(2,), dtype="int64"))),
    ),
)


@pytest.mark.parametrize(
    ("key", "tensor", "said"),
    [
        ("aten::mm.self", ("I64", (2,), longs(1, 2)), "an op that is not in the plan"),
        ("aten::embedding.offsets", ("I64", (2,), longs(1, 2)), "no tensor argument 'offsets'"),
        ("aten::embedding.padding_idx", ("I64", (2,), longs(1, 2)), "no tensor argument 'padding_idx'"),
        ("aten::embedding.indices", ("I64", (1,), longs(1)), r"is int64\[1\], but indices of aten::embedding"),
        ("aten::embedding.indices", ("I32", (2,), bytes(8)), r"is int32\[2\], but .* is int64\[2\]"),
        ("aten::embedding.indices.0", ("I64", (2,), longs(1, 2)), "does not fit Tensor indices"),
        ("aten::index.indices", ("I64", (2,), longs(1, 2)), r"does not fit Tensor\[\] indices"),
        ("aten::index.indices.0", ("I64", (2,), longs(1, 2)), r"indices\[0\] of aten::index .* is not a tensor"),
        ("aten::index.indices.7", ("I64", (2,), longs(1, 2)), "it has 2 elements"),
    ],
)
def test_values_that_fit_no_op(tmp_path: Path, key: str, tensor: tuple[str, tuple[int, ...], bytes], said: str) -> None:
    file = save(tmp_path / "v.safetensors", **{key: tensor})
    sink = MemorySink()
    with pytest.raises(UsageError, match=said):
        run_plan(plan(embedding("a", 9, 2), INDEX_LIST), RunOptions(values=file, isolation="none"), sink=sink)
    assert sink.header is None, "nothing has run or was written"


def test_a_name_must_fit_all_ops_of_that_name_an_id_only_one(tmp_path: Path) -> None:
    both = plan(embedding("a", 9, 2), embedding("b", 9, 3))
    by_name = save(tmp_path / "n.safetensors", **{"aten::embedding.indices": ("I64", (2,), longs(1, 2))})
    with pytest.raises(UsageError, match="b00000000000") as error:
        check_values_file(both, by_name)
    assert "id" in error.value.hint
    by_id = {"a00000000000.indices": ("I64", (2,), longs(1, 2))}
    check_values_file(both, save(tmp_path / "i.safetensors", **by_id))
    refused = embedding("b", 9, 3, Reason("policy", "refused"))
    check_values_file(plan(embedding("a", 9, 2), refused), by_name)
    with pytest.raises(UsageError, match="cannot be replayed: policy: refused"):
        check_values_file(plan(refused), by_name)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_results_say_which_values_were_recorded(tmp_path: Path, isolation: str) -> None:
    file = save(tmp_path / "v.safetensors", **{"aten::embedding.indices": ("I64", (2,), longs(7, 8))})
    sink = MemorySink()
    run_plan(plan(embedding("a", 9, 2)), RunOptions(values=file, isolation=isolation, op_time_s=0.01), sink=sink)  # type: ignore[arg-type]
    (result,) = sink.results
    assert (result.status, result.initializer) == ("replayed", "index + recorded values")
    assert [a.what for a in result.assumptions if a.argument == "indices"] == ["recorded values of v.safetensors"]
    assert sink.header is not None
    assert sink.header.options["values"] == file


def test_the_op_computes_with_the_values(tmp_path: Path) -> None:
    """An index outside the table makes the op fail, which proves that it was used."""
    file = save(tmp_path / "v.safetensors", **{"aten::embedding.indices": ("I64", (2,), longs(7, 800))})
    sink = MemorySink()
    run_plan(plan(embedding("a", 9, 2)), RunOptions(values=file, isolation="none", op_time_s=0.01), sink=sink)
    assert sink.results[0].status == "failed"
    assert "IndexError" in str(sink.results[0].reason)


def test_run_takes_values(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    dims = {
        "Input Dims": [[9, 4], [2], [], [], []],
        "Input type": ["float", "long int", "Scalar", "Scalar", "Scalar"],
        "Concrete Inputs": ["", "", "-1", "False", "False"],
    }
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::embedding", "ts": 1, "dur": 2, "pid": 1, "tid": 1, "args": dims}
    trace.write_text(json.dumps({"traceEvents": [event]}))
    good = save(tmp_path / "g.safetensors", **{"aten::embedding.indices": ("I64", (2,), longs(7, 8))})
    bad = save(tmp_path / "b.safetensors", **{"aten::embedding.indices": ("I64", (3,), longs(7, 8, 9))})
    out = tmp_path / "r.jsonl"
    done = CliRunner().invoke(
        opreplay, ["run", str(trace), "--set", f"values={good}", "--set", "op_time=10ms", "-o", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert read_results(out)[1][0].initializer == "index + recorded values"
    for flags in ([], ["--dry-run"]):
        refused = CliRunner().invoke(opreplay, ["run", str(trace), "--set", f"values={bad}", *flags])
        assert refused.exit_code == 2, refused.output
        assert "int64[3]" in refused.output
