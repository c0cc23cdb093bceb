"""Coverage, totals and notes."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from opreplay.replay.ir import Assumption
from opreplay.replay.report import facts


def test_coverage_names_counts_share_and_reasons(made: SimpleNamespace) -> None:
    line = facts.coverage_line(made.header, made.results, made.summary)
    assert line == "replayed 3 of 6 ops = 79.1 % of device time; 2 skipped: 1 collective, 1 policy; 1 failed"


def test_coverage_of_an_interrupted_run_says_how_many_ops_it_did_not_reach(made: SimpleNamespace) -> None:
    summary = msgspec.structs.replace(made.summary, ops=10, interrupted=True)
    assert facts.coverage_line(made.header, made.results, summary).endswith("; interrupted, 4 not reached")


def test_coverage_speaks_of_host_time_where_the_trace_has_no_device(made: SimpleNamespace) -> None:
    header = msgspec.structs.replace(made.header, trace={"device_us_total": 0.0})
    assert " of host time" in facts.coverage_line(header, made.results, made.summary)


def test_coverage_of_a_trace_without_times_claims_no_share(made: SimpleNamespace) -> None:
    summary = msgspec.structs.replace(made.summary, recorded_us=0.0, covered_share=0.0)
    assert facts.coverage_line(made.header, made.results, summary).startswith(
        "replayed 3 of 6 ops, no times recorded; "
    )


def test_reasons_from_a_trace_are_escaped(made: SimpleNamespace) -> None:
    line = facts.coverage_line(made.header, [made.skipped(reason="bad\x1b[2J: x")], made.summary)
    assert "\x1b" not in line


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
    assert "910b3: 1 op = 33.3 % of simulated time uncalibrated" in notes
    assert "warnings on 1 op: noisy (1)" in notes


def test_long_lists_of_assumptions_are_summed_up(made: SimpleNamespace) -> None:
    assumed = tuple(Assumption(argument="a", what=f"kind {i}") for i in range(9))
    (note,) = facts.assumption_notes([made.replayed(assumptions=assumed)])
    assert note.startswith("assumptions: 9 on 1 op: kind 0 (1)")
    assert note.endswith("and 5 other kinds")


def test_a_clean_run_has_no_notes(made: SimpleNamespace) -> None:
    header = msgspec.structs.replace(made.header, trace={})
    assert facts.notes(header, [made.replayed()], made.summary) == []
