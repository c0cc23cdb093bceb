"""What an initializer may do wrong: each is an InitializerError that says what, and no op runs after it."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from opreplay.initializers.applying import TEXT_LENGTH, applies, apply
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport, Option
from opreplay.initializers.registry import Registry
from opreplay.replay.ops.inputs import built_in
from opreplay.traces.errors import UsageError


def rule(does: Callable[[InitContext], Any]) -> CustomInit:
    class Made(CustomInit):
        name = "made"
        op_patterns = ("my::op",)

        def initialize(self, context: InitContext) -> Any:
            return does(context)

    return Made()


def call() -> InitContext:
    return InitContext(
        op="my::op", args={"ids": torch.ones(4), "of": [torch.ones(2), None]}, generator=torch.Generator()
    )


def _exits(context: InitContext) -> None:
    raise SystemExit(3)


def _divides(context: InitContext) -> None:
    raise ZeroDivisionError("by zero\nsecond line")


def _resizes(context: InitContext) -> None:
    context.args["ids"].resize_(2)


def _replaces(context: InitContext) -> None:
    context.args["ids"] = torch.zeros(4)  # type: ignore[index]


def _replaces_in_list(context: InitContext) -> None:
    context.args["of"][0] = torch.zeros(2)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (_divides, "^ZeroDivisionError: by zero$"),
        (_exits, "^SystemExit: 3"),
        (_resizes, r"ids was torch.float32\[4\] before and is torch.float32\[2\] now"),
        (_replaces, "ids was replaced"),
        (_replaces_in_list, "of was replaced"),
        (lambda context: 5, "returned int"),
        (lambda context: InitReport(summary=5), "must be text"),  # type: ignore[arg-type]
        (lambda context: InitReport(assumed={"ids": object()}), "must be text"),  # type: ignore[dict-item]
        (lambda context: InitReport(assumed=[1]), "must be text"),  # type: ignore[arg-type]
        (lambda context: InitReport(lengths=(1, 2)), "must be BatchLengths"),  # type: ignore[arg-type]
    ],
)
def test_what_goes_wrong_is_said(does: Callable[[InitContext], Any], said: str) -> None:
    with pytest.raises(InitializerError, match=said):
        apply(rule(does), call())


def test_the_line_of_users_files_is_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def fill(context):\n    raise AttributeError\n")
    with pytest.raises(InitializerError, match=r"^AttributeError \(.*mine.py:2\)$"):
        apply(rule(runpy.run_path(str(file))["fill"]), call())


def test_a_line_of_text_or_nothing_is_a_report() -> None:
    assert apply(rule(lambda context: "four ones"), call()) == InitReport(summary="four ones")
    assert apply(rule(lambda context: None), call()) == InitReport()
    long = apply(rule(lambda context: InitReport(summary="x" * 9999, assumed={"ids": "y" * 9999})), call())
    assert len(long.summary) == len(long.assumed["ids"]) == TEXT_LENGTH


def test_conditions_that_fail_are_said() -> None:
    class Asks(CustomInit):
        name = "asks"
        op_patterns = ("my::op",)

        def applies_to(self, context: InitContext) -> bool:
            raise KeyError("x")

    with pytest.raises(InitializerError, match="asks: applies_to: KeyError"):
        applies(Asks(), call())


@pytest.mark.parametrize(
    ("patterns", "options", "said"),
    [
        ("my::op", (), "not a tuple of names"),
        (("my::op",), (Option(name="n", type=int, default="abc", help=""),), "not of type int"),
        (("my::op",), (Option(name="n", type=int, default=True, help=""),), "not of type int"),
        (
            ("my::op",),
            (Option(name="n", type=str, default="c", choices=("a", "b"), help=""),),
            "not one of its choices",
        ),
        (("my::op",), (Option(name="n", type=int, default=1, help=""),) * 2, "two options with the same name"),
    ],
)
def test_unsound_declarations_are_refused(patterns: Any, options: Any, said: str) -> None:
    kind = type("Odd", (CustomInit,), {"name": "odd", "op_patterns": patterns, "options": options})
    with pytest.raises(UsageError, match=said):
        Registry().register(kind())


@pytest.mark.parametrize("priority", ["high", None, 1.5, True])
def test_a_priority_is_a_whole_number(priority: Any) -> None:
    kind = type("Odd", (CustomInit,), {"name": "odd", "op_patterns": ("my::op",), "priority": priority})
    with pytest.raises(UsageError, match=r"initializer odd has priority .*, which is not a whole number"):
        Registry().register(kind())


@pytest.mark.parametrize("name", ["paged_attention", "cache_slots", "positions", "index", "moe_routing"])
@pytest.mark.parametrize(
    "text", [None, "5", "[]", "[[1, 2], [3]]", '{"a": 1}', "[NaN, 1]", "[0, 0]", "[true, 1]", "[" * 9999]
)
def test_histograms_are_read_before_anything_runs(tmp_path: Path, name: str, text: str | None) -> None:
    path = tmp_path / "counts.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=f"initializer '{name}': .*counts.json"):
        built_in().configure([f"{name}.distribution=histogram", f"{name}.histogram={path}"])


def test_a_histogram_that_is_missing_or_has_no_effect_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text("[[128, 3], [4096, 1]]")
    with pytest.raises(UsageError, match="needs a file"):
        built_in().configure(["paged_attention.distribution=histogram"])
    with pytest.raises(UsageError, match="needs distribution=histogram"):
        built_in().configure([f"paged_attention.histogram={path}"])
    built_in().configure(["paged_attention.distribution=histogram", f"paged_attention.histogram={path}"])
