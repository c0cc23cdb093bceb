"""Planted faults beside the program without them: the one is found with its line, the other passes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from opreplay import tile
from opreplay.cli.main import opreplay
from opreplay.initializers.user_code import forget_loaded
from opreplay.initializers.user_table import Taken
from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.custom.estimators import clear_registrations as clear_estimators
from opreplay.replay.plugins import clear_registrations
from opreplay.replay.tile.cases import default_set, parse_case
from opreplay.replay.tile.check import Checked, check, draw
from opreplay.replay.tile.language.places import TileError
from opreplay.replay.tile.program import Program, bind
from opreplay.replay.tile.registration import forget_programs, programs
from opreplay.replay.tile.study import Wanted, study
from opreplay.traces.errors import UsageError

ONE = '@tile.kernel("mylib::k", reference=lambda x: {0})\ndef k(x, y: tile.Out, *, rows=8):\n'
ROWS = ONE + "    for r in tile.blocks(x.shape[0], rows):\n"


def rows(*lines: str, reference: str = "x") -> str:
    """A program over blocks of rows."""
    return ROWS.format(reference) + "".join(f"        {line}\n" for line in lines)


ROW_OF_10 = "x=f32[47,10]"
SOFTMAX = "x.softmax(-1)"
MASKED = "t = tile.load(x[r], shape=(r.size, 16), fill={0})\n        top = tile.row_max(t)"
STORED = "tile.store(y[r], tile.load(x[r]) - top)"
BELOW_TOP = "x - x.amax(-1, keepdim=True)"
SCALED = "x / x.abs().amax(-1, keepdim=True).clamp_min(1e-12)"
NORM = "x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()"
ROOT = "tile.store(y[r], t * tile.rsqrt(tile.row_sum(t * t) / 10 + {0}))"
COUNTED = (
    "tile.store(y[r], tile.row_sum(tile.where(at, tile.col_expand(tile.arange(10, 'float32'), r.size), 0.0)) + (t - t))"
)
ARGMAX = "x.argmax(-1, keepdim=True) + x * 0"
TEN = "x + x[:, :10].sum(-1, keepdim=True)"
RING = """@tile.kernel("mylib::k", reference=lambda a, b: (a.float() @ b.float()).relu().to(a.dtype))
def k(a, b, y: tile.Out, *, ahead=2):
    for m, n in tile.grid(y.shape, (64, 1024)):
        waiting = []
        for c in tile.steps(n.span(), 64):
            s = tile.scratch((m.size, c.size), buffers=1)
            tile.store(s, tile.matmul(tile.load(a[m], to=tile.L1), tile.load(b[:, c], to=tile.L1)))
            waiting.append((c, s))
            if len(waiting) > ahead:
                finish(y[m], *waiting.pop(0))
        for c, s in waiting:
            finish(y[m], c, s)


def finish(y, c, s):
    for half in tile.vectors(y.shape[0]):
        t = tile.relu(tile.load(s[half]))  # here
        tile.store(y[half, c], t.to(y.dtype))
"""
PAGED = """@tile.kernel("mylib::k", reference=lambda x, w, t: (x[t.long()].float() @ w.float()).to(x.dtype))
def k(x, w, t, y: tile.Out):
    for m in tile.blocks(t.shape[0], 8):
        {numbers}
        acc = tile.matmul({operand}, tile.load(w, to=tile.L1))  # here
        tile.store(y[m], acc)
"""
NUMBERS = "for half in tile.vectors(m.size):\n            at = tile.load(t[m])"
THROUGH_GM = """s = tile.scratch((m.size, x.shape[1]), x.dtype)
        for half in tile.vectors(m.size):
            tile.store(s[half], tile.load(x, rows=tile.load(t[m][half])))"""
HALVES = """@tile.kernel("mylib::k", reference=lambda x: x)
def k(x, y: tile.Out):
    for r in tile.blocks(x.shape[0], 16):
        a = tile.load(x[r], to=tile.L1)
        s = tile.scratch((r.size, x.shape[1]), x.dtype)
        for half in tile.vectors(r.size):
            {0}
