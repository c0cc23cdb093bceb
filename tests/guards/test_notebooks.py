"""The notebooks of the documentation run from top to bottom, show pages and plots, and are kept without outputs."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.ipynb"))


def code_of(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def shown_by(cell: str, names: dict[str, Any]) -> str:
    """Run one cell; return the HTML of its last expression, as a notebook shows it."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)  # noqa: S102 (a notebook of ours)
    value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
    return "" if value is None else value._repr_html_()


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What bokeh hands to IPython, which is not needed here."""
    display, taken = ModuleType("IPython.display"), []
    display.publish_display_data = lambda data, *_, **__: taken.append(data)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(
    notebook: Path, published: list[dict[str, Any]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bokeh.io import curdoc
    from bokeh.io.state import curstate

    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    displayed: list[Any] = []
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: displayed.append(text))
    names: dict[str, Any] = {}
    try:
        shown = [shown_by(cell, names) for cell in code_of(notebook)]
    finally:
        curdoc().clear()
        curstate().reset()
    assert any(html.startswith("<iframe") for html in shown)
    assert any("<table" in html or "<pre" in html for html in shown)
    assert sum("text/html" in data for data in published) >= 3
    assert not displayed, "rich displays what a cell's value shows once more"
    assert not [record.message for record in caplog.records if record.name.startswith("bokeh")]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_kept(notebook: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells if "outputs" in cell)
