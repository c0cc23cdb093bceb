"""Times that may mislead carry a mark."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec

from opreplay.replay.report.doubts import MARK, ONE_SAMPLE, busy_notes, doubt_notes, mark, marks, thread_notes


def test_a_single_sample_is_marked_and_told(made: SimpleNamespace) -> None:
    result = made.results[0]
    assert mark([result]) == ""
    alone = msgspec.structs.replace(result, measurement=msgspec.structs.replace(result.measurement, samples=1))
    assert marks(alone) == [ONE_SAMPLE]
    assert mark([result, alone]) == MARK
    assert any("variance is unknown" in note for note in doubt_notes(None, [alone], device=False))
    in_order = msgspec.structs.replace(alone.measurement, cache="sequence")
    assert not marks(msgspec.structs.replace(alone, measurement=in_order)), "one pass of a step is no single op"


def test_a_number_of_threads_that_was_asked_for_hides_no_busy_machine() -> None:
    asked: dict[str, object] = {"threads": 1, "threads_of_torch": 2, "cpus": 2, "threads_asked": True}
    quiet, busy = {**asked, "idle_cpus": 2.0, "visits": 1}, {**asked, "idle_cpus": 0.0, "visits": 8}
    assert thread_notes(quiet) == ["threads: 1 as requested; 2 of 2 processors idle at the start"]
    assert busy_notes(quiet) == []
    told = "threads: 1 as requested; 0 of 2 processors idle at the start"
    assert busy_notes(busy) == [f"{told}; each op measured in 8 interleaved rounds (--set repeats=1 for one)"]
    assert busy_notes({**busy, "visits": 1}) == [told]
