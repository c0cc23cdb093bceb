"""Planted faults beside the program without them: the one is found with its line, the other passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.tile.cases import default_set, parse_case
from opreplay.replay.tile.check import Checked, check
from opreplay.replay.tile.language.places import TileError
from opreplay.replay.tile.program import Program, bind

ONE = '@tile.kernel("mylib::k", reference=lambda x: {0})\ndef k(x, y: tile.Out, *, rows=8):\n'
ROWS = ONE + "    for r in tile.blocks(x.shape[0], rows):\n"


def rows(*lines: str, reference: str = "x") -> str:
    """A program over blocks of rows."""
    return ROWS.format(reference) + "".join(f"        {line}\n" for line in lines)


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
    with pytest.raises(TileError, match=rf"\b(row|number) {number} of ") as found:
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
