"""Programs are written as Triton kernels for ranks that they are right with; wrong ones are refused with their line."""

from __future__ import annotations

import linecache

from opreplay.replay.ascend import load_device
from opreplay.replay.tile.cases import parse_case
from opreplay.replay.tile.emit.checked import emit_right

DEVICE = load_device("910b3")
BIASED = """
from opreplay import tile


@tile.kernel("mine::biased", reference=lambda x, bias: x + bias, dtypes=["float32"])
def biased(x, bias, y: tile.Out, *, rows=8):
    b = tile.load(bias)
    for r in tile.blocks(x.shape[0], rows):
        tile.store(y[r], tile.load(x[r]) + b)
"""
RACY = """
from opreplay import tile


@tile.kernel("mine::total", reference=lambda x: x.sum(0, keepdim=True), dtypes=["float32"])
def total(x, y: tile.Out, *, rows=64):
    for r in tile.blocks(x.shape[0], rows):
        tile.store(y, tile.col_sum(tile.load(x[r])))  # here
"""
UNKNOWN = """
from opreplay import tile


@tile.kernel("tile::unknown", results=lambda x: x)
def unknown(x, y: tile.Out):
    for r in tile.blocks(x.shape[0], 8):
        tile.store(y[r], tile.load(x[r]))
"""


def test_a_program_without_cases_is_written_for_the_ranks_that_it_is_right_with(programs_of) -> None:
    """It was written for a bias that is a matrix."""
    emitted = emit_right(programs_of(BIASED), [], DEVICE)
    assert emitted.programs == ("biased",)
    assert "bias.dim() == 1" in emitted.text
    assert "bias.dim() == 2" not in emitted.text


def test_a_case_says_the_ranks(programs_of) -> None:
    programs = programs_of(BIASED)
    case = parse_case("biased x=f32[8,64] bias=f32[1,64]", programs)
    emitted = emit_right(programs, [case], DEVICE)
    assert "bias.dim() == 2" in emitted.text
    assert "bias.dim() == 1" not in emitted.text


def test_a_program_with_a_race_is_refused_with_its_line(programs_of) -> None:
    emitted = emit_right(programs_of(RACY), [], DEVICE)
    (refusal,) = emitted.refused
    assert emitted.programs == ()
    assert "# here" in linecache.getline(refusal.program.place.rpartition(":")[0], refusal.line)
    assert "race" in refusal.reason


def test_without_case_and_reference_nothing_tells_the_ranks(programs_of) -> None:
    programs = programs_of(UNKNOWN)
    assert "--case" in emit_right(programs, [], DEVICE).refused[0].reason
    assert emit_right(programs, [parse_case("unknown x=f32[64,64]", programs)], DEVICE).programs == ("unknown",)
