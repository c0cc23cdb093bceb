# pyright: strict
"""Serving and training figures of a captured step: time per token, tokens per second, memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from opreplay.replay.ascend.simulate.step import Step
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.timeline.captured import CapturedTimes, captured_timeline, limit_of
from opreplay.replay.timeline.offload import HOST_RATIO

SERVER_MS = 5.0 * HOST_RATIO
"""Host time of a server between two steps that decode, while the device waits: scheduling, inputs, sampling, outputs.

vLLM's own profile of Llama-3-8B on one H100 (blog, September 2024) has 29 % of the time there beside 38 % for the GPU,
whose step of 8 ms makes it 6 ms; later versions do less, 5 ms are taken. Hosts of NPUs take longer for the same.
Servers that schedule ahead hide it.
"""
SERVER_BAND = 2.0


class ServedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One size of a model on one device."""

    batch: int
    context: int
    soc: str
    token_ms: float
    """From one token of a sequence to its next in decode, through all stages; else the step divided by its tokens."""
    low_ms: float
    high_ms: float
    """80 % band of `token_ms`."""
    graph_token_ms: float
    """As `token_ms`, where the step is launched as one graph."""
    graph_low_ms: float
    graph_high_ms: float
    server_ms: float
    """Of each of them: the server's time between two steps."""
    tokens_per_s: float
    """Of the whole job, all stages busy."""
    graph_tokens_per_s: float
    memory_bytes: int
    """Of this rank: tensors, without workspaces."""
    fits: bool | None
    """None for a device whose memory is not known."""
    unpredicted_calls: int
    fused: bool | None = None
    """Whether fused kernels of servers were predicted; None for a step of the user's own code."""
    unfused: tuple[str, ...] = ()
    """Parts of a fused step that no fused kernel replaced."""
    limit: str = ""
    """As of `captured.limit_of`; "server host" where the server's host takes more than half of the time."""
    hbm_bytes: float | None = None
    """Memory of the device."""


class ServedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """A model in several sizes on devices."""

    model: str
    """Name of its config file."""
    phase: str
    dtype: str
    weights: str | None = None
    """Their quantisation."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    rows: tuple[ServedStep, ...]
    notes: tuple[str, ...]
    """Assumptions common to all rows."""


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
    """Return the figures of a captured step on devices; `steps` are their predictions.

    A token passes the `stages` in sequence; `replicas` ranks have their own sequences. Raises UsageError for a plan
    that was not captured.
    """
    called, graphs = (captured_timeline(plan, steps, host_scale=scale) for scale in (1.0, 0.0))
    tokens = batch * (1 if decodes else context)
    server_ms = SERVER_MS if decodes else 0.0
    memory = 0 if plan.capture is None else plan.capture.peak_bytes
    rows: list[ServedStep] = []
    for step in steps:
        (token_ms, low_ms, high_ms), (graph_ms, graph_low_ms, graph_high_ms) = (
            _a_token(timeline.socs[step.device], stages / (1 if decodes else tokens), server_ms)
            for timeline in (called, graphs)
        )
        through_s = tokens * replicas * stages / (1 if decodes else tokens) * 1e3
        rows.append(
            ServedStep(
                batch=batch,
                context=context,
                soc=step.device,
                token_ms=token_ms,
                low_ms=low_ms,
                high_ms=high_ms,
                graph_token_ms=graph_ms,
                graph_low_ms=graph_low_ms,
                graph_high_ms=graph_high_ms,
                server_ms=server_ms,
                tokens_per_s=through_s / token_ms,
                graph_tokens_per_s=through_s / graph_ms,
                memory_bytes=memory,
                fits=None if step.hbm_bytes is None else memory <= step.hbm_bytes,
                unpredicted_calls=called.unpredicted_calls,
                fused=None if plan.capture is None else plan.capture.fused,
                unfused=() if plan.capture is None else plan.capture.unfused,
                limit="server host" if 2 * server_ms > token_ms else limit_of(called.socs[step.device], step),
                hbm_bytes=step.hbm_bytes,
            )
        )
    return rows


def _a_token(times: CapturedTimes, steps: float, server_ms: float) -> tuple[float, float, float]:
    """Return the ms per token, for `steps` steps plus the server's time once, and the band."""
    ms, low, high = (us * steps / 1e3 for us in (times.step_us, times.low_us, times.high_us))
    shorter = math.hypot(ms - low, server_ms - server_ms / SERVER_BAND)
    longer = math.hypot(high - ms, server_ms * SERVER_BAND - server_ms)
    return ms + server_ms, max(0.0, ms + server_ms - shorter), ms + server_ms + longer
