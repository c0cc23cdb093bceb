"""Iteration annotations of serving frameworks, and the table that holds annotations."""

from __future__ import annotations

import numpy as np
import pytest

from opreplay.traces import BatchContext, batch_context
from opreplay.traces.links.annotations import AnnotationTable, is_unread, step_number, unread_annotations
from opreplay.traces.model import Annotation


@pytest.mark.parametrize(
    ("name", "context"),
    [
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            BatchContext(
                prefill_sequences=9,
                prefill_tokens=8155,
                prefill_k=8430,
                prefill_qq=7475785,
                prefill_qk=7671310,
                decode_sequences=37,
                decode_tokens=37,
                decode_k=34489,
                decode_qq=37,
                decode_qk=34489,
                scheduled_tokens=8192,
            ),
        ),
        (
            "execute_context_2(512)_generation_3(3)",
            BatchContext(prefill_sequences=2, prefill_tokens=512, decode_sequences=3, decode_tokens=3),
        ),
        (
            "execute_context_1(888_788544)_generation_0(0)",
            BatchContext(
                prefill_sequences=1,
                prefill_tokens=888,
                prefill_qq=788544,
                prefill_qk=788544,
                decode_sequences=0,
                decode_tokens=0,
            ),
        ),
        (
            "execute_context_2(44_1000)_generation_4(4_4)",
            BatchContext(
                prefill_sequences=2,
                prefill_tokens=44,
                prefill_qq=1000,
                prefill_qk=1000,
                decode_sequences=4,
                decode_tokens=4,
                decode_qq=4,
                decode_qk=4,
            ),
        ),
        (  # more than any squares: new times seen tokens
            "execute_context_1(100_50000)_generation_4(4_4000)",
            BatchContext(
                prefill_sequences=1,
                prefill_tokens=100,
                prefill_k=500,
                prefill_qq=10000,
                prefill_qk=50000,
                decode_sequences=4,
                decode_tokens=4,
                decode_k=4000,
                decode_qq=4,
                decode_qk=4000,
            ),
        ),
        (  # less than any squares of these tokens: nothing is read from it
            "execute_context_2(512_700)_generation_3(3)",
            BatchContext(prefill_sequences=2, prefill_tokens=512, decode_sequences=3, decode_tokens=3),
        ),
        ("execute_new_4_cached_5", BatchContext(prefill_sequences=4, decode_sequences=5)),
        (
            "step[EXTEND bs=2 toks=18 c_sq=18 c_sqsq=162 c_sqsk=162 c_sk=18]",
            BatchContext(
                prefill_sequences=2,
                prefill_tokens=18,
                prefill_k=18,
                prefill_qq=162,
                prefill_qk=162,
                decode_sequences=0,
            ),
        ),
        (  # two tokens a sequence
            "step[DECODE bs=7 g_sq=14 g_sqsq=28 g_sqsk=28672 g_sk=14336]",
            BatchContext(
                prefill_sequences=0,
                decode_sequences=7,
                decode_tokens=14,
                decode_k=14336,
                decode_qq=28,
                decode_qk=28672,
            ),
        ),
        (
            "step[MIXED bs=7 c=2 g=5 c_sq=18 c_sk=20 g_sq=5 g_sk=500]",
            BatchContext(
                prefill_sequences=2,
                prefill_tokens=18,
                prefill_k=20,
                decode_sequences=5,
                decode_tokens=5,
                decode_k=500,
            ),
        ),
        (
            "step[MIXED bs=7 g=5 toks=25]",
            BatchContext(prefill_sequences=2, prefill_tokens=20, decode_sequences=5, decode_tokens=5),
        ),
        ("prefill[bs=3]", BatchContext(prefill_sequences=3, decode_sequences=0)),
        ("prefill[bs=3, toks=90]", BatchContext(prefill_sequences=3, prefill_tokens=90, decode_sequences=0)),
        ("decode[bs=8]", BatchContext(prefill_sequences=0, decode_sequences=8, decode_tokens=8)),
        ("step[DECODE bs=32]", BatchContext(prefill_sequences=0, decode_sequences=32, decode_tokens=32)),
        ("step[EXTEND bs=15 toks=15360]", BatchContext(prefill_sequences=15, prefill_tokens=15360, decode_sequences=0)),
        ("execute_diffusion_1_256x256", None),
        ("nccl:all_reduce", None),
        ("x" * 10_000, None),
    ],
)
def test_batch_context(name: str, context: BatchContext | None) -> None:
    assert batch_context(name) == context


