"""The example of docs/vendor-ops.md works; its counts are figures of tests/guards/test_document_figures.py."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from opreplay.replay.ops import table

PAGE = Path(__file__).parents[3] / "docs" / "vendor-ops.md"


def test_the_example_of_the_page_works() -> None:
    example = re.search(
        r"```python\n(from opreplay.replay.ops.register import reference.*?)```", PAGE.read_text(), re.S
    )
    assert example is not None
    try:
        scope: dict[str, object] = {}
        exec(compile(example[1], str(PAGE), "exec"), scope)  # noqa: S102 (our own page)
        version = table.row("mylib::scale_rows").references[0]
        out = torch.empty(2, 3)
        version.run(out, torch.ones(2, 3), torch.tensor([2.0, 3.0]))
        assert out.tolist() == [[2, 2, 2], [3, 3, 3]]
    finally:
        table._rows.pop("mylib::scale_rows", None)
