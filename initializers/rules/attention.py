# pyright: strict
"""Initializers for dense attention.

They fill cumulative lengths, and a saved output and logsumexp that match query, key and value. `paged_attention`
handles paged attention and its block tables.
"""

from __future__ import annotations

import math

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport, extent

EXACT_SCORES = 4e6
"""Maximum number of query-key pairs for which the saved output and logsumexp are computed: about 30 ms on two cores."""
HEADS_LAST = frozenset({"aten::_flash_attention_backward", "aten::_efficient_attention_backward"})
"""Ops whose tensors are [batch, sequence, heads, head size]. In other ops, heads come before sequence."""


class CumulativeLengthsInit(CustomInit):
    """Fills cumulative sequence lengths that divide the tokens into sequences of equal length."""

    name = "cumulative_lengths"
    priority = 1

    def applies_to(self, context: InitContext) -> bool:
        return any(context.tensor(name) is not None for name in _LENGTHS)

    def initialize(self, context: InitContext) -> InitReport:
        return InitReport(summary=_cut_evenly(context), assumed={"cum_seq": "sequences of equal length"})


def _estimated(
    context: InitContext, saved: torch.Tensor, output: torch.Tensor | None, keys: int, lengths: str
) -> InitReport:
    """Fill `output` and logsumexp as if scores and values were drawn from N(0, 1)."""
    fill.uniform(saved, context.generator, math.log(keys) + 0.5, math.log(keys) + 0.6)
    if output is not None and output.dtype.is_floating_point:
        fill.normal(output, context.generator, std=keys**-0.5)
    return InitReport(
        summary=f"logsumexp near log({keys}) {lengths}".rstrip(),
        assumed={
            "logsumexp": "about the value that scores from N(0, 1) give",
            "out": "approximately the magnitude of averaged values",
        },
    )


class AttentionBackwardInit(CustomInit):
    """Fills values saved by the forward pass. They are exact if that is cheap, otherwise of the right magnitude."""

    name = "attention_backward"

    def initialize(self, context: InitContext) -> InitReport:
        lengths = _cut_evenly(context)
        query, key, value, output = _heads_first(context)
        saved, keys = context.need("logsumexp"), max(1, extent(key, -2))
        biased = context.first(("attn_bias", "bias", "attn_mask")) is not None
        pairs = math.prod(query.shape[:-1]) * keys
        if query.dim() != 4 or pairs > EXACT_SCORES or lengths or biased or query.numel() == 0:
            return _estimated(context, saved, output, keys, lengths)
        if not _go_together(query, key, value, output) or saved.shape[:2] != query.shape[:2]:
            raise InitializerError(f"{context.op}: shapes of query, key, value, out and logsumexp do not match")
        scale = context.args.get("scale")
        scale = scale if isinstance(scale, float) else query.shape[-1] ** -0.5
        _save_forward(query, key, value, output, saved, scale, context.flag("is_causal"))
        return InitReport(summary="out and logsumexp of the forward pass")


def _heads_first(context: InitContext) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return query, key, value and output as [batch, heads, sequence, head size]."""
    query, key, value = (context.need(name) for name in ("query", "key", "value"))
    output = context.tensor("out")
    if not query.dim() == key.dim() == value.dim() or (output is not None and output.dim() < query.dim()):
        raise InitializerError(f"{context.op}: query, key and value have different numbers of dimensions")
    if context.op in HEADS_LAST and query.dim() == 4:
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        output = None if output is None else output.transpose(1, 2)
    return query, key, value, output


_LENGTHS = {
    "cum_seq_q": "query",
    "cum_seq_k": "key",
    "cu_seqlens_q": "query",
    "cu_seqlens_k": "key",
    "cum_seqlens_q": "query",
    "cum_seqlens_k": "key",
}


def _cut_evenly(context: InitContext) -> str:
    """Fill the call's cumulative lengths with sequences of equal length and return a description; "" if it has none."""
    done: list[str] = []
    for name, source in _LENGTHS.items():
        cuts = context.tensor(name)
        if cuts is None or cuts.numel() < 2:
            continue
        tensor = context.need(source)
        tokens = tensor.shape[0] if tensor.dim() == 3 else math.prod(tensor.shape[:2])
        sequences = cuts.numel() - 1
        fill.assign(cuts, torch.arange(sequences + 1, device=cuts.device) * tokens // sequences)
        done.append(f"{name}: {sequences} sequences of {tokens / sequences:.4g} tokens")
    return ", ".join(done)


def _go_together(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor | None) -> bool:
    """Check whether these tensors, each [batch, heads, sequence, head size], have shapes that fit together in a call.

    A key head may serve several query heads.
    """
    batch, heads, rows, size = query.shape
    shared = key.shape[1] > 0 and heads % key.shape[1] == 0
    return (
        shared
        and key.shape[:3] == value.shape[:3]
        and (key.shape[0], key.shape[3]) == (batch, size)
        and (output is None or output.shape == (batch, heads, rows, value.shape[3]))
    )


def _save_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor | None,
    saved: torch.Tensor,
    scale: float,
    causal: bool,
) -> None:
    """Compute the forward pass one head at a time, and write its result to `output` and its logsumexp to `saved`.

    Tensors are [batch, heads, sequence, head size]; there may be fewer key heads than query heads.
    """
    shared = query.shape[1] // max(1, key.shape[1])
    rows = query.shape[2]
    for batch in range(query.shape[0]):
        for head in range(query.shape[1]):
            scores = query[batch, head].float() @ key[batch, head // shared].float().mT * scale
            if causal:
                seen = torch.ones_like(scores, dtype=torch.bool).tril()
                scores = scores.masked_fill(~seen, -math.inf)
            total = scores.logsumexp(-1)
            if saved.dim() >= 3 and saved.shape[2] >= rows:
                saved[batch, head, :rows].copy_(total.view(rows, *[1] * (saved.dim() - 3)))
            if output is not None:
                weights = (scores - total[:, None]).exp()
                output[batch, head].copy_(weights @ value[batch, head // shared].float())


INITIALIZERS = (CumulativeLengthsInit, AttentionBackwardInit)
