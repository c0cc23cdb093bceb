"""What a user's initializer says of the work of an op: checked, shown by `--check work`, and taken by predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.initializers import extensions
from opreplay.initializers.amounts import Amount, Work
from opreplay.initializers.base import CustomInit, InitContext, InitializerError
from opreplay.initializers.registry import Registry
from opreplay.initializers.user_code import forget_loaded
from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.work.expected import ExpectedContents
from tests.factories import op
from tests.factories import tensor as t

pytestmark = pytest.mark.usefixtures("forked_children")

ROWS = op("own_work::rows", t("values", 4096, 64), t("lengths", 8, dtype="int32"), outputs=None, id_="3" * 12)


class Lengths(CustomInit):
    name = "lengths"
    op_patterns = ("own_work::rows",)

    def __init__(self, says: Callable[[InitContext], Any]) -> None:
        self._says = says

    def initialize(self, context: InitContext) -> None:
        context.need("lengths").fill_(16)

    def work(self, context: InitContext) -> Any:
        return self._says(context)


def touched(context: InitContext) -> Work:
    rows = int(context.need("lengths").sum())
    rows_of = Amount(what="rows", done=rows, most=context.need("values").shape[0])
    return Work(amounts=(rows_of,), bytes_read=rows * 64 * 4, bytes_written=8 * 64 * 4, flops=rows * 64)


def registry(says: Callable[[InitContext], Any]) -> Registry:
    rules = built_in()
    rules.register(Lengths(says))
    return rules


def call() -> InitContext:
    args = {"values": torch.zeros(4096, 64), "lengths": torch.full((8,), 16, dtype=torch.int32)}
    return InitContext(op="own_work::rows", args=args, generator=torch.Generator())


def test_what_is_said_of_a_call() -> None:
    done = registry(touched).work(call())
    assert done is not None
    assert (done.amounts[0].done, done.amounts[0].most) == (128, 4096)
    assert (done.bytes_read, done.bytes_written, done.flops, done.idle) == (32768, 2048, 8192, False)
    assert registry(lambda context: None).work(call()) is None
    nothing = registry(lambda context: Work(amounts=(Amount(what="rows", done=0, most=8),))).work(call())
    assert nothing is not None
    assert nothing.idle
    embedding = InitContext(op="aten::embedding", args={}, generator=torch.Generator())
    assert registry(touched).work(embedding) is None


def raises(context: InitContext) -> Work:
    raise ZeroDivisionError("by zero")


@pytest.mark.parametrize(
    ("says", "wrong"),
    [
        (lambda c: Work(bytes_read=-1), "bytes_read is -1"),
        (lambda c: Work(bytes_written=float("nan")), "bytes_written is nan"),  # pyright: ignore[reportArgumentType]
        (lambda c: Work(flops=True), "flops is True"),
        (lambda c: Work(flops=1 << 63), "flops is 9223372036854775808"),
        (lambda c: Work(amounts=(Amount(what="rows", done=-2),)), "done of rows is -2"),
        (lambda c: Work(amounts=(Amount(what="rows", done=None),)), "done of rows is None"),  # pyright: ignore[reportArgumentType]
        (lambda c: Work(amounts=[1]), "tuple of Amount"),  # pyright: ignore[reportArgumentType]
        (lambda c: Work(warnings=5), "tuple of strings"),  # pyright: ignore[reportArgumentType]
        (lambda c: 5, "it must return a Work, not int"),
        (raises, "ZeroDivisionError: by zero"),
    ],
)
def test_what_is_no_work_names_the_initializer(says: Callable[[InitContext], Any], wrong: str) -> None:
    with pytest.raises(InitializerError, match="lengths: work: ") as error:
        registry(says).work(call())
    assert wrong in str(error.value)
    contents = ExpectedContents(registry(says))
    assert contents(ROWS) is None
    assert "lengths: work: " in contents.problems[ROWS.id]


def test_a_prediction_takes_the_bytes() -> None:
    contents = ExpectedContents(registry(touched))(ROWS)
    assert contents is not None
    (told,) = lower(ROWS, contents).kernels
    assert [spec.shape for spec in (*told.inputs, *told.outputs) if spec is not None] == [(8192,), (512,)]
    (by_shape,) = lower(ROWS).kernels
    assert by_shape.inputs[0] is not None
    assert by_shape.inputs[0].shape == (4096, 64)
    assert ExpectedContents(built_in())(ROWS) is None


OPS = """
import opreplay, torch
lib = torch.library.Library("own_work", "DEF")
lib.define("rows(Tensor values, Tensor lengths) -> Tensor")
lib.impl("rows", lambda values, lengths: values[: int(lengths.sum())].sum(0), "CompositeExplicitAutograd")

@opreplay.register_initializer
class Lengths(opreplay.CustomInit):
    name = "lengths"
    op_patterns = ("own_work::rows",)

    def initialize(self, context):
        context.need("lengths").fill_(16)

    def work(self, context):
        rows = int(context.need("lengths").sum())
        amount = opreplay.Amount(what="rows", done=rows, most=4096)
        return opreplay.Work(amounts=(amount,), bytes_read=rows << 30)
"""


@pytest.fixture
def forgotten() -> Iterator[None]:
    extensions.clear_registrations()
    forget_loaded()
    yield
    extensions.clear_registrations()
    forget_loaded()


def test_arguments_that_look_like_a_cache_hide_no_work() -> None:
    """Lengths and tables tell what paged attention does; of an own op its initializer does."""
    looks_paged = op(
        "own_work::rows",
        *(t("values", 4096, 64), t("lengths", 8, dtype="int32")),
        *(t("key_cache", 256, 16, 8, 64), t("block_tables", 8, 32, dtype="int32"), t("context_lens", 8, dtype="int32")),
        outputs=None,
        id_="4" * 12,
    )
    contents = ExpectedContents(registry(touched))(looks_paged)
    assert contents is not None
    assert contents.work is not None
    assert contents.work.bytes_read == 8 * 16 * 64 * 4


@pytest.mark.slow
def test_a_run_shows_and_predicts_it(tmp_path: Path, forgotten: None) -> None:
    columns = {
        "Input Dims": [[4096, 64], [8]],
        "Input type": ["float", "int"],
        "Input Strides": [[64, 1], [1]],
        "Concrete Inputs": ["", ""],
    }
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "own_work::rows",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 10,
        "args": columns,
    }
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [event]}))
    (tmp_path / "ops.py").write_text(OPS)
    line = ["run", str(tmp_path / "t.json"), "--plugin", str(tmp_path / "ops.py"), "--set", "op_time=2ms"]
    done = CliRunner().invoke(
        opreplay, [*line, "--check", "work", "--soc", "910b3", "--format", "json", "--select", "all"]
    )
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["ops"]
    assert result["work"]["amounts"] == [{"what": "rows", "done": 128, "most": 4096}]
    assert result["work"]["bytes_read"] == 128 << 30
    assert result["simulated"]["910b3"]["time_us"] > 10_000, "128 GiB at less than 2 TB/s"
