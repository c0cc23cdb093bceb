"""Programs as Triton kernels: each that ships is right in Triton's interpreter, or refused with its line."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from opreplay.replay.tile import programs as shipped
from opreplay.replay.tile.emit.triton import NAMESPACE, emit
from opreplay.replay.tile.program import Program

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
SHIPPED: dict[str, Program] = {name: getattr(shipped, name) for name in shipped.__all__}
REFUSED = {
    "causal_conv1d": "the position of a block",
    "flash_attention": "a part of tile.scratch",
    "topk": "tile.sort32",
}
SLOW = ("conv2d", "cross_entropy", "grouped_matmul", "matmul_int4", "mla_decode")
"""Of 5 seconds or more."""
FAST = [name for name in SHIPPED if name not in REFUSED and name not in SLOW]


def interpreted(arguments: Sequence[str]) -> str:
    """What a process of its own prints: Triton reads on import that it is to interpret."""
    pytest.importorskip("triton", reason="Triton is not installed here")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """By program: how its kernel's values compare."""
    return json.loads(interpreted(["benchmarks/tile_triton.py", "--json", *FAST]))


@pytest.mark.parametrize("name", FAST)
def test_kernel_gives_the_values_of_the_reference(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name].startswith("equal in ")


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_slow_kernel_gives_the_values_of_the_reference(name: str) -> None:
    assert json.loads(interpreted(["benchmarks/tile_triton.py", "--json", name]))[name].startswith("equal in ")


@pytest.mark.parametrize("name", REFUSED)
def test_refused_programs_name_line_and_reason(name: str) -> None:
    (refusal,) = emit([SHIPPED[name]]).refused
    assert REFUSED[name] in refusal.reason
    file = Path(SHIPPED[name].function.__code__.co_filename)
    if name == "topk":
        assert REFUSED[name] in file.read_text().splitlines()[refusal.line - 1]
    assert str(refusal).startswith(f"{file.name}:{refusal.line}: {name}: ")


def test_loops_stay_loops_and_blocks_are_constants() -> None:
    text = emit([SHIPPED["matmul"]]).text
    assert "for k in range(0, a_1, bk):" in text
    assert "BM: tl.constexpr" in text
    assert "acc = dot(left, b_block, acc)" in text
    assert "opreplay" not in text
    assert f'"{NAMESPACE}::matmul", mutates_args=("c",)' in text


def test_what_depends_on_a_block_is_a_branch_of_the_kernel() -> None:
    text = emit([SHIPPED["grouped_matmul"]]).text
    assert "    if i == 0:" in text
    assert "    elif i == 1:" in text
    assert "counts == [90, 0, 6]" in text


OTHERS = """
import torch
from {module} import matmul, transpose

a, b = torch.randn(37, 50).T, torch.randn(37, 21)
c = torch.empty(50, 21)
matmul(a, b, c, bm=24, bn=7, bk=20)
torch.testing.assert_close(c, a @ b)
torch.ops.tile_triton.matmul(a, b, c.zero_())
torch.testing.assert_close(c, a @ b)
for size in ((2, 2, 2), (3, 5)):
    try:
        transpose(torch.zeros(3, 4), torch.zeros(size))
    except ValueError as error:
        print(error)
"""


def test_other_settings_strides_and_sizes(tmp_path: Path) -> None:
    (tmp_path / "emitted.py").write_text(emit([SHIPPED["matmul"], SHIPPED["transpose"]]).text)
    script = tmp_path / "others.py"
    script.write_text(OTHERS.format(module="emitted"))
    refused = "transpose: no kernel for these sizes, strides and dtypes: emit it with --case\n"
    assert interpreted([str(script)]) == refused * 2


TURNS = """
import torch
from opreplay import tile


@tile.kernel("mine::first", reference=lambda x: x[:, :64] * 1, results=lambda x: x[:, :64], cases=("x=f32[8,128]",))
def first(x, y: tile.Out):
    for r in tile.blocks(x.shape[0], 4):
        turns = []
        for c in tile.steps(x.shape[1], 64):
            turns.append(tile.load(x[r, c]) * 1.0)
        tile.store(y[r], turns[0])  # here


@tile.kernel("mine::narrowed", reference=lambda x: x.to(torch.float8_e5m2))
def narrowed(x, y: tile.Out):
    for r in tile.blocks(x.shape[0], 4):
        tile.store(y[r], tile.load(x[r]).to(y.dtype))  # here
"""


def test_what_one_turn_computed_and_float8_are_refused_with_their_lines(programs_of) -> None:
    refused = emit(programs_of(TURNS)).refused
    assert [
        "# here" in linecache.getline(refusal.program.place.rpartition(":")[0], refusal.line) for refusal in refused
    ]
    assert [refusal.reason for refusal in refused] == [
        "a value of one loop iteration is used after later iterations",
        "a conversion to float8: the interpreter that checks the kernel rounds it differently",
    ]


MINE = """
import torch
from opreplay import tile


@tile.kernel("mine::twice", reference=lambda x: x * 2)
def twice(x, y: tile.Out, *, rows=8):
    for r in tile.blocks(x.shape[0], rows):
        tile.store(y[r], tile.load(x[r]).float().__mul__(2.0).to(y.dtype))
"""
SORTED = """

@tile.kernel("mine::sorted", reference=lambda x: x)
def ordered(x, y: tile.Out):
    for r in tile.blocks(x.shape[0], 1):
        keys, _ = tile.sort32(tile.load(x[r]), tile.arange(x.shape[1]))
        tile.store(y[r], keys)
"""


@pytest.mark.parametrize(("text", "code"), [(MINE, 0), (MINE + SORTED, 1)])
def test_exit_code_says_whether_all_are_kernels(text: str, code: int, tmp_path: Path) -> None:
    # Its reference is wrong, and what is refused first is what Triton lacks only where values are not looked at.
    (tmp_path / "mine.py").write_text(text)
    command = [str(Path(sys.executable).with_name("opreplay")), "tile", "mine.py", "--emit", "triton", "--no-values"]
    done = subprocess.run([*command, "--output", "out.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "def twice_kernel(" in (tmp_path / "out.py").read_text()
    if code:
        assert "mine.py:15: ordered: tile.sort32: Triton has no sort of runs" in done.stdout
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert alone.returncode == 2
    assert "--output kernels_triton.py" in alone.stderr
