"""JSON on a terminal: nothing in it is acted on, and readers get the same value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.ir.model import Reason, Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.plain_json import plain_json
from opreplay.replay.ir.plan_file import dump_plan, load_plan
from opreplay.replay.plan.tracelens import read_tracelens_ir, write_tracelens_ir
from opreplay.replay.results.reading import read_result_file
from opreplay.replay.results.records import Header, OpResult
from opreplay.replay.results.writing import JsonLinesSink

ACTED_ON = [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
EVIL = "".join(map(chr, ACTED_ON)) + "é漢🙂\\u009b\xa0"


def acts(data: bytes) -> set[str]:
    return {chr(code) for code in ACTED_ON if code != 0xA} & set(data.decode())


@pytest.mark.slow
@given(
    st.recursive(st.text() | st.sampled_from(EVIL), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_the_value_is_the_same_and_no_character_is_acted_on(value: Any) -> None:
    made = plain_json(msgspec.json.encode(value))
    assert msgspec.json.decode(made) == value
    assert not acts(made)


def evil_op() -> ReplayOp:
    args = (ReplayArg(name="x", type="str", value=EVIL),)
    recorded = Recorded(host_us_total=1.0, host_us_median=1.0)
    return ReplayOp(id="0" * 12, name=f"aten::{EVIL}", count=1, recorded=recorded, args=args)


def results(path: Path) -> str:
    made = OpResult(id="0" * 12, name=f"aten::{EVIL}", count=1, status="replayed")
    header = Header(opreplay_version="0", started_at="2026-01-01T00:00:00+00:00", trace={}, environment={}, options={})
    with JsonLinesSink.open(path) as sink:
        for record in (header, made):
            sink.write(record)
    return read_result_file(path).results[0].name


def plan(path: Path) -> str:
    op = msgspec.structs.replace(evil_op(), reason=Reason("collective"))
    path.write_bytes(dump_plan(ReplayPlan(source="t", selection="all", device_us_total=0, host_us_total=0, ops=(op,))))
    return load_plan(path).ops[0].name


def tracelens(path: Path) -> str:
    write_tracelens_ir(
        ReplayPlan(source="t", selection="all", device_us_total=0, host_us_total=0, ops=(evil_op(),)), path
    )
    return read_tracelens_ir(path).ops[0].name


@pytest.mark.parametrize("written", [results, plan, tracelens])
def test_files_hold_escapes_and_are_read_as_they_were(written: Any, tmp_path: Path) -> None:
    """`cat` of a result file let a name of the trace move the cursor."""
    path = tmp_path / "made.jsonl"
    assert written(path) == f"aten::{EVIL}"
    assert not acts(path.read_bytes())
