"""Users' initializers: decorator, file, module, entry point, TraceLens's interface; the tutorial runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from opreplay.initializers import extensions, user_code
from opreplay.initializers.base import CustomInit, InitContext, InitReport
from opreplay.initializers.extensions import register_initializer
from opreplay.replay.ops.inputs import open_registry
from opreplay.traces.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "initializers.md"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(user_code, "entry_points", lambda group: ())
    extensions.clear_registrations()
    yield
    extensions.clear_registrations()


def context(op: str, **args: Any) -> InitContext:
    return InitContext(op=op, args=args, generator=torch.Generator(), keyword_only=frozenset({"scale"}))


@pytest.fixture
def tutorial(tmp_path: Path) -> Path:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "my_init.py"
    file.write_text("\n".join(code))
    return file


def test_the_tutorial_works(tutorial: Path) -> None:
    registry = open_registry([str(tutorial)], ["jagged_lengths.longest=16"])
    call = context("mylib::jagged_sum", values=torch.zeros(10, 2), lengths=torch.zeros(4, dtype=torch.int64))
    rule = registry.find(call)
    assert rule is not None
    report = registry.apply(rule, call)
    assert call.args["lengths"].sum() == 10
    assert "lengths" in report.assumed
    assert open_registry([str(tutorial)])["jagged_lengths"].priority == 1, "a file may be given again"


def test_a_module_that_fails_is_a_usage_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    for name in (str(broken), "no.such.module", str(tmp_path / "missing.py")):
        with pytest.raises(UsageError, match="--plugin"):
            open_registry([name])


class Mine(CustomInit):
    """A user's rule for an op that a built-in has."""

    name = "mine"
    op_patterns = ("aten::embedding",)
    priority = 5

    def initialize(self, context: InitContext) -> InitReport:
        return InitReport(summary="mine")


def test_priority_over_built_ins() -> None:
    register_initializer(Mine)
    call = context("aten::embedding", weight=torch.zeros(4, 2), indices=torch.zeros(3, dtype=torch.int64))
    rule = open_registry().find(call)
    assert rule is not None
    assert rule.name == "mine"


def test_duplicates_are_refused() -> None:
    register_initializer(Mine)
    with pytest.raises(UsageError, match="already"):
        register_initializer(type("Other", (Mine,), {}))
    register_initializer(type("Same", (Mine,), {"name": "same_op"}))
    with pytest.raises(UsageError, match="both name"):
        open_registry()


@pytest.mark.parametrize(
    ("base", "more"), [("CustomInit", ""), ("object", ""), ("CustomInit", "adapts, written = ('self',), ('out',)")]
)
def test_an_edited_notebook_cell_replaces_its_initializer(base: str, more: str) -> None:
    cell = """
@register_initializer
class Mine({base}):
    name, op_patterns = "mine", ("aten::relu",)
    {more}

    def initialize(self, context):
        return {value}
"""

    def run(value: int, at: str, name: str = "__main__") -> None:
        names = {"__name__": name, "CustomInit": CustomInit, "register_initializer": register_initializer}
        exec(compile(cell.format(base=base, more=more, value=value), at, "exec"), names)  # noqa: S102 - as a notebook runs it

    for value, at in ((1, "<cell 1>"), (2, "<cell 2>"), (2, "<cell 2>")):
        run(value, at)
        kind: Any = extensions.registered()["mine"][0]
        original = kind if base == "CustomInit" else kind.adapts
        assert original().initialize(None) == value
    with pytest.raises(UsageError, match="already an initializer"):
        run(3, "<cell 3>", name="another_module")


def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name, value = "mine", "package:Mine"

        @staticmethod
        def load() -> type:
            return Mine

    monkeypatch.setattr(user_code, "entry_points", lambda group: [Entry] if group == "opreplay.initializers" else [])
    assert open_registry()["mine"].priority == 5
    with pytest.raises(UsageError, match="unknown"):
        open_registry(plugins=False)["mine"]


def test_classes_written_for_tracelens() -> None:
    @register_initializer
    class Theirs:
        op_patterns = ["aten::embedding"]  # noqa: RUF012 - as TraceLens's users write it

        def applies_to(self, replayer: Any) -> bool:
            return replayer.event["name"] == "aten::embedding"

        def initialize(self, replayer: Any, **kwargs: Any) -> str:
            replayer.args[1].fill_(2)
            replayer.kwargs["scale"].fill_(3)
            assert replayer.event_replay_IR["list_pos_args"][1]["arg_name"] == "indices"
            return "all twos"

    call = context("aten::embedding", weight=torch.zeros(4, 2), indices=torch.zeros(3), scale=torch.zeros(1))
    registry = open_registry()
    rule = registry.find(call)
    assert rule is not None
    assert registry.apply(rule, call).summary == "all twos"
    assert call.args["indices"].tolist() == [2, 2, 2]
    assert call.args["scale"].item() == 3
    with pytest.raises(UsageError, match="not an initializer"):
        register_initializer(int)
