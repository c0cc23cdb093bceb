"""The programs on the pages of tile programs are right, and the tutorial op of PyTorchSim is as short as promised."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.tile.program import Program
from opreplay.replay.tile.study import Wanted, study

DOCS = Path(__file__).parents[3] / "docs"
CASES = {
    "tile.md": ("rms_norm x=bf16[60,100] w=bf16[100]", "gemm a=f16[130,70] b=f16[70,300]"),
    "tile-from-pytorchsim.md": ("foobar x=f32[512,768]",),
    "tile-tutorial.md": ("add_rms_norm x=bf16[60,100] residual=bf16[60,100] w=bf16[100]",),
}


def program_on(page: str) -> str:
    (text,) = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return text


@pytest.mark.slow
@pytest.mark.parametrize("page", CASES)
def test_programs_of_a_page(page: str, programs_of: Callable[[str], tuple[Program, ...]]) -> None:
    found = study(programs_of(program_on(page)), {"910b3": load_device("910b3")}, Wanted(cases=CASES[page]))
    assert not [one.error for one in found.results if one.failed]
    assert sum(one.values is not None for one in found.results) > 5


def test_the_tutorial_op_takes_few_lines() -> None:
    assert len([line for line in program_on("tile-from-pytorchsim.md").splitlines() if line]) <= 15
