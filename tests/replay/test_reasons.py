"""The list of reasons is closed, each is said in full, and what they account for adds up."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.reasons import DETAILED, KINDS, MEANINGS, Reason, split_reason, total_reasons


def test_the_list_is_what_is_documented() -> None:
    assert set(KINDS) == set(MEANINGS) == {
        "collective", "triton kernel", "label, not an op", "metadata missing", "policy", "budget", "library missing",
        "failed",
    }  # fmt: skip


def test_nothing_outside_the_list_is_a_reason() -> None:
    with pytest.raises(ValueError, match="'bad luck' is no reason"):
        Reason("bad luck")  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"kind": "bad luck"}', type=Reason)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_that_say_nothing_alone_need_a_detail(kind: str) -> None:
    if kind in DETAILED:
        with pytest.raises(ValueError, match="needs a detail"):
            Reason(kind)  # type: ignore[arg-type]
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode({"kind": kind}), type=Reason)
    else:
        assert str(Reason(kind)) == kind  # type: ignore[arg-type]


@given(st.sampled_from(KINDS), st.text(min_size=1))
def test_the_text_of_a_reason_splits_into_what_it_was_made_of(kind: str, detail: str) -> None:
    assert split_reason(str(Reason(kind, detail))) == (kind, detail)  # type: ignore[arg-type]


def test_only_what_was_tried_and_broke_is_failed() -> None:
    assert {kind for kind in KINDS if Reason(kind, "x").status == "failed"} == {"failed"}


ENTRIES = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(["collective", "policy: a", "policy: b", "metadata missing: shapes"])),
        st.integers(1, 10**6),
        st.floats(0, 1),
    )
)


@given(ENTRIES)
def test_totals_lose_no_op_no_call_and_no_time(entries: list[tuple[str | None, int, float]]) -> None:
    totals = total_reasons(entries)
    assert sum(t.ops for t in totals) == len(entries)
    assert sum(t.calls for t in totals) == sum(calls for _, calls, _ in entries)
    assert sum(t.share for t in totals) == pytest.approx(sum(share for *_, share in entries))
    assert len({t.kind for t in totals}) == len(totals)
    for total in totals:
        if total.kind != "collective" and total.kind != "no reason given":
            assert sum(d.ops for d in total.details) == total.ops
            assert sum(d.share for d in total.details) == pytest.approx(total.share)


def test_the_heaviest_reason_and_detail_come_first() -> None:
    first, second = total_reasons([("policy: a", 1, 0.1), ("policy: b", 2, 0.2), ("collective", 9, 0.25)])
    assert (first.kind, first.ops, first.calls, first.share) == ("policy", 2, 3, pytest.approx(0.3))
    assert [d.detail for d in first.details] == ["b", "a"]
    assert (second.kind, second.details) == ("collective", ())
