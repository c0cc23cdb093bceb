# pyright: strict
"""Calls captured in a CUDA graph and launched together: for ops that the host is too slow to launch one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

WARMUP_CALLS = 3
"""On the stream of the capture, as torch's documentation of CUDA graphs asks for, so that libraries set up there."""


def captured(calls: Sequence[Callable[[], Any]], device: torch.device) -> Callable[[], Any] | None:
    """Something that launches all these calls at once; None where the device has no graphs.

    Raises RuntimeError for calls that cannot be captured, such as those that wait for the device.
    """
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARMUP_CALLS):
            calls[0]()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph.replay
