"""An opened trace: a table at a prompt and in a notebook, and its ops by name, glob, id and rank."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opreplay
from opreplay.replay.session import trace as session_trace
from opreplay.traces.errors import UsageError
from opreplay.traces.samples import sample_path

MM = {
    "Input Dims": [[8, 4], [4, 2]],
    "Input type": ["float", "float"],
    "Input Strides": [[4, 1], [2, 1]],
    "Concrete Inputs": ["", ""],
}


def event(name: str, ts: int, dur: int = 2, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": args}


@pytest.fixture
def trace(tmp_path: Path) -> opreplay.OpenTrace:
    relu = {key: value[:1] for key, value in MM.items()}
    events = [
        event("aten::mm", 1, 9, **MM),
        event("aten::relu", 20, 5, **relu),
        event("<b>bold</b>::\x1b[31m", 30, 1, **relu),
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return opreplay.open(path, select="all")


@pytest.mark.parametrize("wanted", ["aten::relu", "aten::r*", "#2", 1, -2, np.int64(1)])
def test_an_op_by_name_glob_rank_and_place(trace: opreplay.OpenTrace, wanted: str | int) -> None:
    assert trace[wanted].name == "aten::relu"


def test_an_op_by_id(trace: opreplay.OpenTrace) -> None:
    assert trace[trace[0].id[:6]].name == "aten::mm"
    assert [op.name for op in trace.find("aten::*")] == ["aten::mm", "aten::relu"]
    assert [op.id for op in trace] == [op.id for op in trace.plan.ops]
    assert len(trace) == 3


@pytest.mark.parametrize("wanted", ["aten::conv", "#4", "#0"])
def test_no_op_is_a_usage_error(trace: opreplay.OpenTrace, wanted: str) -> None:
    with pytest.raises(UsageError):
        trace[wanted]


def test_the_repr_is_a_table(trace: opreplay.OpenTrace) -> None:
    head, _, table = repr(trace).partition("\n\n")
    assert "would replay 2 of 3 ops" in head
    lines = table.splitlines()
    assert lines[0].split()[:3] == ["#", "id", "share"]
    assert lines[2].startswith("1")
    assert "aten::mm" in lines[2]
    assert "\x1b" not in repr(trace)


def test_a_notebook_gets_html_in_which_names_are_text(trace: opreplay.OpenTrace) -> None:
    html = trace._repr_html_()
    assert html.startswith("<pre")
    assert html.endswith("</pre>")
    assert "aten::mm" in html
    assert "<b>" not in html
    assert "&lt;b&gt;" in html
    assert "\x1b" not in html


def test_a_filter_leaves_ops_out() -> None:
    path = sample_path("transformer_infer")
    assert {op.name for op in opreplay.open(path, include=["aten::rms*"])} == {"aten::rms_norm"}
    assert len(opreplay.open(path, top=2)) == 2


@pytest.mark.parametrize("options", [{}, {"exclude": "aten::mm"}])
def test_an_op_can_be_included_by_id_and_by_rank(trace: opreplay.OpenTrace, options: Any) -> None:
    relu = trace["aten::relu"]
    rank = "#1" if options else "#2"
    for include in (relu.id, relu.id[:6], rank, [rank]):
        opened = opreplay.open(trace.read.info.path, select="all", include=include, **options)
        assert [op.id for op in opened] == opened.frame()["id"].tolist() == [relu.id]
    with pytest.raises(UsageError):
        opreplay.open(trace.read.info.path, select="all", include="#9").frame()


def test_a_plan_and_a_trace_that_were_read_can_be_opened(trace: opreplay.OpenTrace) -> None:
    assert opreplay.open(trace.plan)["aten::mm"].id == trace["aten::mm"].id
    assert opreplay.open(trace.read)["aten::mm"].id == trace["aten::mm"].id
    assert opreplay.plan(trace) is trace.plan


def test_a_plan_is_one_line_at_a_prompt() -> None:
    plan = opreplay.plan(sample_path("transformer_infer"))
    assert repr(plan).startswith("ReplayPlan of 'transformer_infer.json.gz': 89 ops")
    assert len(repr(plan)) < 100


@pytest.mark.parametrize("ask", [opreplay.open, opreplay.plan, opreplay.simulate])
@pytest.mark.parametrize("options", [{"top": 0}, {"min_share": 2.0}, {"plugins": "no_such_plugin.py"}])
def test_options_are_refused_before_a_file_is_read(ask: Any, options: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"top is 0|min_share is 2|no_such_plugin"):
        ask(tmp_path / "missing.json", **options)


def test_open_and_the_functions_that_open_take_the_same_options() -> None:
    parameters = inspect.signature(opreplay.open).parameters.values()
    named = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert named == set(session_trace.Selecting.__annotations__)


@pytest.mark.parametrize("wrong", [None, 5, {"a.json": 1}, b"a.json", ["a.json", None]])
def test_what_is_no_name_is_a_usage_error(wrong: Any) -> None:
    sample = sample_path("transformer_infer")
    for ask in (
        lambda: opreplay.open(wrong),
        lambda: opreplay.open(sample, include=wrong),
        lambda: opreplay.simulate(sample, wrong),
    ):
        with pytest.raises(UsageError, match="neither a string nor a list of strings"):
            ask()


def test_plugins_and_devices_may_be_paths(tmp_path: Path) -> None:
    plugin, folder = tmp_path / "nothing_registered.py", tmp_path / "plugins"
    plugin.write_text("")
    folder.mkdir()
    opened = opreplay.open(sample_path("transformer_infer"), plugins=plugin, custom_op_dirs=[folder])
    assert opened.setting.plugins == (str(plugin),)


def test_no_option_applies_to_a_trace_that_is_open(trace: opreplay.OpenTrace) -> None:
    with pytest.raises(UsageError, match="top only applies"):
        opreplay.simulate(trace, top=0)


@pytest.mark.parametrize("opened", [opreplay.open, opreplay.inspect, opreplay.timeline, opreplay.step])
def test_what_a_file_lacks_is_a_warning(opened: Any, tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [event("aten::mm", 20 * at, 9, **MM) for at in range(9)]})
    path = tmp_path / "cut.json"
    path.write_text(text[: len(text) // 2])
    with pytest.warns(UserWarning, match="truncated file"):
        opened(path)


@pytest.mark.parametrize("function", [opreplay.plan, opreplay.run, opreplay.simulate])
def test_an_option_that_does_not_exist_is_refused_before_the_file_is_read(function: Any) -> None:
    with pytest.raises(TypeError, match="no option 'incldue'; it has device, select, include"):
        function("/nowhere.json", incldue="aten::mm")
