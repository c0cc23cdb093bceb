"""Instructions that no program that ships uses: what they give, and for which dtypes there are none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.tile.cases import parse_case
from opreplay.replay.tile.check import Checked, check
from opreplay.replay.tile.language.places import TileError
from opreplay.replay.tile.program import Program, bind

DEVICE = load_device("910b3")

Load = Callable[[str], tuple[Program, ...]]
PROGRAM = """@tile.kernel("mylib::k", reference=lambda x, n: {reference})
def k(x, n, y: tile.Out):
    for r in tile.blocks(y.shape[0], 8):
        tile.store(y[r], {computed})
"""
X, N = "tile.load(x[r])", "tile.load(n[r])"


def checked(load: Load, case: str, reference: str, computed: str) -> Checked:
    programs = load(PROGRAM.format(reference=reference, computed=computed))
    return check(bind(programs[0], parse_case(f"k {case}", programs).arguments), load_device("910b3"))


@pytest.mark.parametrize(
    ("dtype", "reference", "computed"),
    [
        ("i32", "(n & 5) | ((n ^ 3) << 2)", f"({N} & 5) | (({N} ^ 3) << 2)"),
        ("i16", "(n >> 1) + (n & (n << 1))", f"({N} >> 1) + ({N} & ({N} << 1))"),
        ("i32", "x + torch.ones_like(x).tril(-3)", f"{X} + tile.tril((40, 10), diagonal=-3)[r.start : r.stop]"),
        ("i32", "x.tanh() + x.floor()", f"tile.tanh({X}) + tile.floor({X})"),
        ("i32", "x.cumsum(-1)", f"tile.row_cumsum({X})"),
        ("i64", "x[n[:, 0].contiguous()]", "tile.load(x, rows=tile.load(n[r, 0:1]))"),
    ],
)
def test_an_instruction_gives_what_torch_does(dtype: str, reference: str, computed: str, programs_of: Load) -> None:
    assert checked(programs_of, f"x=f32[40,10] n={dtype}[40,10]", reference, computed).allowed


FLOAT8 = """@tile.kernel("mylib::f8", reference=lambda a, b: a.float() @ b.float())
def k(a, b, c: tile.Out):
    for m, n in tile.grid(c.shape, (16, 16)):
        tile.store(c[m, n], tile.matmul(tile.load(a[m], to=tile.L1), tile.load(b[:, n], to=tile.L1)))


@tile.kernel("mylib::narrowed", reference=lambda x: x.to(torch.{dtype}))
def narrowed(x, y: tile.Out):
    for r in tile.blocks(x.shape[0], 8):
        tile.store(y[r], tile.load(x[r]).to(y.dtype))
"""


@pytest.mark.parametrize(("short", "dtype"), [("f8e4m3", "float8_e4m3fn"), ("f8e5m2", "float8_e5m2")])
def test_float8_is_converted_and_multiplied_where_the_cube_takes_it(short: str, dtype: str, programs_of: Load) -> None:
    programs = programs_of(FLOAT8.format(dtype=dtype))
    for text in (f"k a={short}[40,64] b={short}[64,30]", "narrowed x=f32[40,10]"):
        case = parse_case(text, programs)
        assert check(bind(case.program, case.arguments), load_device("950pr")).same
    with pytest.raises(TileError) as found:
        check(bind(programs[0], parse_case(f"k a={short}[40,64] b={short}[64,30]", programs).arguments), DEVICE)
    assert (found.value.limit, found.value.line) == ("dtype", 7)


@pytest.mark.parametrize("computed", [f"{X} << 1", f"{X} & 1", f"{N}.float() >> 1", f"tile.row_cumsum({N})"])
def test_floats_have_no_bits_and_whole_numbers_no_prefix_sums(computed: str, programs_of: Load) -> None:
    with pytest.raises(TileError) as found:
        checked(programs_of, "x=f32[40,10] n=i32[40,10]", "x", computed)
    assert (found.value.limit, found.value.line) == ("dtype", 7)


def test_padding_enters_no_prefix_sum(programs_of: Load) -> None:
    with pytest.raises(TileError) as found:
        checked(programs_of, "x=f32[40,10] n=i32[40]", "x", "tile.row_cumsum(tile.load(x[r, 0:8], shape=(8, 10)))")
    assert found.value.limit == "mask"
