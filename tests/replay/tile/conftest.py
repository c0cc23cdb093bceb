"""Programs from texts, each forgotten after its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opreplay.replay.ascend.custom.estimators import clear_registrations as clear_estimators
from opreplay.replay.plugins import clear_registrations
from opreplay.replay.tile.program import Program
from opreplay.replay.tile.registration import forget_programs
from opreplay.replay.tile.study import load_programs

HEAD = "import torch\nfrom opreplay import tile\n\n"


@pytest.fixture
def programs_of(tmp_path: Path) -> Iterator[Callable[[str], tuple[Program, ...]]]:
    """Write a text to a file and load the programs that it defines."""

    def load(text: str) -> tuple[Program, ...]:
        file = tmp_path / "mine.py"
        file.write_text(HEAD + text)
        return load_programs(str(file))

    yield load
    forget_programs()
    clear_registrations()
    clear_estimators()
