"""A run as JSON Lines: header, one line an op, summary; the same lines that a result file holds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.results.records import Header, OpResult, Summary


def render(header: Header, results: Sequence[OpResult], summary: Summary) -> str:
    """All records of a run, one JSON object a line; `read_results` reads it back."""
    encoder = msgspec.json.Encoder()
    return "".join(encoder.encode(record).decode() + "\n" for record in (header, *results, summary))
