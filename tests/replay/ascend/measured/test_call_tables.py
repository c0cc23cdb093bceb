"""Tables of calls: which rows are taken, why others are not, and how a validation of them is made."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.ascend.calibrate.calls import validate_calls
from opreplay.replay.ascend.measured.call_tables import is_call_table, ops_of_texts, read_call_table
from opreplay.traces.errors import Malformed

ROWS = """source,soc,l2,op,torch_us,exact
a/b:one.csv@123,910b2,cold,"aten::mish(f32[1024,1024])",14,yes
a/b:one.csv@456,950pr,unknown,"aten::mish(f32[2048,1024])",8,yes
c/d#7,910b2,warm,"aten::add(f32[64],f32[64]) ; aten::relu(f32[64])",5.5,yes
c/d#8,910b2,cold,"aten::mish(f32[8])",3,no
c/d#8,910b,cold,"aten::mish(f32[8])",3,yes
c/d#8,910b2,cold,"aten::mish(f32[8])",,yes
c/d#8,910b2,cold,"this is no call",3,yes
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "calls.csv"
    path.write_text(ROWS)
    return path


def test_rows_are_taken_or_counted_with_a_reason(table) -> None:
    assert is_call_table(table)
    read = read_call_table(table)
    assert [(c.soc, c.l2, c.time_us, c.source, len(c.ops)) for c in read.calls] == [
        ("910b2", "cold", 14.0, "a/b:one.csv", 1),
        ("950pr", None, 8.0, "a/b:one.csv", 1),
        ("910b2", "warm", 5.5, "c/d", 2),
    ]
    assert (read.rows, read.usable_rows) == (7, 4)
    assert sum(read.dropped.values()) == 4


def test_rows_that_are_not_asked_for_are_not_counted(table) -> None:
    read = read_call_table(table, only=lambda row: row["l2"] == "warm")
    assert (read.rows, [call.time_us for call in read.calls]) == (1, [5.5])


def test_a_text_that_is_no_call_is_named_and_spoils_no_other() -> None:
    ops = ops_of_texts(["aten::mish(f32[8])", "this is no call", "aten::relu(f32[8])"])
    assert [op if isinstance(op, str) else op.name for op in ops.values()] == [
        "aten::mish",
        ops["this is no call"],
        "aten::relu",
    ]
    assert isinstance(ops["this is no call"], str)


def test_a_named_device_answers_for_rows_that_may_mean_several_and_for_no_other(table) -> None:
    assert [call.soc for call in read_call_table(table, soc="910b4").calls] == ["910b2", "950pr", "910b2", "910b4"]


def test_a_kernel_table_is_no_table_of_calls(tmp_path) -> None:
    path = tmp_path / "kernel_details.csv"
    path.write_text("Name,Type,Duration(us),Input Shapes\n")
    assert not is_call_table(path)


def test_a_table_without_a_call_is_refused(tmp_path) -> None:
    path = tmp_path / "calls.csv"
    path.write_text("op,soc,us\nno call,910b2,3\n")
    with pytest.raises(Malformed, match="no measured call"):
        read_call_table(path)


def test_validation_compares_every_call(table) -> None:
    validation = validate_calls([read_call_table(table)])
    assert [row.call.type for row in validation.compared] == ["aten::mish", "aten::mish", "aten::add and 1 more"]
    assert validation.figures.overall.n == 3
    assert set(validation.socs) == {"910b2", "950pr"}


def test_the_command_reads_it(table) -> None:
    result = CliRunner().invoke(opreplay, ["validate", str(table), "--format", "json"])
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["overall"]["n"] == 3
    assert facts["rows"]["read"] == 7


def test_a_device_that_a_project_calls_by_another_name_is_told(tmp_path) -> None:
    path = tmp_path / "calls.csv"
    call = '"aten::mish(f32[8])"'
    path.write_text(f"source,soc,op,time_us\nflagos-ai/FlagGems#1,910b4,{call},3\nc/d#1,910b4,{call},3\n")
    assert [call.soc for call in read_call_table(path).calls] == ["910b4-1", "910b4"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("source,torch_us\na,3\n", "no op named"),
        ("torch_us,soc,op\n3,910b2\n3\n", "no op named"),
        ('op,torch_us\n"' + "x" * 200_000 + '",3\n', "field larger than"),
    ],
)
def test_tables_with_missing_cells_are_refused(tmp_path, text: str, why: str) -> None:
    (tmp_path / "calls.csv").write_text(text)
    with pytest.raises(Malformed, match=why):
        read_call_table(tmp_path / "calls.csv")
