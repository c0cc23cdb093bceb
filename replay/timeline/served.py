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
"""Time, in ms, that a server's host needs between two decode steps. The device waits meanwhile.

The host does scheduling, inputs, sampling and outputs. In vLLM's own profile of Llama-3-8B on one H100 (blog, September
2024), this work takes 29 % of the time and the GPU 38 %. With a GPU step of 8 ms, the work takes 6 ms. Later versions
take less, so 5 ms are used. Hosts of NPUs take longer for the same work. Servers that schedule the next step in advance
hide this time.
"""
SERVER_BAND = 2.0


class ServedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Performance and memory of a model of one size on one device."""

    batch: int
    context: int
    soc: str
    token_ms: float
    """Time per token, in ms.

    In decode, it is the time from one token of a sequence to the next, through all pipeline stages. In other steps, it
    is the time of the step, through all stages, divided by its tokens.
    """
    low_ms: float
    high_ms: float
    """Upper end of the 80 % band of `token_ms`."""
    graph_token_ms: float
    """Like `token_ms`, but with the step launched as one graph."""
    graph_low_ms: float
    graph_high_ms: float
    server_ms: float
    """Part of `token_ms` and of `graph_token_ms` that the server needs between two steps."""
    tokens_per_s: float
    """Tokens per second of the whole job, if all pipeline stages are busy."""
    graph_tokens_per_s: float
    memory_bytes: int
    """Bytes of the tensors, without workspaces, on the rank with the most bytes."""
    fits: bool | None
    """Whether the tensors fit the device's memory; None if the memory size is unknown."""
    unpredicted_calls: int
    fused: bool | None = None
    """Whether fused kernels, as inference servers use them, were predicted. None for a user's own code."""
    unfused: tuple[str, ...] = ()
    """Parts of a fused step that no fused kernel replaced."""
    limit: str = ""
    """Limit of the step: "host", "memory" etc., or "server host" if the server takes more than half of the time."""
    hbm_bytes: float | None = None
    """Memory size of the device."""


class ServedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Performance and memory of a model in several sizes, on one or more devices."""

    model: str
    """Name of the model's config file."""
    phase: str
    dtype: str
    weights: str | None = None
    """Quantisation of the weights."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    rows: tuple[ServedStep, ...]
    notes: tuple[str, ...]
    """Assumptions that hold for all rows."""


def served(
    stages: Sequence[tuple[ReplayPlan, Sequence[Step]]],
    *,
    batch: int,
    context: int,
    decodes: bool,
    replicas: int = 1,
) -> list[ServedStep]:
    """Return performance and memory of a captured step.

    `stages` has the plan of each pipeline stage with its predictions by device; a token passes through the stages in
    sequence. Each of the `replicas` ranks has its own sequences. Raises UsageError for a plan that was not captured.
    """
    called, graphs = ([captured_timeline(*stage, host_scale=scale) for stage in stages] for scale in (1.0, 0.0))
    tokens = batch * (1 if decodes else context)
    server_ms = SERVER_MS if decodes else 0.0
    captures = [plan.capture for plan, _ in stages if plan.capture is not None]
    memory = max((capture.peak_bytes for capture in captures), default=0)
    first = captures[0] if captures else None
    rows: list[ServedStep] = []
    for number, step in enumerate(stages[0][1]):
        device = step.device
        by_stage, graphs_by_stage = ([timeline.socs[device] for timeline in each] for each in (called, graphs))
        (token_ms, low_ms, high_ms), (graph_ms, graph_low_ms, graph_high_ms) = (
            _a_token(each, 1 if decodes else 1 / tokens, server_ms) for each in (by_stage, graphs_by_stage)
        )
        slowest = max(range(len(stages)), key=lambda stage: by_stage[stage].step_us)
        rows.append(
            ServedStep(
                batch=batch,
                context=context,
                soc=device,
                token_ms=token_ms,
                low_ms=low_ms,
                high_ms=high_ms,
                graph_token_ms=graph_ms,
                graph_low_ms=graph_low_ms,
                graph_high_ms=graph_high_ms,
                server_ms=server_ms,
                tokens_per_s=tokens * replicas * 1e3 / _period_ms(by_stage, server_ms),
                graph_tokens_per_s=tokens * replicas * 1e3 / _period_ms(graphs_by_stage, server_ms),
                memory_bytes=memory,
                fits=None if step.hbm_bytes is None else memory <= step.hbm_bytes,
                unpredicted_calls=sum(timeline.unpredicted_calls for timeline in called),
                fused=None if first is None else first.fused,
                unfused=tuple(dict.fromkeys(part for capture in captures for part in capture.unfused)),
                limit=(
                    "server host"
                    if 2 * server_ms > token_ms
                    else limit_of(by_stage[slowest], stages[slowest][1][number])
                ),
                hbm_bytes=step.hbm_bytes,
            )
        )
    return rows


def _period_ms(stages: Sequence[CapturedTimes], server_ms: float) -> float:
    """Return the time between the ends of two batches, in ms, with as many batches under way as there are stages."""
    steps_ms = [times.step_us / 1e3 for times in stages]
    return max((sum(steps_ms) + server_ms) / len(steps_ms), *steps_ms)


def _a_token(stages: Sequence[CapturedTimes], steps: float, server_ms: float) -> tuple[float, float, float]:
    """Return (ms per token, low end, high end of its band) of `steps` steps of all stages plus the server's time."""
    ms, low, high = (
        sum(us) * steps / 1e3
        for us in zip(*((each.step_us, each.low_us, each.high_us) for each in stages), strict=True)
    )
    shorter = math.hypot(ms - low, server_ms - server_ms / SERVER_BAND)
    longer = math.hypot(high - ms, server_ms * SERVER_BAND - server_ms)
    return ms + server_ms, max(0.0, ms + server_ms - shorter), ms + server_ms + longer
