# pyright: strict
"""Weights, caches and sizes that reference implementations assume if the recorded call does not contain them.

This module does not need torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from math import prod
from typing import Literal, NamedTuple

from opreplay.initializers.base import OptionValue
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.sizes import tensors_of
from opreplay.traces.model import TensorMeta

WEIGHTS = "weights"
"""Argument name under which assumed weights are reported."""


class Invented(NamedTuple):
    """One assumption of a reference implementation."""

    argument: str
    """Assumed quantity: "weights", "cache" or "head size"."""
    what: str


_EXPERTS = (
    Invented(WEIGHTS, "invented: one pair of matrices for all experts, intermediate size at most the hidden size"),
    Invented("top-k", "invented: softmax routing to 2 of up to 8 experts, 4 of up to 64, 8 of more"),
)
_CACHE = (Invented("cache", "invented: the layer's cache is not an argument, so rows of the keys are repeated"),)
_LATENT = (*_CACHE, Invented(WEIGHTS, "invented: the layer's up-projection is left out, and its result is truncated"))
_HEADS = (Invented("head size", "invented: heads of 128"),)

_BY_OP: dict[str, tuple[Invented, ...]] = {
    "vllm::moe_forward": _EXPERTS,
    "vllm::moe_forward_shared": _EXPERTS,
    "vllm::unified_attention": _CACHE,
    "vllm::unified_attention_with_output": _CACHE,
    "sglang::unified_attention_with_output": _CACHE,
    "vllm::unified_mla_attention": _LATENT,
    "vllm::unified_mla_attention_with_output": _LATENT,
    "sglang_profiler::utils__reshape_for_qk_norm": _HEADS,
    "sglang_profiler::utils_apply_qk_norm": _HEADS,
}


def assumed_topk(experts: int) -> int:
    """Return the number of experts per token that is assumed for an MoE layer.

    It is 2 for up to 8 experts (as in Mixtral), 4 for up to 64 (gpt-oss, Qwen-MoE) and 8 for more (Qwen3-MoE,
    DeepSeek-V3).
    """
    return min(experts, 2 if experts <= 8 else 4 if experts <= 64 else 8)


def invented_by(op: str) -> tuple[Invented, ...]:
    """Return what the reference implementation of an op (canonical name) assumes; () if it assumes nothing."""
    return _BY_OP.get(op, ())


EXPERT_LAYERS = ("vllm::moe_forward", "vllm::moe_forward_shared")
"""MoE layers whose weights are not arguments."""
NAMED_BY = "set them with --set init_arg=moe_routing.intermediate=N"
"""Hint for the user: how to set the sizes of an MoE layer whose weights are not arguments."""
NARROW_BITS = 8
"""Weights with at most this many bits are costed as 8-bit integers, the narrowest that the cube is known to
multiply.
"""
BITS_OF = {"bfloat16": 16, "float16": 16, "float8": 8, "int8": 8, "float4": 4, "int4": 4}
"""Weight dtype that a user may choose → bits per weight."""


class ExpertSizes(NamedTuple):
    """Sizes of an MoE layer: w1 (experts, 2 intermediate, hidden), w2 (experts, hidden, intermediate)."""

    experts: int
    intermediate: int
    top_k: int
    bits: int
    by: Literal["user", "recording", "nothing"]
    """Where the sizes come from. The recorded time ("recording") gives only an upper bound."""
    text: str


def expert_sizes(
    hidden: TensorMeta, logits: TensorMeta, op: ReplayOp, words: Mapping[str, OptionValue] | None = None
) -> ExpertSizes:
    """Return the sizes of an MoE layer: those that the user gives in `words`, otherwise assumed sizes.

    The intermediate size is assumed to equal the hidden size. It is smaller if the recorded device could not have read
    or multiplied that much in the recorded time.
    """
    words = words or {}
    width = max(1, hidden.shape[-1])
    tokens = prod(hidden.shape) // width
    experts = _number(words, "experts") or max(1, logits.shape[-1])
    top_k = min(experts, _number(words, "top_k") or assumed_topk(experts))
    evidence = op.layer
    recorded_bits = None if evidence is None else evidence.weight_bits
    bits = BITS_OF.get(str(words.get("dtype") or "")) or recorded_bits or 16
    rows = tokens * top_k
    if said := _number(words, "intermediate"):
        return ExpertSizes(
            experts, said, top_k, bits, "user", f"{experts} experts of {said} x {width} with {bits} bits"
        )
    if evidence is None or evidence.most_bytes is None or evidence.most_flops is None:
        text = f"{experts} experts, {width} wide: no argument gives the sizes of the weights, and nothing limits them"
        return ExpertSizes(experts, width, top_k, bits, "nothing", text)
    shared = 1 if op.name.endswith("_shared") else 0
    read = 3 * width * (min(experts, max(1, rows)) + shared) * max(bits, NARROW_BITS) / 8
    done = 6 * width * (rows + shared * tokens) * bits / 16
    limit = int(min(evidence.most_bytes / read, evidence.most_flops / max(1.0, done)))
    inner = max(1, min(width, limit))
    text = (
        f"invented: {experts} experts of {inner} x {width} with {bits} bits, {top_k} per token: the most that "
        f"{evidence.device} can read and multiply in {evidence.time_us:.3g} µs"
    )
    return ExpertSizes(experts, inner, top_k, bits, "recording", text)


def sizes_of(op: ReplayOp, words: Mapping[str, OptionValue] | None = None) -> ExpertSizes | None:
    """Return the sizes of an MoE layer whose weights are not arguments.

    Returns None for other ops and for unsuitable arguments.
    """
    if op.called not in EXPERT_LAYERS:
        return None
    metas = list(tensors_of(op))
    if len(metas) < 2 or len(metas[0].shape) < 2 or not metas[1].shape:
        return None
    return expert_sizes(metas[0], metas[1], op, words)


def _number(words: Mapping[str, OptionValue], name: str) -> int | None:
    value = words.get(name)
    return value if isinstance(value, int) and value > 0 else None


_sizes: ContextVar[ExpertSizes | None] = ContextVar("opreplay_expert_sizes", default=None)


def set_sizes(sizes: ExpertSizes) -> None:
    """Set the sizes of MoE layers without weight arguments for the rest of the current `contextvars` context."""
    _sizes.set(sizes)


def current_sizes() -> ExpertSizes | None:
    """Return the sizes set by `set_sizes`, or None."""
    return _sizes.get()