def test_steps() -> None:
    assert step_number("ProfilerStep#12") == 12
    assert step_number("ProfilerStep#x") is None
    assert step_number("## forward ##") is None


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("execute_8_context_1(sq7sk7sqsq49sqsk49)_generation_1(sq1sk5sqsq1sqsk5)", "mixed"),
        ("execute_context_2(512)_generation_0(0)", "prefill"),
        ("execute_context_2(512_700)_generation_3(3)", "mixed"),
        ("execute_new_0_cached_5", "decode"),
        ("step[EXTEND bs=1 toks=4]", "prefill"),
        ("step[PREFILL bs=1 toks=4]", "prefill"),
        ("step[DECODE bs=1]", "decode"),
        ("step[IDLE bs=0]", None),
    ],
)
def test_phase(name: str, phase: str | None) -> None:
    context = batch_context(name)
    assert context is not None
    assert context.phase == phase


def test_table_is_a_sequence_of_annotations() -> None:
    table = AnnotationTable(
        ("a", "b"), np.array([0, 1, 0]), np.array([1, 2, 3]), np.array([4, 5, 6]), np.array([0, 0, 1])
    )
    assert len(table) == 3
    assert table[1] == Annotation(name="b", start_ns=2, dur_ns=5, track=0)
    assert table[-1].name == "a"
    assert table[:2] == (table[0], table[1])
    assert list(table) == [table[i] for i in range(3)]
    assert table == tuple(table)
    assert table != tuple(table)[:2]


def test_any_annotations_are_a_table() -> None:
    notes = tuple(Annotation(name=name, start_ns=at, dur_ns=5, track=at % 2) for at, name in enumerate("aba"))
    table = AnnotationTable.of(notes)
    assert table == notes
    assert (table.names, table.name.tolist()) == (("a", "b"), [0, 1, 0])
    assert AnnotationTable.of(table) is table
    assert len(AnnotationTable.of(())) == 0


def test_numbers_that_no_batch_has_are_no_batch() -> None:
    digits = "9" * 19
    assert batch_context(f"execute_1_context_1(sq{digits}sk1sqsq1sqsk1)_generation_0(sq0sk0sqsq0sqsk0)") is None
    assert batch_context("execute_context_\u0661(1)_generation_0(0)") is None


def test_a_full_capture_is_of_decodes() -> None:
    batch = batch_context("capture_32_FULL")
    assert batch is not None
    assert (batch.phase, batch.decode_sequences, batch.decode_tokens, batch.prefill_sequences) == ("decode", 32, 32, 0)
    assert batch_context("capture_8192_PIECEWISE") is None


@pytest.mark.parametrize(
    "name",
    [
        "execute_diffusion_1_1024x1024",
        "step[MIXED bs=7 c_sq=18]",
        "step[MIXED bs=7 c=3 g=5]",
        "step[VERIFY bs=7]",
        "step[DECODE bs=many]",
        "decode[bs=]",
        "execute_context_2(512)_generation_3",
        "execute_4_context_2[512]",
    ],
)
def test_a_near_miss_is_known_as_one(name: str) -> None:
    assert batch_context(name) is None
    assert is_unread(name)


@pytest.mark.parametrize(
    "name", ["step", "execute", "execute_model", "prefill", "decode[0]", "ProfilerStep#3", "step[DECODE bs=3]"]
)
def test_other_annotations_are_none(name: str) -> None:
    assert not is_unread(name)


def test_near_misses_are_counted() -> None:
    names = ["step[VERIFY bs=7]", "step[DECODE bs=3]", "step[VERIFY bs=7]", "decode[bs=x]", "loss"]
    notes = [Annotation(name=name, start_ns=10 * at, dur_ns=5, track=0) for at, name in enumerate(names)]
    assert unread_annotations(notes) == {"step[VERIFY bs=7]": 2, "decode[bs=x]": 1}
