# pyright: strict
"""Parts of a step that servers run as one kernel each, and that a plan with fused kernels still has as many calls."""

from __future__ import annotations

from opreplay.replay.capture.serving.attention import BMM, SOFTMAX, unwrapped
from opreplay.replay.capture.serving.fused import Call, Graph

LOOPS = {"aten::_grouped_mm": "experts", "aten::index_copy_": "cache writes", "aten::rsqrt": "norms"}
"""Calls that only parts written out in PyTorch make."""
REASONS = {"aten::tanh": "softcap"}
"""Calls between scores and their softmax that no fused kernel makes."""


def unfused_parts(graph: Graph) -> dict[str, str]:
    """Return the parts of a step that are not fused, each with the reason where it is clear, else ""."""
    parts: dict[str, str] = {}
    for call in graph.calls:
        if call.name in LOOPS:
            parts.setdefault(LOOPS[call.name], "")
        elif (reason := _attention(graph, call)) is not None:
            parts["attention"] = reason or parts.get("attention", "")
    return parts


def _attention(graph: Graph, call: Call) -> str | None:
    """Return why the attention that a product ends is not fused, "" where that is not clear; None for other calls."""
    if call.name != BMM:
        return None
    softmax = graph.maker(unwrapped(graph, call.values["self"]).tensor, *SOFTMAX)
    scores = None if softmax is None else graph.between(softmax.values["self"], BMM)
    if scores is None:
        return None
    return next((REASONS[each.name] for each in scores.calls if each.name in REASONS), "")