"""
SUMS = """@tile.kernel("mylib::k", reference=lambda x: {0})
def k(x, total: tile.Sum, y: tile.Out):
    for r in tile.blocks(x.shape[0], 16):
        t = tile.load(x[r])
        {1}
"""

PAIRS: dict[str, tuple[str, str, str, str]] = {
    "a queue between cores that is too short": (
        "stale",
        "a=f16[64,32] b=f16[32,512]",
        RING,
        RING.replace("=1)", "=3)"),
    ),
    "row numbers of a vector core steer the cube core": (
        "path",
        "x=f16[32,16] w=f16[16,16] t=i32[24]",
        PAGED.format(numbers=NUMBERS, operand="tile.load(x, rows=at, to=tile.L1)"),
        PAGED.format(numbers=THROUGH_GM, operand="tile.load(s, to=tile.L1)"),
    ),
    "a half reads what the other one wrote": (
        "race",
        "x=f16[64,16]",
        HALVES.format(
            "if half.index == 0:\n                tile.store(s, tile.load(x[r]))\n"
            "            tile.store(y[r][half], tile.load(s[half]))  # here"
        ),
        HALVES.format(
            "tile.store(s[half], tile.load(x[r][half]))\n            tile.store(y[r][half], tile.load(s[half]))"
        ),
    ),
    "a sum is read before all have added": (
        "race",
        "x=f32[64,16]",
        SUMS.format(
            "(x.sum(0), x)",
            "if r.start == 0:\n            s = tile.load(total)\n"
            "        tile.store(total, tile.col_sum(t), add=True)  # here\n        tile.store(y[r], t)",
        ),
        SUMS.format("(x.sum(0), x)", "tile.store(total, tile.col_sum(t), add=True)\n        tile.store(y[r], t)"),
    ),
    "row numbers that are gone": (
        "stale",
        "x=f32[47,10] t=i32[40]",
        '@tile.kernel("mylib::k", reference=lambda x, t: x[t.long()])\ndef k(x, t, y: tile.Out):\n'
        "    for r in tile.blocks(t.shape[0], 20):\n"
        "        parts = [tile.load(t[r.start + i : r.start + i + 5]) for i in range(0, 20, 5)]\n"
        "        for i, at in enumerate(parts):\n"
        "            tile.store(y[r.start + 5 * i : r.start + 5 * i + 5], tile.load(x, rows=at))  # here\n",
        '@tile.kernel("mylib::k", reference=lambda x, t: x[t.long()])\ndef k(x, t, y: tile.Out):\n'
        "    for r in tile.blocks(t.shape[0], 5):\n"
        "        tile.store(y[r], tile.load(x, rows=tile.load(t[r])))\n",
    ),
    "padding that was inserted": (
        "mask",
        "x=f32[48,16]",
        rows(
            "into = tile.zeros((r.size, 16))",
            "tile.insert(into, tile.load(x[r, 0:10], shape=(r.size, 16)))",
            "s = tile.row_sum(into)  # here",
            "tile.store(y[r], tile.load(x[r]) + s)",
            reference=TEN,
        ),
        rows(
            "into = tile.zeros((r.size, 16))",
            "tile.insert(into, tile.load(x[r, 0:10], shape=(r.size, 16), fill=0))",
            "s = tile.row_sum(into)",
            "tile.store(y[r], tile.load(x[r]) + s)",
            reference=TEN,
        ),
    ),
    "padding that was repeated": (
        "mask",
        "x=f32[48,16]",
        rows(
            "t = tile.col_expand(tile.load(x[0:1, 0:10], shape=(1, 16)), r.size)",
            "s = tile.row_sum(t)  # here",
            "tile.store(y[r], tile.load(x[r]) + s)",
            reference="x + x[:1, :10].sum()",
        ),
        rows(
            "t = tile.col_expand(tile.load(x[0:1, 0:10]), r.size)",
            "tile.store(y[r], tile.load(x[r]) + tile.row_sum(t))",
            reference="x + x[:1, :10].sum()",
        ),
    ),
    "zeros for padding go into a maximum": (
        "values",
        ROW_OF_10,
        rows(MASKED.format(0), STORED + "  # here", reference=BELOW_TOP),
        rows(MASKED.format(-1e38), STORED, reference=BELOW_TOP),
    ),
    "a softmax without its maximum": (
        "values",
        ROW_OF_10,
        rows("e = tile.exp(tile.load(x[r]))", "tile.store(y[r], e / tile.row_sum(e))  # here", reference=SOFTMAX),
        rows(
            "t = tile.load(x[r])",
            "e = tile.exp(t - tile.row_max(t))",
            "tile.store(y[r], e / tile.row_sum(e))",
            reference=SOFTMAX,
        ),
    ),
    "a scale of zeros": (
        "values",
        ROW_OF_10,
        rows("t = tile.load(x[r])", "tile.store(y[r], t / tile.row_max(tile.abs(t)))  # here", reference=SCALED),
        rows(
            "t = tile.load(x[r])",
            "tile.store(y[r], t / tile.maximum(tile.row_max(tile.abs(t)), 1e-12))",
            reference=SCALED,
        ),
    ),
    "another small number under the root": (
        "values",
        ROW_OF_10,
        rows("t = tile.load(x[r])", ROOT.format("1e-6") + "  # here", reference=NORM),
        rows("t = tile.load(x[r])", ROOT.format("1e-5"), reference=NORM),
    ),
    "equal elements are all taken for the largest": (
        "values",
        ROW_OF_10,
        rows(
            "t = tile.load(x[r])",
            "at = tile.compare(t, '==', tile.row_max(t))",
            COUNTED + "  # here",
            reference=ARGMAX,
        ),
        rows(
            "t = tile.load(x[r])",
            "at = tile.compare(t, '==', tile.row_max(t))",
            COUNTED.replace("row_sum", "row_min").replace("0.0)", "99.0)"),
            reference=ARGMAX,
        ),
    ),
    "neighbours are masked by a product with zero": (
        "values",
        ROW_OF_10,
        rows(
            "t = tile.load(x[0 : x.shape[0]])",
            "i = tile.arange(x.shape[0], 'float32', start=r.start).view(-1, 1)",
            "tile.store(y[r], tile.load(x[r]) + tile.col_sum(t * (i - i)))  # here",
        ),
        rows("tile.store(y[r], tile.load(x[r]) * 1.0)"),
    ),
    "insert into a tile that is gone": (
        "stale",
        "x=f32[47,16]",
        rows(
            "parts = [tile.load(x[r]) for _ in range(4)]",
            "tile.insert(parts[0], parts[3])  # here",
            "tile.store(y[r], parts[3])",
        ),
        rows(
            "parts = [tile.load(x[r]) for _ in range(2)]",
            "tile.insert(parts[0], parts[1])",
            "tile.store(y[r], parts[0])",
        ),
    ),
}
"""Kind → (limit, case, program with the fault in the line that ends in `# here`, program without it, if any)."""


def checked(programs: tuple[Program, ...], text: str) -> Checked:
    case = parse_case(f"k {text}", programs)
    return check(bind(case.program, case.arguments), load_device("910b3"))


@pytest.mark.parametrize("kind", PAIRS)
def test_a_fault_is_found_with_its_line(kind: str, programs_of: Callable[[str], tuple[Program, ...]]) -> None:
    limit, case, text, _ = PAIRS[kind]
    programs = programs_of(text)
    with pytest.raises(TileError) as found:
        checked(programs, case)
    source = Path(found.value.file).read_text().splitlines()
    assert (found.value.limit, source[found.value.line - 1].rpartition("  ")[2]) == (limit, "# here"), found.value


@pytest.mark.parametrize("kind", PAIRS)
def test_the_program_without_it_passes(kind: str, programs_of: Callable[[str], tuple[Program, ...]]) -> None:
    _, case, _, repaired = PAIRS[kind]
    assert checked(programs_of(repaired), case).allowed


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (rows("tile.store(y[r], tile.load(x, rows=tile.arange(r.size, start=-1)))"), "-1"),
        (rows("tile.store(y[r], tile.gather(tile.load(x[r]), tile.arange(x.shape[1], start=-1)))"), "-1"),
        (rows("tile.store(y[r], tile.gather(tile.load(x[r]), tile.arange(x.shape[1], start=3)))"), "10"),
    ],
)
def test_a_number_that_is_out_of_range_is_named(
    text: str, number: str, programs_of: Callable[[str], tuple[Program, ...]]
) -> None:
    with pytest.raises(TileError, match=rf"\b(row|number|column) {number} (of|in) ") as found:
        checked(programs_of(text), "x=f32[47,10]")
    assert found.value.limit == "bounds"


def test_the_buffers_that_overflow_add_up(programs_of: Callable[[str], tuple[Program, ...]]) -> None:
    text = rows("t = tile.load(x[r])", "tile.store(y[r], t * 2.0 + t * 3.0)", reference="x * 5")
    with pytest.raises(TileError) as found:
        checked(programs_of(text), "x=f32[64,2048]")
    needed = float(re.findall(r"([\d.]+) KiB needed", found.value.message)[0])
    parts = re.findall(r"(?:(\d+) × )?([\d.]+) KiB", found.value.hint)
    assert sum(int(count or 1) * float(size) for count, size in parts) == needed


def test_sizes_of_one_stay(programs_of: Callable[[str], tuple[Program, ...]]) -> None:
    (program,) = programs_of(rows("tile.store(y[r], tile.load(x[r]))"))
    base = parse_case("k x=f32[4096,1]", [program])
    shapes = {case.arguments["x"].shape for case in default_set(program, base)}
    assert {(1, 1), (47, 1), (128, 1)} <= shapes
    assert {shape[1] for shape in shapes} == {1}


TABLE = """@tile.kernel("mylib::k", reference=lambda x, t: x[t.long()]{0})
def k(x, t, y: tile.Out):
    for r in tile.blocks(t.shape[0], 8):
        tile.store(y[r], tile.load(x, rows=tile.load(t[r])){1})
