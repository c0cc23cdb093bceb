"""Converts a captured plan to the form in which servers run it."""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.replay.capture.serving.attention import BMM, SOFTMAX, unwrapped
from opreplay.replay.capture.serving.fused import Call, Graph
from opreplay.replay.capture.serving.fused import fused as fused_plan
from opreplay.replay.capture.serving.fusions import MATCHERS
from opreplay.replay.capture.serving.quantised import Weights, quantised
from opreplay.replay.ir.model import ReplayPlan

LOOPS = {"aten::_grouped_mm": "experts", "aten::index_copy_": "cache writes", "aten::rsqrt": "norms"}
"""Call that occurs only in unfused parts of a step → name of this part."""
REASONS = {"aten::tanh": "softcap"}
"""Calls between attention scores and their softmax that no fused kernel supports → reason to report."""
_SUMS = ("aten::baddbmm",)
"""Calls that compute attention scores and add to them, as BLOOM adds its biases."""
_MOST_ADDED = 64
"""Maximum number of calls that compute what is added to attention scores: masks, and biases of ALiBi."""

INDEXER = "indexer"
"""Name of the module with which sparse attention selects tokens. Servers attend to these tokens only, and transformers
masks all others.
"""


def unfused_parts(graph: Graph) -> dict[str, str]:
    """Return the parts of a step that are not fused, e.g. "attention", each with the reason ("" if unknown)."""
    parts: dict[str, str] = {}
    if any(INDEXER in name.split(".") for name in graph.sequence.module_names):
        parts["sparse attention"] = "attention reads all cached tokens, not only those that its indexer selects"
    for call in graph.calls:
        if call.name in LOOPS:
            parts.setdefault(LOOPS[call.name], "")
        elif call.name == BMM and ".experts." in graph.name_of(call.values["mat2"]):
            parts["experts"] = "each expert computes all tokens"
        elif (reason := _attention(graph, call)) is not None:
            parts["attention"] = reason or parts.get("attention", "")
    return parts


def _attention(graph: Graph, call: Call) -> str | None:
    """Return why the attention that ends with this matrix product is not fused; "" if the reason is unknown.

    None if the call does not end attention.
    """
    if call.name != BMM:
        return None
    softmax = graph.maker(unwrapped(graph, call.values["self"]).tensor, *SOFTMAX)
    scores = None if softmax is None else graph.between(softmax.values["self"], BMM, *_SUMS, most=_MOST_ADDED)
    if scores is None:
        return None
    return next((REASONS[each.name] for each in scores.calls if each.name in REASONS), "")


Fused = Literal["ascend", "none"]
"""Kind of server whose fused kernels replace calls of a plan; "none" replaces no calls."""


def as_served(plan: ReplayPlan, fused: Fused | None = None, weights: Weights | None = None) -> ReplayPlan:
    """Return the plan as servers run it: first kernels are fused, then weights are quantized.

    If `fused` is not given, kernels are fused only in an inference step of a model built from its config. Without
    `weights`, nothing is quantized. Raises UsageError in the same cases as `fused` and `quantised`.
    """
    if fused == "ascend" or (fused is None and is_for_servers(plan)):
        plan = _with_unfused_parts(fused_plan(plan, MATCHERS))
    return quantised(plan, weights) if weights is not None else plan


def is_for_servers(plan: ReplayPlan) -> bool:
    """Check whether a plan is a complete inference step of a model built from its config."""
    capture, sequence = plan.capture, plan.sequence
    if capture is None or capture.fused is not False or "backward" in capture.flops:
        return False
    return sequence is not None and not sequence.cut


def _with_unfused_parts(plan: ReplayPlan) -> ReplayPlan:
    """Return the plan with the names of the unfused parts and a note on each."""
    capture = plan.capture
    if capture is None or not capture.fused or not (parts := unfused_parts(Graph(plan))):
        return plan
    notes = (
        f"{part} is not fused but consists of single calls{f': {why}' if why else ''}" for part, why in parts.items()
    )
    capture = msgspec.structs.replace(capture, unfused=tuple(parts), notes=(*capture.notes, *notes))
    return msgspec.structs.replace(plan, capture=capture)
