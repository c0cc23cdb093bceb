"""Events of small GPU traces that scenarios are made of."""

from __future__ import annotations

from typing import Any


def owner(
    name: str, number: int, dims: list[Any], device_us: float, types: list[str] | None = None
) -> list[dict[str, Any]]:
    """An op that launches one kernel of its own."""
    ts = 100.0 * number
    given = types or ["c10::BFloat16"] * len(dims)
    args = {"Input Dims": dims, "Input type": given, "Concrete Inputs": [""] * len(dims)}
    launch = {"correlation": number, "External id": number}
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": 50.0,
            "args": {**args, "External id": number},
        },
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": ts + 5,
            "dur": 2.0,
            "args": launch,
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": f"kernel_{number}",
            "pid": 0,
            "tid": 7,
            "ts": 1e6 + 1e4 * number,
            "dur": device_us,
            "args": {**launch, "device": 0, "stream": 7},
        },
    ]
