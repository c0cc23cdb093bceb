"""Planted faults: each kind is found, with the line that is marked and the limit that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.tile.program import Program
from opreplay.replay.tile.study import Wanted, study

pytestmark = pytest.mark.slow

ROWS = "x=f32[47,10]"
MATRICES = "a=f16[300,300] b=f16[300,300]"

ONE = '@tile.kernel("mylib::k", reference=lambda x: x)\ndef k(x, y: tile.Out, *, rows=8):\n'
PRODUCT = '@tile.kernel("mylib::k", reference=lambda a, b: (a.float() @ b.float()).to(a.dtype))\n'
PRODUCT += "def k(a, b, c: tile.Out, *, bm=128, bn=256, bk=128):\n"
LOOP = ONE + "    for r in tile.blocks(x.shape[0], rows):\n"
GRID = PRODUCT + "    for m, n in tile.grid(c.shape, (bm, bn)):\n        acc = None\n"


def rows(*lines: str) -> str:
    """A program over blocks of rows."""
    return LOOP + "".join(f"        {line}\n" for line in lines)


def product(*lines: str) -> str:
    """A program over blocks of a product."""
    return GRID + "".join(f"        {line}\n" for line in lines)


K_LOOP = "for k in tile.steps(a.shape[1], bk):"
SUM = "    acc = tile.matmul(tile.load(a[m, k], to=tile.L1), tile.load(b[k, n], to=tile.L1), acc)"

A_PRODUCT = "acc = tile.matmul(tile.load(x[r], to=tile.L1), tile.load(x[r], to=tile.L1))"
BLOCK_OF_64 = ONE + f"    for r in tile.blocks(x.shape[0], 64):\n        {A_PRODUCT}\n"

FAULTS: dict[str, tuple[str, str, str]] = {
    "UB over capacity, loaded": (
        "UB",
        "x=f32[256,4096]",
        rows("t = tile.load(x[r], buffers=1)  # here", "tile.store(y[r], t)").replace("=8", "=16"),
    ),
    "UB over capacity, computed": (
        "UB",
        "x=bf16[64,4352]",
        rows("t = tile.load(x[r], buffers=1)", "t = t.float()  # here", "tile.store(y[r], t.to(y.dtype))"),
    ),
    "UB over capacity, results wait to be stored": (
        "UB",
        "x=f32[640,2304]",
        rows("t = tile.load(x[r], buffers=1)", "tile.store(y[r], t * 1.0)  # here"),
    ),
    "a scalar that is larger than the program says": (
        "bounds",
        "x=i32[47,10]",
        rows("n = tile.scalar(x[r.start, 0], most=0)  # here", "tile.store(y[r], tile.load(x[r]))"),
    ),
    "a scalar of what the program writes": (
        "path",
        "x=i32[47,10]",
        rows("tile.store(y[r], tile.load(x[r]))", "tile.scalar(y[r.start, 0], most=9)  # here"),
    ),
    "a scalar of floats": ("dtype", ROWS, rows("tile.scalar(x[0, 0], most=9)  # here")),
    "a scalar of several elements": ("shape", "x=i32[47,10]", rows("tile.scalar(x[0], most=9)  # here")),
    "float8 where only bytes are moved": (
        "dtype",
        ROWS,
        rows("t = tile.load(x[r]).to(torch.float8_e4m3fn)  # here", "tile.store(y[r], t.float())"),
    ),
    "L1 over capacity": (
        "L1",
        "a=f32[300,2048] b=f32[2048,300]",
        product(K_LOOP, SUM + "  # here", "tile.store(c[m, n], acc)").replace("bk=128", "bk=512"),
    ),
    "L0C over capacity": (
        "L0C",
        "a=f16[512,64] b=f16[64,512]",
        product(K_LOOP, SUM + "  # here", "tile.store(c[m, n], acc)").replace("bm=128, bn=256", "bm=256, bn=256"),
    ),
    "L0A over capacity": (
        "L0A",
        "a=f32[2048,16] b=f32[16,16]",
        product(K_LOOP, SUM + "  # here", "tile.store(c[m, n], acc)").replace("bm=128", "bm=2048"),
    ),
    "L0B over capacity": (
        "L0B",
        "a=f32[16,16] b=f32[16,2048]",
        product(K_LOOP, SUM + "  # here", "tile.store(c[m, n], acc)").replace("bn=256", "bn=2048"),
    ),
    "bfloat16 computed on": (
        "dtype",
        "x=bf16[47,10]",
        rows("t = tile.load(x[r])", "t = t + t  # here", "tile.store(y[r], t)"),
    ),
    "two dtypes in one instruction": (
        "dtype",
        "x=f16[47,10]",
        rows("t = tile.load(x[r])", "t = t.float() + t  # here", "tile.store(y[r], t.to(y.dtype))"),
    ),
    "int8 computed on": (
        "dtype",
        "x=i8[47,10]",
        rows("t = tile.load(x[r])", "t = t * 2  # here", "tile.store(y[r], t)"),
    ),
    "exponential of whole numbers": (
        "dtype",
        "x=i32[47,10]",
        rows("t = tile.exp(tile.load(x[r]))  # here", "tile.store(y[r], t)"),
    ),
    "row sum of bfloat16": (
        "dtype",
        "x=bf16[47,10]",
        rows("t = tile.load(x[r])", "s = tile.row_sum(t)  # here", "tile.store(y[r], t)"),
    ),
    "a conversion that does not exist": (
        "dtype",
        "x=bf16[47,10]",
        rows("t = tile.load(x[r]).half()  # here", "tile.store(y[r], t)"),
    ),
    "stored as another dtype": (
        "dtype",
        "x=bf16[47,10]",
        rows("t = tile.load(x[r]).float()", "tile.store(y[r], t)  # here"),
    ),
    "product of two dtypes": (
        "dtype",
        "a=f16[64,64] b=bf16[64,64]",
        product(K_LOOP, SUM + "  # here", "tile.store(c[m, n], acc)"),
    ),
    "operand of a product from L0C": (
        "path",
        MATRICES,
        product(K_LOOP, SUM, "    acc = tile.matmul(acc, acc)  # here", "tile.store(c[m, n], acc)"),
    ),
    "vector instruction on L0C": (
        "path",
        MATRICES,
        product(K_LOOP, SUM, "acc = acc * 2.0  # here", "tile.store(c[m, n], acc)"),
    ),
    "load to L0A": (
        "path",
        ROWS,
        rows('t = tile.load(x[r], to="L0A")  # here', "tile.store(y[r], t)"),
    ),
    "load to UB on the cube core": (
        "path",
        MATRICES,
        product(K_LOOP, SUM, "t = tile.load(c[m, n], to=tile.UB)  # here", "tile.store(c[m, n], acc)"),
    ),
    "an input is written": (
        "path",
        ROWS,
        rows("t = tile.load(x[r])", "tile.store(x[r], t)  # here"),
    ),
    "a product on the vector cores": (
        "path",
        MATRICES,
        product("for half in tile.vectors(m.size):", "    acc = tile.matmul(acc, acc)  # here")
        .replace("acc, acc", "tile.load(a[m]), tile.load(b)")
        .replace("tile.load(a[m])", "tile.load(a[m], to=tile.L1)"),
    ),
    "a tile of the other half": (
        "path",
        "x=f16[64,64]",
        BLOCK_OF_64 + "        kept = []\n        for half in tile.vectors(r.size):\n"
        "            kept.append(tile.load(x[r][half]))\n"
        "            t = kept[0] * 1.0  # here\n            tile.store(y[r][half], t)\n",
    ),
    "a column is loaded as a run": (
        "stride",
        ROWS,
        rows("t = tile.load(x[r, 0])  # here", "tile.store(y[r, 0], t)"),
    ),
    "a transposed tensor is loaded to UB": (
        "stride",
        ROWS,
        rows("t = tile.load(x.T[:, r])  # here", "tile.store(y[r], t)"),
    ),
    "an input lies column by column": (
        "stride",
        "x=f32[48,16]{1,48}",
        rows("t = tile.load(x[r])  # here", "tile.store(y[r], t)"),
    ),
    "columns that begin between blocks": (
        "stride",
        ROWS,
        rows("t = tile.load(x[r])", "tile.store(y[r, 3:], t[:, 3:] * 1.0)  # here"),
    ),
    "a view over gaps": (
        "stride",
        ROWS,
        rows("t = tile.load(x[:, 0:5].view(-1))  # here", "tile.store(y[r], t)"),
    ),
    "every second row": (
        "stride",
        ROWS,
        rows("t = tile.load(x[0:47:2])  # here", "tile.store(y[r], t)"),
    ),
    "out of bounds in the last block": (
        "bounds",
        ROWS,
        ONE + "    for r in tile.blocks(-(-x.shape[0] // rows), 1):\n        at = r.start * rows\n"
        "        tile.store(y[at : at + rows], tile.load(x[at : at + rows]))  # here\n",
    ),
    "off by one": (
        "bounds",
        ROWS,
        rows("t = tile.load(x[r.start + 1 : r.stop + 1])  # here", "tile.store(y[r], t)"),
    ),
    "too many indexes": (
        "bounds",
        ROWS,
        rows("t = tile.load(x[r, 0, 0])  # here", "tile.store(y[r], t)"),
    ),
    "gather beyond the row": (
        "bounds",
        ROWS,
        rows(
            "t = tile.load(x[r])", "t = tile.gather(t, tile.arange(x.shape[1], start=1))  # here", "tile.store(y[r], t)"
        ),
    ),
    "two cores write one place": (
        "race",
        ROWS,
        rows("t = tile.load(x[0:7])", "tile.store(y[0:7], t)  # here"),
    ),
    "blocks overlap": (
        "race",
        ROWS,
        rows(
            "last = min(r.stop + 1, x.shape[0])",
            "t = tile.load(x[r.start : last])",
            "tile.store(y[r.start : last], t)  # here",
        ),
    ),
    "a core reads what another wrote": (
        "race",
        ROWS,
        '@tile.kernel("mylib::k", reference=lambda x: x)\ndef k(x: tile.InOut, *, rows=8):\n'
        "    for r in tile.blocks(x.shape[0], rows):\n"
        "        before = tile.load(x[max(0, r.start - 1) : r.stop])  # here\n"
        "        tile.store(x[r], tile.load(x[r]))\n",
    ),
    "both halves write all rows": (
        "race",
        "x=f16[64,64]",
        BLOCK_OF_64
        + "        for half in tile.vectors(r.size):\n            tile.store(y[r], tile.load(x[r]))  # here\n",
    ),
    "a sum that is not added to": (
        "race",
        ROWS,
        rows("t = tile.load(x[r])", "tile.store(y[r], t)  # here").replace("tile.Out", "tile.Sum"),
    ),
    "rows scattered twice": (
        "race",
        ROWS,
        rows("t = tile.load(x[r])", "tile.store(y, t, rows=tile.arange(r.size) * 0)  # here"),
    ),
    "a tile kept over two loads": (
        "stale",
        "x=f32[4000,10]",
        ONE + "    kept = None\n    for r in tile.blocks(x.shape[0], rows):\n        t = tile.load(x[r])\n"
        "        kept = kept or []\n        kept.append(t)\n        tile.store(y[r], kept[0] * 1.0)  # here\n",
    ),
    "more loads than buffers": (
        "stale",
        ROWS,
        rows(
            "parts = [tile.load(x[i : i + 1]) for i in range(4)]",
            "t = parts[0] + parts[3]  # here",
            "tile.store(y[r], t)",
        ),
    ),
    "a result is read before it is written": (
        "unwritten",
        ROWS,
        rows("t = tile.load(y[r])  # here", "tile.store(y[r], t)"),
    ),
    "the last block is left out": (
        "unwritten",
        ROWS,
        ONE + "    for r in tile.blocks(x.shape[0] // rows * rows, rows):\n"
        "        tile.store(y[r], tile.load(x[r]))  # here\n",
    ),
    "memory of UB that nobody wrote": (
        "unwritten",
        ROWS,
        rows("t = tile.empty((r.size, x.shape[1]))", "t = t + 1.0  # here", "tile.store(y[r], t)"),
    ),
    "scratch memory that nobody wrote": (
        "unwritten",
        ROWS,
        rows("s = tile.scratch((r.size, x.shape[1]))", "t = tile.load(s)  # here", "tile.store(y[r], t)"),
    ),
    "missing mask of a row sum": (
        "mask",
        ROWS,
        rows(
            "t = tile.load(x[r], shape=(r.size, 16))", "s = tile.row_sum(t)  # here", "tile.store(y[r], t[:, 0:10] * s)"
        ),
    ),
    "missing mask of a product": (
        "mask",
        MATRICES,
        product(
            "p = tile.load(a[m], to=tile.L1, shape=(m.size, 320))",
            "q = tile.load(b[:, n], to=tile.L1, shape=(320, n.size))",
            "acc = tile.matmul(p, q)  # here",
            "tile.store(c[m, n], acc)",
        ).replace("bn=256", "bn=128"),
    ),
    "padding is stored": (
        "mask",
        "x=f32[48,16]",
        rows("t = tile.load(x[r, 0:10], shape=(r.size, 16))", "tile.store(y[r], t * 2.0)  # here"),
    ),
    "shapes that do not fit": (
        "shape",
        ROWS,
        rows("t = tile.load(x[r]) + tile.load(x[r, 0:5])  # here", "tile.store(y[r], t)"),
    ),
    "a partial block is stored as a whole one": (
        "shape",
        ROWS,
        rows("t = tile.load(x[0:8])", "tile.store(y[r], t)  # here"),
    ),
    "sizes of a product": (
        "shape",
        "a=f16[64,48] b=f16[48,64]",
        product(
            "acc = tile.matmul(tile.load(a[m], to=tile.L1), tile.load(b[0:32, n], to=tile.L1))  # here",
            "tile.store(c[m, n], acc)",
        ),
    ),
    "a factor too many": (
        "values",
        ROWS,
        rows("t = tile.load(x[r])", "tile.store(y[r], t * 1.01)  # here"),
    ),
    "zeros for small values": (
        "values",
        "x=bf16[47,10]",
        rows("t = tile.load(x[r])", "tile.store(y[r], (t.float() * 0.0).to(y.dtype))  # here").replace(
            "reference=lambda x: x", "reference=lambda x: x * 1e-3"
        ),
    ),
    "a sum that goes on": (
        "values",
        "a=f16[256,64] b=f16[64,256]",
        PRODUCT.replace("bn=256", "bn=128") + "    acc = None\n    for m, n in tile.grid(c.shape, (bm, bn)):\n"
        "        for k in tile.steps(a.shape[1], bk):\n"
        "            acc = tile.matmul(tile.load(a[m, k], to=tile.L1), tile.load(b[k, n], to=tile.L1), acc)\n"
        "        tile.store(c[m, n], acc)  # here\n"
        "        acc = tile.matmul(tile.load(a[m, 0:16], to=tile.L1), tile.load(b[0:16, n], to=tile.L1))\n",
    ),
    "a wrong row": (
        "values",
        ROWS,
        rows(
            "t = tile.load(x[r])",
            "s = tile.load(x[x.shape[0] - 1 : x.shape[0]])",
            "tile.store(y[r], tile.minimum(t, s))  # here",
        ),
    ),
    "a function of torch": (
        "program",
        ROWS,
        rows("t = torch.exp(tile.load(x[r]))  # here", "tile.store(y[r], t)"),
    ),
    "a tile decides": (
        "program",
        ROWS,
        rows("t = tile.load(x[r])", "if tile.compare(t, '>', 0.0):  # here", "    t = t + 1.0", "tile.store(y[r], t)"),
    ),
    "runs that are not sorted": (
        "program",
        "x=f32[47,100]",
        rows(
            "keys, ids = tile.load(x[r.start : r.start + 1]), tile.arange(x.shape[1])",
            "keys, ids = tile.merge4(keys, ids, 32)  # here",
            "tile.store(y[r.start : r.start + 1], keys)",
        ),
    ),
    "halves within halves": (
        "cores",
        "x=f16[64,64]",
        ONE + "    for r in tile.blocks(x.shape[0], 64):\n        for half in tile.vectors(r.size):\n"
        "            for again in tile.vectors(8):  # here\n                pass\n",
    ),
}
"""Kind → (limit, case, program); the line that breaks it ends in `# here`."""


def test_there_are_as_many_kinds_as_promised() -> None:
    assert len(FAULTS) >= 40


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_found_with_its_line(kind: str, programs_of: Callable[[str], tuple[Program, ...]]) -> None:
    limit, case, text = FAULTS[kind]
    programs = programs_of(text)
    found = study(programs, {"910b3": load_device("910b3")}, Wanted(cases=[f"k {case}"]))
    error = found.results[0].error
    assert error is not None, "not found"
    source = Path(programs[0].place.rpartition(":")[0]).read_text().splitlines()
    assert (error.limit, source[error.line - 1].rpartition("  ")[2]) == (limit, "# here"), error
    assert error.message


def test_a_result_that_is_not_covered_is_found_without_values(
    programs_of: Callable[[str], tuple[Program, ...]],
) -> None:
    _, case, text = FAULTS["the last block is left out"]
    programs = programs_of(text)
    found = study(programs, {"910b3": load_device("910b3")}, Wanted(cases=[f"k {case}"], values=False)).results[0].error
    assert found is not None
    assert (found.limit, found.line, found.message) == ("unwritten", 7, "y: 70 of 470 elements are never written")
    (covered,) = study(
        programs, {"910b3": load_device("910b3")}, Wanted(cases=["k x=f32[48,10]"], values=False)
    ).results
    assert covered.error is None
