# pyright: strict
"""What stand-ins make up because no argument of the recorded call tells it: weights, caches, sizes; no torch."""

from __future__ import annotations

from typing import NamedTuple

WEIGHTS = "weights"
"""The argument under which invented weights are said."""


class Invented(NamedTuple):
    """One thing that a stand-in makes up."""

    argument: str
    """"weights", "cache" or "head size"."""
    what: str


_EXPERTS = (
    Invented(WEIGHTS, "invented: one pair of 16-bit matrices for all experts, intermediate size as the hidden size"),
    Invented("top-k", "invented: softmax routing to 2 of up to 8 experts, 4 of up to 64, else 8"),
)
_CACHE = (Invented("cache", "invented: the layer's cache is not an argument, so rows of the keys are repeated"),)
_LATENT = (*_CACHE, Invented(WEIGHTS, "invented: the layer's up-projection is left out, its result is cut"))
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
    """Experts a token is sent to when nothing tells: 2 of up to 8 (Mixtral), 4 of up to 64 (gpt-oss, Qwen-MoE), else 8
    (Qwen3-MoE, DeepSeek-V3)."""
    return min(experts, 2 if experts <= 8 else 4 if experts <= 64 else 8)


def invented_by(op: str) -> tuple[Invented, ...]:
    """What the stand-in for an op, by its canonical name, makes up; () for one whose arguments tell everything."""
    return _BY_OP.get(op, ())


def inventing_ops() -> tuple[str, ...]:
    """Names of the ops whose stand-ins make something up."""
    return tuple(_BY_OP)
