# pyright: strict
"""Names and paths of the bundled profiles."""

from __future__ import annotations

from pathlib import Path

from opreplay.traces.errors import UsageError

SAMPLES: dict[str, str] = {
    "cnn_train": "one training step of a small residual CNN: convolution, batch norm, backward, SGD",
    "transformer_infer": "prefill and three decode steps of a bfloat16 transformer with a key-value cache",
    "moe_block": "forward of a mixture-of-experts block: top-2 routing, sort, one matmul per expert, index_add",
    "ddp_step_rank0": "one DDP training step on two gloo processes, as rank 0 saw it",
    "ddp_step_rank1": "the same step as rank 1 saw it",
}
"""Name → description of the recorded run."""


def sample_path(name: str) -> Path:
    """Return the path of the bundled profile `name` (gzip-compressed Kineto JSON).

    Raises:
        UsageError: no sample has that name; the hint lists the existing names.
    """
    if name not in SAMPLES:
        raise UsageError(f"no bundled sample is called {name!r}", hint=f"known samples: {', '.join(SAMPLES)}")
    return Path(__file__).parent / f"{name}.json.gz"
