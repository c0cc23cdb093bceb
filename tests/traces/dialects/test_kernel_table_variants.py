"""Kernel tables as other tools and spreadsheets write them: all forms of one table say the same."""

from __future__ import annotations

import csv
import io
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.traces.dialects.kernel_table import COLUMNS, TableRow, dtype_of, open_table, tensors_of
from opreplay.traces.errors import Malformed

HEADER = [
    "Step Id",
    "Name",
    "Type",
    "Accelerator Core",
    "Duration(us)",
    "Input Shapes",
    "Input Data Types",
    "Input Formats",
    "Output Shapes",
    "Output Data Types",
    "Output Formats",
    "aic_mac_ratio",
    "HeldOut",
]
ROWS = [
    [
        "1",
        "a",
        "MatMulV3",
        "AI_CORE",
        "12.5",
        '"64,128;128,32"',
        "DT_BF16;DT_BF16",
        "ND;ND",
        '"64,32"',
        "DT_BF16",
        "ND",
        "0.5",
        "1",
    ],
    [
        "1",
        "b",
        "Add",
        "AI_VECTOR_CORE",
        "1.25",
        '"8,16;;4"',
        "FLOAT;FLOAT;INT64",
        "ND;ND;ND",
        '"8,16"',
        "FLOAT",
        "ND",
        "N/A",
        "0",
    ],
    ["1", "c", "MemSet", "AI_VECTOR_CORE", "2.0", "N/A", "N/A", "N/A", "N/A", "N/A", "N/A", "N/A", "0"],
    ["1", "d", "Cast", "AI_VECTOR_CORE", "", '"4"', "FLOAT", "ND", '"4"', "DT_BF16", "ND", "", ""],
]


def written(header: list[str], rows: list[list[str]], *, delimiter: str = ",", end: str = "\n") -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end)
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def read(path: Path, content: bytes) -> list[TableRow]:
    path.write_bytes(content)
    with open_table(path) as table:
        rows = list(table)
        assert not table.dropped
        return rows


PLAIN = written(HEADER, ROWS)
ENCODED = {
    "plain": PLAIN.encode(),
    "with a mark": PLAIN.encode("utf-8-sig"),
    "utf-16": PLAIN.encode("utf-16"),
    "utf-16 big": b"\xfe\xff" + PLAIN.encode("utf-16-be"),
    "windows lines": written(HEADER, ROWS, end="\r\n").encode(),
    "old lines": written(HEADER, ROWS, end="\r").encode(),
    "blank lines": ("\n\n" + PLAIN.replace("\n", "\n\n")).encode(),
    "tabs": written(HEADER, ROWS, delimiter="\t").encode(),
    "semicolons": written(HEADER, ROWS, delimiter=";").encode(),
    "tabs behind values": PLAIN.replace("12.5", "12.5\t").encode(),
}


@pytest.mark.parametrize("form", ENCODED)
def test_encodings_line_ends_and_delimiters(form: str, tmp_path: Path) -> None:
    expected = read(tmp_path / "plain.csv", ENCODED["plain"])
    assert [row.duration_us for row in expected] == [12.5, 1.25, 2.0, None]
    assert [row.held_out for row in expected] == [True, False, False, False]
    assert [t and t.shape for t in expected[1].inputs] == [(8, 16), (), (4,)]
    assert read(tmp_path / "other.csv", ENCODED[form]) == expected


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(ENCODED["with a mark"]))
    writer.start()
    with open_table(pipe) as table:
        assert [row.name for row in table] == ["a", "b", "c", "d"]
    writer.join()


SUMMARY = {
    "Type": "OP Type",
    "Name": "Op Name",
    "Accelerator Core": "Task Type",
    "Duration(us)": "Task Duration(us)",
    "Step Id": "Model ID",
}


@pytest.mark.parametrize(
    "spell",
    [
        lambda name: SUMMARY.get(name, name),
        str.upper,
        str.lower,
        lambda name: name.replace(" ", "_"),
        lambda name: f" {name} ",
        lambda name: name.replace("(us)", " (us)"),
        lambda name: name.replace("(us)", ""),
    ],
)
def test_spellings_of_columns(spell: object, tmp_path: Path) -> None:
    expected = read(tmp_path / "plain.csv", ENCODED["plain"])
    header = [spell(name) for name in HEADER]  # type: ignore[operator]
    assert read(tmp_path / "other.csv", written(header, ROWS).encode()) == expected


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1000), ("us", 1), ("ms", 1e-3), ("s", 1e-6)])
def test_units_in_the_header(unit: str, factor: float, tmp_path: Path) -> None:
    header = ["Type", f"Task Duration({unit})", "Task Start Time(us)", "Input Shapes"]
    text = written(header, [["Add", f"{12.5 * factor:.9f}", "1000.125\t", "8"]])
    row = read(tmp_path / "t.csv", text.encode())[0]
    assert row.duration_us == pytest.approx(12.5)
    assert row.start_ns == 1000125


