"""A run as one JSON value: header, ops and summary as in the result file, for tools that do not read JSON Lines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.results import Header, OpResult, Summary


def render(header: Header, results: Sequence[OpResult], summary: Summary) -> str:
    """`{"header": ..., "ops": [...], "summary": ...}`, indented."""
    whole = {"header": header, "ops": results, "summary": summary}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"
