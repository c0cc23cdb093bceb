"""Files that a trace is expected in place of."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from opreplay.replay.plan.inputs import open_input, open_trace, plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.traces.errors import Malformed
from opreplay.traces.samples import sample_path


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


def test_patterns_that_match_no_selected_op_are_kept_in_the_plan() -> None:
    read = open_input(str(sample_path("transformer_infer")))
    selection = Selection(include=("aten::rms_norm", "aten::no_norm"), exclude=("aten::none*", "aten::s*"))
    plan = plan_of(read, selection, device="cpu")
    assert plan.unmatched == ("--include aten::no_norm", "--exclude 'aten::none*'")
    of_plan = plan_of(plan, Selection(exclude=("aten::mm",)), device="cpu")
    assert of_plan.unmatched == ("--exclude aten::mm",)
    assert plan_of(plan, Selection(), device="cpu").ops == plan.ops
