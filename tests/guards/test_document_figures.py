"""Figures of documents are those of the exams and of the program, and no accuracy is typed by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.document_figures import BLOCKS, DOCUMENTS, MARK, RESULTS, written

BY_HAND = re.compile(
    r"(?:median|mean|weighted) (?:error|APE)[^|.]{0,40}\d+(?:\.\d+)? %"
    r"|(?:error|off by)[^|.]{0,20}\d+(?:\.\d+)? %"
    r"|\d+(?:\.\d+)? %[^|.]{0,30}(?:in|within|inside) (?:the|their|its) (?:80 % )?band"
)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_have_the_figures_of_the_program(root: Path, name: str) -> None:
    text = (root / name).read_text(encoding="utf-8")
    assert MARK.search(text) is not None
    assert written(text, json.loads(RESULTS.read_text(encoding="utf-8"))) == text, "run `make docs-figures`"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_accuracy_of_a_prediction_is_typed_by_hand(root: Path, name: str) -> None:
    text = MARK.sub("", (root / name).read_text(encoding="utf-8"))
    typed = BY_HAND.findall(" ".join(text.split()))
    assert not typed, f"generate them (`benchmarks/document_figures.py`) or leave them out: {typed}"


@pytest.mark.parametrize(
    "text", ["median error of 12 %", "is off by 40 %", "80 % lie within the band", "errors were 5.6 %"]
)
def test_such_a_figure_would_be_found(text: str) -> None:
    assert BY_HAND.search(text)


def test_every_block_is_somewhere(root: Path) -> None:
    used = {mark[2] for name in DOCUMENTS for mark in MARK.finditer((root / name).read_text(encoding="utf-8"))}
    assert used == set(BLOCKS), f"blocks without a mark, or marks without a block: {used ^ set(BLOCKS)}"


def test_a_mark_takes_what_the_results_say() -> None:
    results = {
        "blind": {name: {"median": 12.5} for name in ("calls_known", "calls_of_new_sources", "calls_of_new_ops")}
    }
    text = "before\n<!-- figures: blind_sentence -->\nold\n<!-- /figures -->\nafter"
    new = written(text, results)
    assert "12.5 %" in new
    assert "old" not in new
    assert written(new, results) == new
    assert written(text.replace("old\n", ""), results) == new
    with pytest.raises(KeyError):
        written(text.replace("blind_sentence", "nothing"), results)
