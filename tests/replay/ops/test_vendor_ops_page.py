"""The example of docs/vendor-ops.md is real code; the counts are tested by tests/guards/test_document_figures.py."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_example_of_the_page_is_the_code_of_the_op() -> None:
    page = (ROOT / "docs" / "vendor-ops.md").read_text(encoding="utf-8")
    examples = re.findall(r"^ *```python\n( *@stands_for.*?) *```", page, re.S | re.M)
    assert examples
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "replay" / "ops").glob("*/reference_*.py")]
    assert all(any(textwrap.dedent(example) in source for source in sources) for example in examples)
