# pyright: strict
"""Initializers for boolean masks: their density, and masks in which every row keeps at least one element."""

from __future__ import annotations

import math
from itertools import zip_longest

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport
from opreplay.traces.names import plural

MASKS = ("attn_mask", "attn_bias", "bias", "mask")
DENSITY = 0.5
"""Default share of True elements."""


class DropoutMaskInit(CustomInit):
    """Fills the mask saved by a dropout. The share of True elements is 1 / scale, or 0.9 without a scale above 1."""

    name = "dropout_mask"

    def initialize(self, context: InitContext) -> InitReport:
        scale = context.args.get("scale")
        density = 1.0 / scale if isinstance(scale, (int, float)) and scale > 1 else 0.9
        fill.coins(context.need("mask"), context.generator, density)
        return InitReport(summary=f"mask density {density:.2f}")


class MaskInit(CustomInit):
    """Fills the masks of selection and fill ops."""

    name = "mask"

    def initialize(self, context: InitContext) -> InitReport:
        assumed: dict[str, str] = {}
        for name in ("mask", "condition", "self"):
            tensor = context.tensor(name)
            if tensor is not None and (name != "self" or "nonzero" in context.op or "argwhere" in context.op):
                fill.coins(tensor, context.generator, DENSITY)
                assumed[name] = f"density {DENSITY}"
        return InitReport(summary=f"mask density {DENSITY}", assumed=assumed)


class PaddingMaskInit(CustomInit):
    """Fills padding masks with True up to a random length per sequence. The first sequence has full length."""

    name = "padding_mask"

    def initialize(self, context: InitContext) -> InitReport:
        mask = context.need("mask")
        if mask.dim() != 2:
            raise InitializerError(f"{context.op}: a padding mask needs 2 dimensions, but has {mask.dim()}")
        rows, longest = mask.shape
        lengths = torch.zeros(rows, 1, dtype=torch.int64, device=mask.device)
        fill.integers(lengths, context.generator, 1, longest + 1)
        lengths[:1] = longest
        fill.assign(mask, torch.arange(longest, device=mask.device) < lengths)
        what = f"{plural(rows, 'sequence')} of 1 to {plural(longest, 'step')}, padded on the right"
        return InitReport(summary=what, assumed={"mask": what})


class SelectedInit(CustomInit):
    """Fills the mask in a selection's backward op. It selects as many elements as the gradient has."""

    name = "selected"

    def initialize(self, context: InitContext) -> InitReport:
        grad, mask, source = context.need("grad"), context.need("mask"), context.need("input")
        count = min(mask.numel(), grad.numel() // _copies(mask, source))
        choose(mask, count, context.generator)
        return InitReport(summary=f"{count} of {mask.numel()} elements selected")


class MaskedScatterInit(CustomInit):
    """Fills a mask that selects no more elements than the source has."""

    name = "masked_scatter"

    def initialize(self, context: InitContext) -> InitReport:
        mask, source, target = context.need("mask"), context.need("source"), context.need("self")
        count = min(mask.numel(), source.numel() // _copies(mask, target), max(1, round(mask.numel() * DENSITY)))
        choose(mask, count, context.generator)
        return InitReport(summary=f"{count} of {mask.numel()} elements selected")


class AttentionMaskInit(CustomInit):
    """Makes attention masks causal and aligned at the end, as in decoding: every query sees at least one key."""

    name = "attention_mask"

    def applies_to(self, context: InitContext) -> bool:
        return self._mask(context) is not None

    def initialize(self, context: InitContext) -> InitReport:
        mask = self._mask(context)
        assert mask is not None
        if mask.dim() < 2:
            fill.integers(mask, context.generator, 0, 1)
            return InitReport(summary="mask of zeros")
        if context.op == "aten::_masked_softmax":
            fill.coins(mask, context.generator, DENSITY)
            mask.select(-1, 0).fill_(0)
            return InitReport(summary=f"mask density {DENSITY}")
        queries, keys = mask.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril(max(0, keys - queries))
        if mask.dtype is torch.bool:
            fill.assign(mask, seen)
        else:
            lowest = torch.finfo(mask.dtype).min if mask.dtype.is_floating_point else 0
            fill.assign(mask, torch.zeros_like(seen, dtype=torch.float64).masked_fill(~seen, lowest))
        return InitReport(summary="causal mask", assumed={"mask": "causal, aligned at the end"})

    @staticmethod
    def _mask(context: InitContext) -> torch.Tensor | None:
        return context.first(MASKS, elements=True)


def _copies(mask: torch.Tensor, target: torch.Tensor) -> int:
    """Return the number of target elements to which each mask element applies.

    Raises InitializerError if the shapes cannot be broadcast.
    """
    if not fill.broadcastable(mask.shape, target.shape):
        raise InitializerError(
            f"a mask of shape {list(mask.shape)} does not fit a tensor of shape {list(target.shape)}"
        )
    both = zip_longest(reversed(mask.shape), reversed(target.shape), fillvalue=1)
    elements = math.prod(size if other == 1 else other for size, other in both)
    return max(1, elements // max(1, mask.numel()))


def choose(mask: torch.Tensor, count: int, generator: torch.Generator) -> None:
    """Set exactly `count` elements of a mask at random positions, and clear all other elements."""
    flat = torch.zeros(mask.numel(), dtype=mask.dtype, device=mask.device)
    flat[torch.randperm(mask.numel(), generator=generator, device=mask.device)[:count]] = 1
    fill.assign(mask, flat.view(mask.shape))


INITIALIZERS = (DropoutMaskInit, MaskInit, PaddingMaskInit, SelectedInit, MaskedScatterInit, AttentionMaskInit)
