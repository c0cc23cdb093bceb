"""Files that a trace is expected in place of."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from opreplay.replay.plan.inputs import open_input, open_trace
from opreplay.traces.errors import Malformed


@pytest.mark.parametrize("read", [open_input, open_trace])
def test_a_program_of_torch_export_is_told_and_capture_named(read, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/archive_format", "pt2")
    with pytest.raises(Malformed, match=r"torch\.export program") as caught:
        read(str(path))
    assert caught.value.hint
    assert f"opreplay capture {path} --trust" in caught.value.hint


def test_the_name_alone_makes_no_program(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_text('{"traceEvents": [')
    with pytest.raises(Malformed) as caught:
        open_input(str(path))
    assert "torch.export" not in str(caught.value)