@pytest.mark.parametrize("start", ["9e999999", "1e1000000", "1e99999999999999999999", "inf", "-1", "9.3e18"])
def test_a_start_that_is_no_time_costs_only_itself(start: str, tmp_path: Path) -> None:
    header = ["Type", "Duration(us)", "Start Time(us)", "Input Shapes"]
    row = read(tmp_path / "t.csv", written(header, [["Add", "1", start, "8"]]).encode())[0]
    assert (row.duration_us, row.start_ns) == (1.0, None)


def test_digits_in_groups_and_zero_durations(tmp_path: Path) -> None:
    rows = [["Add", "1,234.5", "8"], ["Add", "0", "8"], ["Add", "0.0", "8"], ["Add", "-1", "8"], ["Add", "N/A", "8"]]
    found = read(tmp_path / "t.csv", written(["Type", "Duration(us)", "Input Shapes"], rows).encode())
    assert [row.duration_us for row in found] == [1234.5, None, None, None, None]


def test_counts(tmp_path: Path) -> None:
    rows = [["Add", "1", "8", count] for count in ("3", "3.0", "", "N/A", "0")]
    found = read(tmp_path / "t.csv", written(["Type", "Duration(us)", "Input Shapes", "Count"], rows).encode())
    assert [row.count for row in found] == [3, 3, 1, 1, 1]


@pytest.mark.parametrize("lacking", ["Type", "Duration(us)", "Input Shapes"])
def test_what_a_table_lacks_is_named(lacking: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(written([name for name in HEADER if name != lacking], []))
    with pytest.raises(Malformed, match="no column") as caught, open_table(path):
        pass
    assert lacking in str(caught.value)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("DT_BF16", "bfloat16"),
        ("BF16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        ("bfloat16", "bfloat16"),
        ("FLOAT16", "float16"),
        ("FP16", "float16"),
        ("FP32", "float32"),
        ("float", "float32"),
        ("DT_FLOAT", "float32"),
        ("INT8", "int8"),
        ("dt_int8", "int8"),
        ("INT4", "int8"),
        ("FLOAT8_E4M3FN", "float8_e4m3fn"),
        ("LONG", "int64"),
        ("'INT32'", "int32"),
        ("NULL", None),
        ("DT_UNDEFINED", None),
        ("N/A", None),
        ("NEW_TYPE9", "new_type9"),
    ],
)
def test_spellings_of_dtypes(text: str, dtype: str | None) -> None:
    assert dtype_of(text) == dtype


def test_spellings_of_shapes_and_formats() -> None:
    plain = tensors_of("1,2;3", "FLOAT;FLOAT", "ND;FRACTAL_NZ")
    for shapes, formats in (
        ('"1,2;3"', "ND;NZ"),
        ("[1, 2];[3]", "nd;nz"),
        ("(1,2);(3,)", "FORMAT_ND;FORMAT_FRACTAL_NZ:0"),
        ("1,2;3", "N/A;FRACTAL_NZ"),
    ):
        assert tensors_of(shapes, "FLOAT;FLOAT", formats) == plain
    assert [t and t.shape for t in tensors_of("", "FLOAT", "ND")] == [()]
    assert [t and t.shape for t in tensors_of("1;;2", "FLOAT;UNDEFINED;FLOAT", "ND")] == [(1,), None, (2,)]


CELLS = st.one_of(
    st.sampled_from(
        ["", "N/A", '"1,2;3"', "FLOAT;INT8", "ND", "1e400", "-5", "nan", "12,5", "1;2", "x" * 300, "\x00", "0x1"]
    ),
    st.text(max_size=20),
)


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([*(n for names in COLUMNS.values() for n in names), "Extra"]), unique=True, max_size=14),
    st.lists(st.lists(CELLS, max_size=14), max_size=4),
    st.sampled_from([",", "\t", ";"]),
)
def test_any_table_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, header: list[str], rows: list[list[str]], delimiter: str
) -> None:
    path = tmp_path_factory.mktemp("table") / "t.csv"
    path.write_text(written(header, rows, delimiter=delimiter), encoding="utf-8", errors="surrogatepass", newline="")
    try:
        with open_table(path) as table:
            for row in table:
                assert row.duration_us is None or row.duration_us > 0
                assert row.count >= 1
    except Malformed:
        pass
