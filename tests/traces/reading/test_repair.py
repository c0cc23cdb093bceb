"""Damage inside one event: it is repaired or counted, and every other event of the file is kept."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opreplay.traces import Trace, read_trace
from opreplay.traces.reading.repair import repairs
from opreplay.traces.summary import summarize
from tests.traces.events import write

OTHERS = Path(__file__).parents[1] / "dialects" / "others"
COUNT = 12


def event(number: int) -> dict[str, Any]:
    args = {"External id": number, "Input Dims": [[4, 4], []], "Input type": ["float", ""], "Call stack": "f.py(3): g"}
    name = f"aten::op{number}"
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10 * number, "dur": 5, "args": args}


def texts(indent: int | None) -> list[str]:
    return [json.dumps(event(number), indent=indent) for number in range(COUNT)]


def read(folder: Path, parts: list[str], *, form: str, block: int = 1 << 18) -> Trace:
    joined = ",\n".join(parts)
    text = f"[{joined}]" if form == "list" else f'{{"schemaVersion": 1, "traceEvents": [{joined}], "traceName": "x"}}'
    return read_trace(write(folder, text.encode()), _block_bytes=block)


def names(trace: Trace) -> set[str]:
    return {trace.signatures[i].name for i in trace.ops.signature}


@pytest.mark.parametrize("name", ["quotes_in_name.json", "trailing_comma_in_args.json"])
def test_given_files_lose_nothing(name: str) -> None:
    summary = summarize(read_trace(OTHERS / name))
    assert (summary.cpu_ops, summary.kernels, summary.categories["cuda_runtime"], summary.losses) == (3, 3, 3, {})


@pytest.mark.slow
@pytest.mark.parametrize("form", ["list", "object"])
@pytest.mark.parametrize("block", [64, 1 << 18])
@pytest.mark.parametrize("place", [0, 5, COUNT - 1])
@pytest.mark.parametrize(
    "name",
    [
        '{"device": "cpu", "dtype": "float32"}(12): run',
        'f({"a": "b"}]',
        'f(["a", "b"], x)',
        'say "hi"}',
        '"quoted"',
        '{"a"}(1): f',
        '[{"name": "x", "id": 5}]: g',
        'a "b": "c", d',
        '{"a"}, {"b"}',
        'x"}]}',
    ],
)
def test_quotes_and_brackets_in_a_name(tmp_path: Path, name: str, place: int, block: int, form: str) -> None:
    parts = texts(None)
    parts[place] = parts[place].replace(f"aten::op{place}", name)
    trace = read(tmp_path, parts, form=form, block=block)
    assert names(trace) == {f"aten::op{i}" for i in range(COUNT) if i != place} | {name}
    assert trace.info.report.losses == {}
    assert trace.info.report.repairs == {"unescaped quote": 1}


@pytest.mark.slow
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("form", ["list", "object"])
@pytest.mark.parametrize("place", [0, 5, COUNT - 1])
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"cpu_op",', '"cpu_op",,', "superfluous comma"),
        ('"cpu_op",', '"cpu_op"', "missing comma"),
        ('"g"', '"g",', "superfluous comma"),
        ('g"', 'g", ', "superfluous comma"),
        ('"pid": 1,', '"pid": 1', "missing comma"),
        ('"args": {', '"args": {,', "superfluous comma"),
        ('"float",', '"float"', "missing comma"),
        ('"float",', '"float",,', "superfluous comma"),
        ('"Input Dims": [', '"Input Dims": [,', "superfluous comma"),
    ],
)
def test_commas_too_many_and_too_few(
    tmp_path: Path, old: str, new: str, reason: str, place: int, form: str, indent: int | None
) -> None:
    parts = texts(indent)
    if old not in parts[place]:
        old, new = 'g"', 'g",'
    parts[place] = parts[place].replace(old, new, 1)
    trace = read(tmp_path, parts, form=form)
    assert names(trace) == {f"aten::op{i}" for i in range(COUNT)}
    assert trace.info.report.losses == {}
    assert trace.info.report.repairs == {reason: 1}
    assert trace.signatures[place].dims == ((4, 4), ())


@pytest.mark.parametrize("form", ["list", "object"])
def test_a_file_with_its_end_is_not_truncated(tmp_path: Path, form: str) -> None:
    parts = texts(None)
    parts[-1] = parts[-1].replace('"ts":', '"ts"')
    trace = read(tmp_path, parts, form=form)
    assert trace.info.report.losses == {"broken event": 1}
    assert len(trace.ops) == COUNT - 1


@pytest.mark.parametrize("between", ["", ",,", ", ,\n", "\n"])
def test_commas_between_events(tmp_path: Path, between: str) -> None:
    parts = texts(None)
    parts[4:6] = [f"{parts[4]}{between}{parts[5]}"]
    trace = read(tmp_path, parts, form="object")
    assert names(trace) == {f"aten::op{i}" for i in range(COUNT)}
    assert sum(trace.info.report.repairs.values()) == 1
    assert trace.info.report.losses == {}


def damaged(text: str, kind: str, at: int, char: str) -> str:
    at %= len(text)
    if kind == "delete":
        return text[:at] + text[at + 1 :]
    if kind == "double":
        return text[:at] + text[at] + text[at:]
    if kind == "insert":
        return text[:at] + char + text[at:]
    if kind == "replace":
        return text[:at] + char + text[at + 1 :]
    return text[: max(1, at)]  # the rest of the event is missing


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(["delete", "double", "insert", "replace", "cut"]),
    at=st.integers(0, 400),
    char=st.sampled_from([*'",:{}[]\\ \x01\nx1', '"}', '"],', '{"a": "b"}', "},{", "]}", "\u2028", "nan"]),
    place=st.sampled_from([0, 5, COUNT - 1]),
    form=st.sampled_from(["list", "object"]),
    block=st.sampled_from([64, 1 << 18]),
    indent=st.sampled_from([None, 1]),
)
@example(kind="delete", at=0, char="", place=5, form="object", block=1 << 18, indent=None)
def test_damage_of_one_event_costs_no_other(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    at: int,
    char: str,
    place: int,
    form: str,
    block: int,
    indent: int | None,
) -> None:
    parts = texts(indent)
    parts[place] = damaged(parts[place], kind, at, char)
    trace = read(tmp_path_factory.mktemp("damage"), parts, form=form, block=block)
    others = {f"aten::op{i}" for i in range(COUNT) if i != place}
    assert others <= names(trace), parts[place]
    report = trace.info.report
    kept = len(names(trace) - others) > 0 or trace.info.events > COUNT - 1
    assert kept or report.losses, parts[place]


def test_what_cannot_be_repaired_is_given_up_soon() -> None:
    pairs = ",".join(f'"k{i}": ["v{i}", "w"]' for i in range(300))
    texts = [f'{{"ph": "X", "args": {{{pairs}}} zzz', '{"a":' * 50_000, "[" * 100_000, '{"name": "' + '"b, ' * 50_000]
    begin = time.process_time()
    assert [list(repairs(text.encode())) for text in texts] == [[]] * 4
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    ("damaged", "value", "reasons"),
    [
        (
            rb'{"name": "say "hi" \ there", "id": 3}',
            {"name": 'say "hi" \\ there', "id": 3},
            {"unescaped quote", "unescaped backslash"},
        ),
        (rb'{"name": "a "b", c", "id": 1}', {"name": 'a "b", c', "id": 1}, {"unescaped quote"}),
        (rb'{"v": ["a "x" b", "y"]}', {"v": ['a "x" b', "y"]}, {"unescaped quote"}),
        (
            rb'{"id": 1 "n": "x" "a": [1 2, {"b": 1}{"c": 2}]}',
            {"id": 1, "n": "x", "a": [1, 2, {"b": 1}, {"c": 2}]},
            {"missing comma"},
        ),
        (rb'{"a": nan, "b": [-inf]}', {"a": "nan", "b": ["-inf"]}, {"NaN or infinity"}),
        (b'{"a": "\xff\x01"}', {"a": "\ufffd "}, {"invalid UTF-8", "control character in a string"}),
        (rb'{"p": "C:\dir\new"}', {"p": "C:\\dir\new"}, {"unescaped backslash"}),
    ],
)
def test_any_object(damaged: bytes, value: Any, reasons: set[str]) -> None:
    *_, (text, found) = repairs(damaged, None)
    assert json.loads(text) == value
    assert set(found) == reasons


@pytest.mark.parametrize("damaged", [b'{"a": 1', b'{"a": "x', b'{"a": [1, 2'])
def test_what_was_cut_off_is_not_completed(damaged: bytes) -> None:
    assert list(repairs(damaged, None)) == []


TEXTS = st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"\w{1,5}", fullmatch=True), inner),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), VALUES), st.sampled_from([None, 1]))
def test_sound_text_keeps_its_value(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    ((repaired, reasons),) = repairs(text.encode(), None)
    assert json.loads(repaired) == json.loads(text)
    assert reasons == ()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60) | st.text('{}[]:,"\\ a1n', max_size=60).map(str.encode))
def test_any_bytes_end(damaged: bytes) -> None:
    for text, _ in repairs(damaged):
        text.decode()
