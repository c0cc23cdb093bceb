"""docs/vendor-ops.md lists exactly the ops that have a stand-in, and its example works."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from opreplay.replay.ops import catalog, table
from opreplay.replay.ops import register as reference

PAGE = Path(__file__).parents[3] / "docs" / "vendor-ops.md"


def test_the_page_lists_what_is_implemented() -> None:
    parts = PAGE.read_text().split("\n### ")[1:]
    sections = [re.fullmatch(r"(\w+) \((.*), (\d+)\)\n\n```text\n([^`]*)```\n*", part) for part in parts]
    assert all(sections)
    listed = {found[1]: tuple(re.findall(r"\w+", found[4])) for found in sections if found}
    found = {ns: tuple(name.partition("::")[2] for name in names) for ns, names in reference.implemented().items()}
    assert listed == found
    for section in filter(None, sections):
        assert section[2] == catalog.library_of(section[1])
        assert int(section[3]) == len(found[section[1]])


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
