"""A test that is skipped or expected to fail says why; markers are declared."""

from __future__ import annotations

import ast

import pytest

SKIPS = {"skip", "skipif", "xfail"}


@pytest.mark.slow
def test_every_skip_has_a_reason(test_sources) -> None:
    silent = []
    for source in test_sources:
        for node in ast.walk(source.tree):
            for call in [node] if isinstance(node, ast.Call) else []:
                name = ast.unparse(call.func)
                if name.split(".")[-1] in SKIPS and name.startswith("pytest.") and not has_reason(name, call):
                    silent.append(f"{source.path}:{call.lineno}")
            for decorator in getattr(node, "decorator_list", []):
                if ast.unparse(decorator) in {f"pytest.mark.{skip}" for skip in SKIPS}:
                    silent.append(f"{source.path}:{decorator.lineno}")
    assert not silent, silent


def has_reason(name: str, call: ast.Call) -> bool:
    if any(keyword.arg == "reason" for keyword in call.keywords):
        return True
    return bool(call.args) and not name.endswith("skipif")
