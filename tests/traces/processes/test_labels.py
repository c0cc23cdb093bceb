"""Labels that merging tools give to process ids: prefixes, suffixes, offsets, none."""

from __future__ import annotations

import pytest

from opreplay.traces.processes.labels import match_labels


@pytest.mark.parametrize(
    ("hosts", "devices", "matched"),
    [
        (["[TP00] 100", "[TP01] 100"], ["[TP00] 0", "[TP01] 0"], [0, 1]),
        (["[TP00-PP01] 7", "[TP01-PP00] 9"], ["[TP01-PP00] 1", "[TP00-PP01] 1"], [1, 0]),
        (["rank0/4021", "rank1/977"], ["rank1/GPU 3", "rank0/GPU 3"], [1, 0]),
        (["100_rank0", "100_rank1"], ["0_rank1"], [1]),
        (["4321", "1009876"], ["0", "1", "1000000", "1000001"], [0, 0, 1, 1]),
        (["3000000", "1000000017"], ["0", "1000000000"], [0, 1]),
        (["0", "1"], ["0", "1"], [0, 1]),
        (["1", "2"], ["0", "1"], [None, None]),
        (["100", "200"], ["0", "1"], [None, None]),
        (["python 100", "python 200"], ["python 0"], [None]),
        (["100", "200"], ["stream 7"], [None]),
        (["[TP00] 100", "[TP01] 100"], ["[PP] 0"], [None]),
    ],
)
def test_labels(hosts: list[str], devices: list[str], matched: list[int | None]) -> None:
    got = match_labels(hosts, devices)
    assert [got.get(device) for device in devices] == [None if at is None else hosts[at] for at in matched]
