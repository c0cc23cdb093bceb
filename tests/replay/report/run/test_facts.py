"""Coverage, totals and notes."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from opreplay.replay.ir.model import Assumption
from opreplay.replay.ir.reasons import Reason
from opreplay.replay.report.first_screen import prediction_line
from opreplay.replay.report.run import facts
from opreplay.replay.results.summary import reasons_of


def test_coverage_names_counts_share_and_reasons(made: SimpleNamespace) -> None:
    line = facts.coverage_line(made.header, made.results, made.summary)
    assert (
        line == "replayed 3 of 6 ops = 79.1 % of device time = 74.1 % torch + 5.0 % stand-ins; "
        "2 skipped: 1 collective, 1 policy; 1 failed"
    )


def test_coverage_of_an_interrupted_run_says_how_many_ops_it_did_not_reach(made: SimpleNamespace) -> None:
    summary = msgspec.structs.replace(made.summary, ops=10, interrupted=True)
    assert facts.coverage_line(made.header, made.results, summary).endswith("; interrupted, 4 not reached")


def test_coverage_speaks_of_host_time_where_the_trace_has_no_device(made: SimpleNamespace) -> None:
    header = msgspec.structs.replace(made.header, trace={"device_us_total": 0.0})
    assert " of host time" in facts.coverage_line(header, made.results, made.summary)
    assert " of host time" in facts.coverage_line(header, [], made.summary), "also where it was interrupted at once"


def test_coverage_of_a_trace_without_times_claims_no_share(made: SimpleNamespace) -> None:
    summary = msgspec.structs.replace(made.summary, recorded_us=0.0, covered_share=0.0)
    assert facts.coverage_line(made.header, made.results, summary).startswith(
        "replayed 3 of 6 ops, no times recorded; "
    )


def test_reasons_from_a_trace_are_escaped(made: SimpleNamespace) -> None:
    line = facts.coverage_line(made.header, [made.skipped(reason=Reason("failed", "bad\x1b[2J: x"))], made.summary)
    assert "\x1b" not in line


def test_every_reason_is_totalled_with_ops_calls_and_share(made: SimpleNamespace) -> None:
    by_kind = {total.kind: total for total in reasons_of(made.results)}
    assert {kind: (t.ops, t.calls, t.share) for kind, t in by_kind.items()} == dict.fromkeys(
        ("collective", "policy", "failed"), (1, 3, 0.1)
    )
    assert facts.detail_text(by_kind["policy"]) == "namespace os is not allowed (1)"


def test_many_and_long_details_are_cut(made: SimpleNamespace) -> None:
    results = [made.skipped(reason=Reason("policy", str(i) + "x" * 500), recorded_share=1 / (i + 1)) for i in range(9)]
    (total,) = reasons_of(results)
    text = facts.detail_text(total)
    assert text.startswith("0xxx")
    assert text.endswith("… (1) and 5 others")
    assert len(text) < 5 * facts.DETAIL_CHARS


def test_totals_compare_only_ops_that_have_all_three_times(made: SimpleNamespace) -> None:
    replayed, everything = facts.totals(made.results, device=True)
    assert replayed.ops == 3
    assert replayed.recorded_us == pytest.approx(3 * 24 * 12.34)
    assert replayed.measured_us == pytest.approx(24 * (41.52 + 5123.0 + 0.0123))
    assert replayed.simulated_us == {"910b3": pytest.approx(3 * 24 * 9.87)}
    assert everything.ops == 6
    assert everything.measured_us is None
    assert everything.simulated_us == {}


def test_notes_tell_what_the_numbers_rest_on(made: SimpleNamespace) -> None:
    notes = "\n".join(facts.notes(made.header, made.results, made.summary))
    assert "lost truncated file (1)" in notes
    assert "1 op through a portable equivalent: aten::convolution (1)" in notes
    assert "1 on 1 op: contiguous strides (1)" in notes
    assert "910b3: 3 of 6 ops simulated" in notes
    assert "; 1 op = 33.3 % of predicted time uncalibrated" in notes
    assert "warnings on 1 op: noisy (1)" in notes


def test_time_that_no_op_answers_for_is_said(made: SimpleNamespace) -> None:
    header = msgspec.structs.replace(made.header, trace={"device_us_total": 50.0, "unowned_device_us": 20.0})
    (note,) = [n for n in facts.notes(header, made.results, made.summary) if n.startswith("no op")]
    assert note.startswith("no op: 40.0 % of device time")


@pytest.mark.parametrize(
    "trace",
    [
        {},
        {"device_us_total": 5.0},
        {"device_us_total": 0.0, "unowned_device_us": 0.0},
        {"device_us_total": "x", "unowned_device_us": 3},
    ],
)
def test_where_every_kernel_has_an_op_nothing_is_said_of_it(made: SimpleNamespace, trace: dict) -> None:
    header = msgspec.structs.replace(made.header, trace=trace)
    assert not [n for n in facts.notes(header, made.results, made.summary) if n.startswith("no op")]


def test_long_lists_of_assumptions_are_summed_up(made: SimpleNamespace) -> None:
    assumed = tuple(Assumption(argument="a", what=f"kind {i}") for i in range(9))
    (note,) = facts.assumption_notes([made.replayed(assumptions=assumed)])
    assert note.startswith("assumptions: 9 on 1 op: kind 0 (1)")
    assert note.endswith("and 5 other kinds")


def test_a_clean_run_has_no_notes(made: SimpleNamespace) -> None:
    header = msgspec.structs.replace(made.header, trace={})
    assert facts.notes(header, [made.replayed()], made.summary) == []


def test_sums_that_are_compared_are_of_the_same_ops(made: SimpleNamespace) -> None:
    timed = made.replayed(id="1" * 12, count=2, recorded_device_us=10.0, measured_us=20.0)
    without = made.replayed(id="2" * 12, count=1, recorded_device_us=None, measured_us=500.0)
    first, whole = facts.totals([timed, without], device=True)
    assert (first.recorded_us, first.measured_us, first.label) == (20.0, 40.0, "1 op recorded and replayed")
    assert whole.ops == 2


def test_a_batch_whose_ops_have_host_time_alone_is_not_without_times(made: SimpleNamespace) -> None:
    """A trace of a GPU without ops beside one of a CPU: the sums are of device time, of which these ops have none."""
    header = msgspec.structs.replace(
        made.header, trace={"device_us_total": 50.0, "clocks": {"device": 1, "host": 1}, "unowned_device_us": 50.0}
    )
    summary = msgspec.structs.replace(made.summary, recorded_us=0.0, covered_share=0.0)
    assert " = 0 % of device time" in facts.coverage_line(header, made.results, summary)
    hosts = [msgspec.structs.replace(r, recorded_device_us=None) for r in made.results if r.measured_us is not None]
    assert facts.totals(hosts, device=True, header=header)[0].recorded_us is None
    assert any(note.startswith("no op: 100.0 % of device time") for note in facts.notes(header, hosts, summary))


def test_the_first_screen_and_the_notes_count_the_same_ops_as_extrapolated(made: SimpleNamespace) -> None:
    results = [
        msgspec.structs.replace(
            one,
            simulated={soc: msgspec.structs.replace(s, extrapolated=True) for soc, s in one.simulated.items()},
        )
        for one in made.results
    ]
    far = sum("910b3" in one.simulated for one in results)
    assert {one.simulated["910b3"].confidence for one in results if one.simulated} > {"uncalibrated"}
    assert f"; {far} ops extrapolated" in prediction_line("910b3", results)
    assert f"; {far} ops = " in next(
        part for part in facts.confidence_notes("910b3", results) if "extrapolated" in part
    )
