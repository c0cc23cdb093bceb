"""Shares are written as "19 %" everywhere, which Python's own format for them is not."""

from __future__ import annotations

import ast
import re

import pytest

OWN_FORMAT = re.compile(r"\{[^{}]*:[^{}]*%\}")


@pytest.mark.slow
def test_no_share_is_written_by_the_format_of_python(sources) -> None:
    for source in sources:
        for node in ast.walk(source.tree):
            spec = node.format_spec if isinstance(node, ast.FormattedValue) else None
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            wrong = OWN_FORMAT.search(text) or (spec is not None and ast.unparse(spec).rstrip("'\"").endswith("%"))
            assert not wrong, f"{source.path}:{node.lineno}: write f'{{100 * share:.0f}} %'"