"""


def test_values_are_checked_with_inputs_that_are_given(programs_of: Callable[[str], tuple[Program, ...]]) -> None:
    # Drawn numbers are below 8; those given are all rows.
    given = ", inputs=lambda x, t: {'t': torch.arange(len(t)).int().flip(0)}"
    (program,) = programs_of(TABLE.format(given, " * 1.0"))
    assert draw(bind(program, parse_case("k x=f32[20,8] t=i32[20]", [program]).arguments))["t"][0] == 19
    assert checked((program,), "x=f32[20,8] t=i32[20]").allowed
    with pytest.raises(TileError, match="row 19 of x"):
        checked((program,), "x=f32[19,8] t=i32[20]")
    case = parse_case("k x=f32[20,8] t=i32[20]", [program])
    bound = bind(program, case.arguments)
    with pytest.raises(UsageError, match=r"t is i32\[7\], but the case has i32\[20\]"):
        check(bound, load_device("910b3"), inputs={"t": torch.arange(7).int()})


def test_a_shape_that_the_reference_refuses_breaks_nothing(programs_of: Callable[[str], tuple[Program, ...]]) -> None:
    programs = programs_of(
        '@tile.kernel("mylib::halves", reference=lambda x: x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :],\n'
        "             results=lambda x: x.new_empty(x.shape[0], x.shape[1] // 2))\n"
        "def halves(x, y: tile.Out, *, rows=8):\n"
        "    half = x.shape[1] // 2\n"
        "    for r in tile.blocks(x.shape[0], rows):\n"
        "        tile.store(y[r], (tile.load(x[r, :half]).float() + tile.load(x[r, half:]).float()).to(y.dtype))\n"
        '@tile.kernel("mylib::fussy", reference=lambda x: torch.linalg.inv(x) @ x @ x, results=lambda x: x)\n'
        "def fussy(x, y: tile.Out, *, rows=8):\n"
        "    for r in tile.blocks(x.shape[0], rows):\n"
        "        tile.store(y[r], tile.load(x[r, :]))\n"
    )
    devices = {"910b3": load_device("910b3")}
    found = study(programs, devices, Wanted(cases=["halves x=f32[64,32]"]))
    assert [outcome.error for outcome in found.results] == [None] * len(found.results)
    assert found.skipped
    with pytest.raises(UsageError, match="the reference of fussy rejects these inputs"):
        study(programs, devices, Wanted(cases=["fussy x=f32[64,32]"]))


def test_an_edited_cell_replaces_its_program(programs_of: Callable[[str], tuple[Program, ...]], tmp_path: Path) -> None:
    programs_of(TABLE.format("", ""))
    text = "import torch\nfrom opreplay import tile\n" + TABLE.format(", library=True", " * {0}")
    cell = tmp_path / "cell"
    x, t = torch.ones(4, 8), torch.arange(4).int()
    for factor in (2.0, 3.0):
        cell = tmp_path / f"cell{factor}.py"
        cell.write_text(text.replace("mylib::k", "cells::scaled").format(factor))
        run_path(str(cell), run_name="__main__")
        assert [p.place for p in programs() if p.op == "cells::scaled"] == [f"{cell}:3"]
        assert torch.equal(torch.ops.cells.scaled(x, t), x * factor)
    cell.write_text("\n" + cell.read_text())
    with pytest.raises(Taken):
        run_path(str(cell), run_name="__main__")
    with pytest.raises(UsageError):
        tile.Out(torch.int8)


@pytest.mark.slow
def test_inputs_of_a_file_are_those_of_the_case(
    programs_of: Callable[[str], tuple[Program, ...]], tmp_path: Path
) -> None:
    programs_of(TABLE.format("", ""))
    file = tmp_path / "inputs.safetensors"
    x, t = torch.randn(30, 8).numpy().tobytes(), (torch.arange(20).int() + 10).numpy().tobytes()
    entries = {
        "x": {"dtype": "F32", "shape": [30, 8], "data_offsets": [0, len(x)]},
        "t": {"dtype": "I32", "shape": [20], "data_offsets": [len(x), len(x + t)]},
    }
    header = json.dumps(entries).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + x + t)
    source = tmp_path / "mine.py"

    def first_case(*options: str) -> dict[str, Any]:
        done = CliRunner().invoke(opreplay, ["tile", str(source), *options, "--format", "json"])
        return json.loads(done.stdout)["cases"][0]

    case = first_case("--inputs", str(file))
    assert (case["case"], case["error"]) == ("x=f32[30,8] t=i32[20]", None)
    source.write_text(source.read_text().replace("rows=tile.load(t[r])", "rows=tile.minimum(tile.load(t[r]), 7)"))
    for clear in (forget_programs, clear_registrations, clear_estimators, forget_loaded):
        clear()
    assert first_case("--case", "k x=f32[30,8] t=i32[20]")["error"] is None
    assert first_case("--inputs", str(file))["error"]["limit"] == "values"
    assert first_case("--case", "k x=f32[30,8]", "--inputs", str(file))["error"]["limit"] == "values"


def test_op_and_tile_predict_one_call_alike(programs_of: Callable[[str], tuple[Program, ...]], tmp_path: Path) -> None:
    programs_of(TABLE.format("", ""))
    source, common = str(tmp_path / "mine.py"), ("--soc", "910b3", "--format", "json")
    runs = (
        ["tile", source, "--case", "k x=f32[4096,512] t=i32[4096]", "--no-values", *common],
        ["op", "mylib::k(f32[4096,512], i32[4096])", "--plugin", source, "--no-measure", *common],
    )
    one, other = (json.loads(CliRunner().invoke(opreplay, run).stdout)["cases"][0] for run in runs)
    assert one["time_us"] == pytest.approx(other["simulated"]["910b3"]["time_us"])
