"""Initializers for list arguments of serving kernels.

The arguments are LoRA adapters, state slots, row limits, group sizes, and columns of embeddings to regroup.
`moe_routing` handles routing, `paged_attention` handles paged caches.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport, extent
from opreplay.traces.names import plural

Item = TypeVar("Item")


def _one(context: InitContext, *names: str) -> torch.Tensor:
    """Return the first tensor argument with one of these names. Raises InitializerError if there is none."""
    tensor = context.first(names)
    if tensor is None:
        raise InitializerError(f"{context.op}: none of {', '.join(names)} is among its arguments")
    return tensor


class AdaptersInit(CustomInit):
    """Assigns every token a LoRA adapter, drawn uniformly; sequences have equal lengths."""

    name = "lora_adapters"

    def initialize(self, context: InitContext) -> InitReport:
        adapters = _adapters(context)
        filled: list[str] = []
        for name in ("token_lora_mapping", "lora_indices_tensor", "lora_indices", "indices", "indicies"):
            if (which := context.tensor(name)) is not None:
                fill.integers(which, context.generator, 0, adapters)
                filled.append(name)
        rows = _one(context, "inputs", "x")
        lengths = context.first(("seq_len_tensor", "seq_len"))
        if lengths is not None:
            tokens = extent(rows, 1 if rows.dim() == 3 else 0)
            numbers = fill.even_cuts(lengths.numel(), tokens).diff()
            fill.assign(lengths, numbers)
            if (starts := context.tensor("b_seq_start_loc")) is not None:
                fill.assign(starts, (numbers.cumsum(0) - numbers)[: starts.numel()])
        return InitReport(
            summary=f"tokens of {adapters} adapters", assumed=dict.fromkeys(filled, f"uniform in [0, {adapters})")
        )


def _adapters(context: InitContext) -> int:
    """Return the number of LoRA adapters, which is the first dimension of the weights.

    If the weights are a list, its first tensor is used. Raises InitializerError if no argument holds weights.
    """
    by_name = (context.args.get(name) for name in ("lora_a_weights", "lora_b_weights", "weight", "w"))
    listed = next((value for value in by_name if value is not None), None)
    weights = listed[0] if isinstance(listed, (list, tuple)) and listed else listed
    if not isinstance(weights, torch.Tensor) or not weights.dim():
        raise InitializerError(f"{context.op} has no adapter weights among its arguments")
    return max(1, weights.shape[0])


class StateSlotsInit(CustomInit):
    """Fills a batch of sequences of equal length. Each one has its own slot, which already holds a state."""

    name = "state_slots"

    def initialize(self, context: InitContext) -> InitReport:
        states = context.first(("conv_states", "conv_state", "ssm_states"))
        slots = max(1, states.shape[0]) if states is not None and states.dim() else 1
        assumed = {}
        for name in ("cache_indices", "conv_state_indices"):
            if (chosen := context.tensor(name)) is not None:
                order = torch.randperm(slots, generator=torch.Generator().manual_seed(context.seed))
                numbers = order[torch.arange(chosen.numel()) % slots]
                fill.assign(chosen, numbers.reshape(chosen.shape))
                assumed[name] = "slots in random order"
        if (edges := context.tensor("query_start_loc")) is not None and edges.numel() > 1:
            x = _one(context, "x", "u")
            fill.assign(edges, fill.even_cuts(edges.numel() - 1, extent(x, -1)))
            assumed["query_start_loc"] = "sequences of equal length"
        if (started := context.tensor("has_initial_state")) is not None:
            fill.assign(started, torch.ones_like(started))
            assumed["has_initial_state"] = "all"
        if (decay := context.tensor("A")) is not None:
            fill.uniform(decay, context.generator, -1.0, -0.05)
        return InitReport(summary=f"states in {slots} slots", assumed=assumed)


class RowLimitsInit(CustomInit):
    """Fills row limits that make all columns of every row of scores valid."""

    name = "row_limits"

    def initialize(self, context: InitContext) -> InitReport:
        scores = _one(context, "logits", "score")
        columns, rows = extent(scores, -1), scores.shape[0]
        assumed = {}
        for name in ("rowEnds", "lengths", "seq_lens", "seqLens"):
            if (limits := context.tensor(name)) is not None:
                fill.assign(limits, torch.full_like(limits, columns))
                assumed[name] = f"all {columns} columns"
        for name in ("rowStarts", "row_starts", "row_starts_opt", "topk_indices_offset"):
            if (starts := context.tensor(name)) is not None:
                fill.assign(starts, torch.zeros_like(starts))
        if (edges := context.tensor("cu_seqlens_q")) is not None and edges.numel() > 1:
            fill.assign(edges, fill.even_cuts(edges.numel() - 1, rows))
        return InitReport(summary=f"{rows} rows of {columns} columns", assumed=assumed)


class GroupSizesInit(CustomInit):
    """Divides rows equally among the experts of a grouped matmul, and fills matching offsets and sizes."""

    name = "group_sizes"

    def initialize(self, context: InitContext) -> InitReport:
        sizes, offsets = context.need("problem_sizes"), context.need("expert_offsets")
        rows = _one(context, "a", "a_tensors")
        out = _one(context, "output", "out_tensors")
        edges = fill.even_cuts(sizes.shape[0], rows.shape[0])
        fixed = torch.tensor([extent(out, 1), extent(rows, 1)]).expand(sizes.shape[0], 2)
        fill.assign(sizes, torch.cat((edges.diff().unsqueeze(1), fixed), 1))
        fill.assign(offsets, edges[: offsets.numel()])
        return InitReport(
            summary=f"{plural(rows.shape[0], 'row')} in {plural(sizes.shape[0], 'group')}",
            assumed={"problem_sizes": "groups of equal size"},
        )


class RegroupInit(CustomInit):
    """Fills permutes that copy the columns of pooled embeddings, in order, to new tensors, one piece per permute."""

    name = "regroup"

    def initialize(self, context: InitContext) -> InitReport:
        permutes, reverse = context.need("permutes"), context.args.get("reverse") is True
        pooled = _all_of(torch.Tensor, context.args.get("pooled_embs"))
        wanted = _all_of(int, context.args.get("out_lengths"))
        if not pooled or wanted is None:
            raise InitializerError(f"{context.op} has no tensors or no result widths among its arguments")
        pieces = _pieces([extent(t, 1) for t in pooled], wanted, extent(permutes))
        rows = [(b, a, y, x, n, 0) if reverse else (a, b, x, y, n, 0) for a, b, x, y, n in pieces]
        fill.assign(permutes, torch.tensor(rows, dtype=torch.int64).flatten())
        return InitReport(summary=f"{len(rows)} pieces", assumed={"permutes": "columns in order"})


def _all_of(kind: type[Item], values: object) -> list[Item] | None:
    """Return `values` as a list if it is a list or tuple whose items all have this type; None otherwise."""
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, kind) for value in values):
        return None
    return list(values)


def _pieces(widths: list[int], wanted: list[int], count: int) -> list[tuple[int, int, int, int, int]]:
    """Return `count` pieces of columns to copy: (source tensor, target tensor, source column, target column, width).

    The pieces cover the columns of the source and target tensors in order; empty pieces come last. If `count` is too
    small for all columns, the last piece is as wide as the tensors allow. The remaining columns are left out.
    """
    pieces: list[tuple[int, int, int, int, int]] = []
    source = target = start = stop = 0
    share = max(1, sum(wanted) // max(1, count))
    for number in range(count):
        while target < len(wanted) and stop >= wanted[target]:
            target, stop = target + 1, 0
        if start >= widths[source]:
            source, start = (source + 1) % len(widths), 0
        if target == len(wanted):
            pieces.append((0, 0, 0, 0, 0))
            continue
        room = min(widths[source] - start, wanted[target] - stop)
        width = room if number == count - 1 else min(room, share)
        pieces.append((source, target, start, stop, width))
        start, stop = start + width, stop + width
    return pieces


INITIALIZERS = (AdaptersInit, StateSlotsInit, RowLimitsInit, GroupSizesInit, RegroupInit)
