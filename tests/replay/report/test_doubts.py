"""Times that may mislead carry a mark."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec

from opreplay.replay.report.doubts import MARK, ONE_SAMPLE, doubt_notes, mark, marks


def test_a_single_sample_is_marked_and_told(made: SimpleNamespace) -> None:
    result = made.results[0]
    assert mark([result]) == ""
    alone = msgspec.structs.replace(result, measurement=msgspec.structs.replace(result.measurement, samples=1))
    assert marks(alone) == [ONE_SAMPLE]
    assert mark([result, alone]) == MARK
    assert any("single sample" in note for note in doubt_notes(None, [alone], device=False))
    in_order = msgspec.structs.replace(alone.measurement, cache="sequence")
    assert not marks(msgspec.structs.replace(alone, measurement=in_order)), "one pass of a step is no single op"
