"""What a text that no profile holds may change: times of calls that differ in one text alone.

    python benchmarks/untold_texts.py

One thread of this CPU, median of 30 calls in microseconds of processor time. The figures are those in
`replay/resolve/guess/texts.py`, which assumptions are made of.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

CALLS = 30


def median_us(call: Callable[[], Any]) -> int:
    """The median time of a call, after three that are not counted."""
    times = []
    for turn in range(CALLS + 3):
        started = time.process_time()
        call()
        if turn > 2:
            times.append(time.process_time() - started)
    return round(statistics.median(times) * 1e6)


def cases() -> dict[str, tuple[Callable[..., Any], str, tuple[str | None, ...]]]:
    """Name → (call without its text, name of the text, texts)."""
    aten = torch.ops.aten
    x, y = torch.randn(512, 1024), torch.randn(512, 1024)
    rows, lengths = torch.randn(4096, 64), torch.full((512,), 8)
    places = torch.randint(0, 512, (4096,))
    target, spread = torch.ones(512, 64), places[:, None].expand(4096, 64).contiguous()
    tall, right = torch.randn(128, 64), torch.randn(128, 8)
    square, edges, sought = torch.randn(64, 64), torch.arange(1000.0), torch.rand(100_000) * 1000
    means = ("sum", "mean", "amax", "amin", "prod")
    return {
        "gelu": (partial(aten.gelu, x), "approximate", ("none", "tanh")),
        "gelu_backward": (partial(aten.gelu_backward, y, x), "approximate", ("none", "tanh")),
        "div": (partial(torch.div, x, y), "rounding_mode", ("floor", "trunc", None)),
        "segment_reduce": (partial(torch.segment_reduce, rows, lengths=lengths), "reduce",
                           ("sum", "mean", "max", "min", "prod")),
        "index_reduce": (partial(torch.index_reduce, target, 0, places, rows), "reduce", means[1:]),
        "scatter_reduce": (partial(torch.scatter_reduce, target, 0, spread, rows), "reduce", means),
        "scatter": (partial(torch.scatter, target, 0, spread, rows), "reduce", ("add", "multiply")),
        "linalg_lstsq": (partial(torch.linalg.lstsq, tall, right), "driver", (None, "gels", "gelsd", "gelss")),
        "linalg_qr": (partial(torch.linalg.qr, tall), "mode", ("reduced", "complete", "r")),
        "linalg_eigh": (partial(torch.linalg.eigh, square @ square.T), "UPLO", ("L", "U")),
        "searchsorted": (partial(torch.searchsorted, edges, sought), "side", ("left", "right")),
    }  # fmt: skip


def main() -> None:
    """Print a line for each op."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    for name, (call, argument, texts) in cases().items():
        print(f"{name}({argument}):", {text: median_us(partial(call, **{argument: text})) for text in texts})


if __name__ == "__main__":
    main()
