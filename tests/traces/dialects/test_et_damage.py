"""Damage inside one node of an ExecutionTrace: it is repaired or counted, and every other node is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.traces import Trace, read_trace

COUNT = 12
NAMES = {f"aten::op{i}" for i in range(COUNT)}


def node(number: int) -> dict[str, Any]:
    inputs = {"values": [[1, 2, 0, 4, 4, "cpu"], 7], "shapes": [[4], []], "types": ["Tensor(float)", "Int"]}
    attrs = [{"name": "rf_id", "type": "uint64", "value": number}]
    nothing: dict[str, Any] = {"values": [], "shapes": [], "types": []}
    head = {"id": number + 2, "name": f"aten::op{number}", "ctrl_deps": 1}
    return {**head, "inputs": inputs, "outputs": nothing, "attrs": attrs}


def texts() -> list[str]:
    return [json.dumps(node(number)) for number in range(COUNT)]


def read(folder: Path, parts: list[str]) -> Trace:
    path = folder / "et.json"
    path.write_text('{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [' + ",\n".join(parts) + '], "time": "x"}')
    return read_trace(path)


def names(trace: Trace) -> set[str]:
    return {trace.signatures[i].name for i in trace.ops.signature}


@pytest.mark.parametrize("place", [0, 5, COUNT - 1])
@pytest.mark.parametrize(
    "name",
    [
        '{"device": "cpu", "dtype": "float32"}(12): run',
        'f(["a", "b"], x)',
        'say "hi"}',
        '{"a"}, {"b"}',
        'x"}]}',
        'a "b": "c", d',
    ],
)
def test_quotes_and_brackets_in_a_name(tmp_path: Path, name: str, place: int) -> None:
    parts = texts()
    parts[place] = parts[place].replace(f"aten::op{place}", name)
    trace = read(tmp_path, parts)
    assert names(trace) == NAMES - {f"aten::op{place}"} | {name}
    assert trace.info.report.losses == {}
    assert trace.info.report.repairs == {"unescaped quote": 1}


@pytest.mark.parametrize("place", [0, 5, COUNT - 1])
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"ctrl_deps": 1,', '"ctrl_deps": 1', "missing comma"),
        ('"ctrl_deps": 1,', '"ctrl_deps": 1,,', "superfluous comma"),
        ('"Int"]', '"Int",]', "superfluous comma"),
        ('"Tensor(float)",', '"Tensor(float)"', "missing comma"),
        ('"values": [[', '"values": [,[', "superfluous comma"),
        ("}]}", "},]}", "superfluous comma"),
    ],
)
def test_commas_too_many_and_too_few(tmp_path: Path, old: str, new: str, reason: str, place: int) -> None:
    parts = texts()
    parts[place] = parts[place].replace(old, new, 1)
    trace = read(tmp_path, parts)
    assert names(trace) == NAMES
    assert trace.info.report.losses == {}
    assert trace.info.report.repairs == {reason: 1}
    assert trace.signatures[place].dims == ((4,), ())


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(["delete", "insert", "replace"]),
    at=st.integers(1, 300),
    char=st.sampled_from([*'",:[]\\ \x01x1', '"}', '"],', '{"a": "b"}']),
    place=st.sampled_from([0, 5, COUNT - 1]),
)
def test_damage_of_one_node_costs_no_other(
    tmp_path_factory: pytest.TempPathFactory, kind: str, at: int, char: str, place: int
) -> None:
    parts = texts()
    text = parts[place]
    at = 1 + at % (len(text) - 2)
    rest = text[at:] if kind == "insert" else text[at + 1 :]
    parts[place] = text[:at] + ("" if kind == "delete" else char) + rest
    trace = read(tmp_path_factory.mktemp("damage"), parts)
    others = NAMES - {f"aten::op{place}"}
    assert others <= names(trace), parts[place]
    assert len(trace.ops) == COUNT or trace.info.report.losses, parts[place]
