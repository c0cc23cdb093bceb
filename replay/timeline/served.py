# pyright: strict
"""What a captured step comes to for who serves or trains with it: time a token, tokens a second, memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.ascend.simulate.step import Step
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.timeline.captured import GRAPH, captured_timeline


class ServedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One size of a model on one device."""

    batch: int
    context: int
    soc: str
    token_ms: float
    """From one token of a sequence to its next in decode, through all stages; else the step divided by its tokens."""
    graph_token_ms: float
    """The same where the step is launched as one graph."""
    low_ms: float
    high_ms: float
    """80 % band of `token_ms`."""
    tokens_per_s: float
    """Of the whole job, all stages busy."""
    graph_tokens_per_s: float
    memory_bytes: int
    """Of this rank: tensors, without workspaces."""
    fits: bool | None
    """None for a device whose memory is not known."""
    unpredicted_calls: int


def served(
    plan: ReplayPlan,
    steps: Sequence[Step],
    *,
    batch: int,
    context: int,
    decodes: bool,
    stages: int = 1,
    replicas: int = 1,
) -> list[ServedStep]:
    """A captured step on devices, whose predictions `steps` are.

    `stages` take a token one after the other, `replicas` ranks have own sequences.
    Raises UsageError for a plan that was not captured.
    """
    timeline = captured_timeline(plan, steps, what_if=GRAPH[:1])
    tokens = batch * (1 if decodes else context)
    a_token = stages / (1 if decodes else tokens) / 1e3
    memory = 0 if plan.capture is None else plan.capture.peak_bytes
    rows: list[ServedStep] = []
    for step in steps:
        times, graph_us = timeline.socs[step.device], timeline.what_if[0].socs_us[step.device]
        rows.append(
            ServedStep(
                batch=batch,
                context=context,
                soc=step.device,
                token_ms=times.step_us * a_token,
                graph_token_ms=graph_us * a_token,
                low_ms=times.low_us * a_token,
                high_ms=times.high_us * a_token,
                tokens_per_s=tokens * replicas / times.step_us * 1e6,
                graph_tokens_per_s=tokens * replicas / graph_us * 1e6,
                memory_bytes=memory,
                fits=None if step.hbm_bytes is None else memory <= step.hbm_bytes,
                unpredicted_calls=timeline.unpredicted_calls,
            )
        )
    return rows
