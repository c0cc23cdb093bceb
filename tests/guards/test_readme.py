"""The README is true: its set-up commands exist, its console snippets run, and its output looks like theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.document_outputs import FILE, Shown, excerpt, output_of, shown_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = list(shown_in(README))
COMMANDS = re.findall(r"^\$ opreplay (.+)$", README, re.MULTILINE)
FILES = dict(FILE.findall(README))
SIMULATED = re.compile(
    r"^([0-9a-f]{6}) .*?(~?[\d.]+ [mµn]?s  \w[\w ]*?)  +aten::|^(\w+) .*% .* ([\d.]+ [mµn]?s)$", re.MULTILINE
)
"""The predictions that are printed: id, time and bound of an op, or name and time of a trace."""
COVERAGE = r"replayed \d+ of \d+ ops = [\d.]+ % of (device|host) time"


def test_set_up_is_two_commands() -> None:
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_demo_is_the_command_that_the_readme_shows() -> None:
    sample = re.search(r"^SAMPLE := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sample is not None
    assert f"run {sample[1]} --soc 910b3" in COMMANDS
    assert re.search(COVERAGE, README)


def test_all_blocks_are_generated() -> None:
    assert [block.command.removeprefix("opreplay ") for block in BLOCKS] == COMMANDS


@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.measures], ids=lambda block: block.command)
def test_what_is_shown_is_printed(block: Shown) -> None:
    assert excerpt(output_of(block.command, FILES), block.lines) == block.text, "run benchmarks.document_outputs"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.measures], ids=lambda block: block.command)
def test_a_command_that_measures_runs(block: Shown) -> None:
    """The same path through the program, in less time."""
    printed = output_of(f"{block.command} --top 4 --set op_time=5ms", FILES)
    assert re.search(COVERAGE, printed)
    shown, found = (
        {op or trace: of_op or of_trace for op, of_op, trace, of_trace in SIMULATED.findall(text)}
        for text in (block.text, printed)
    )
    both = shown.keys() & found.keys()
    assert {op: shown[op] for op in both} == {op: found[op] for op in both}
    assert both
