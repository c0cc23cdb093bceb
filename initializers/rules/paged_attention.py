# pyright: strict
"""Initializers for attention over packed and paged sequences: lengths, block tables, page lists and cache slots.

`sequences` splits a batch into sequences; `attention` handles dense attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch

from opreplay.initializers import fill
from opreplay.initializers.base import InitContext, InitializerError, InitReport, extent
from opreplay.initializers.draws.argument_names import CUMULATIVE_NEW, CUMULATIVE_SEEN, LONGEST, QUERY, SEEN, TABLES
from opreplay.initializers.draws.distributions import LengthRule, length_distribution
from opreplay.initializers.draws.paging import Pool, consecutive, find_pool, page_list, shared_generator, slots_of
from opreplay.initializers.draws.sequences import Batch, Room, make_batch

SCALES = (
    "k_scale",
    "v_scale",
    "kv_scale",
    "q_scale",
    "q_descale",
    "k_descale",
    "v_descale",
    "k_dequant_scales",
    "v_dequant_scales",
    "K_QScale",
    "V_QScale",
)

UNIFIED = "::unified_"
"""Part of the names of ops that read lengths from a layer's context instead of an argument."""


class PagedAttentionInit(LengthRule):
    """Fills sequence lengths from the iteration's batch, and cache blocks in random order.

    Sequences share blocks only if there are too few blocks.
    """

    name = "paged_attention"

    def initialize(self, context: InitContext) -> InitReport:
        pool = find_pool(context)
        room = _room(context, pool)
        batch = make_batch(
            context.batch,
            room,
            distribution=length_distribution(context),
            generator=shared_generator(context, "lengths"),
        )
        batch = _fitted(context, pool, batch)
        assumed = {"sequences": batch.assumed}
        assumed.update(dict.fromkeys(_write_lengths(context, batch), "lengths of the sequences"))
        if pool is not None:
            assumed.update(_write_pages(context, pool, batch))
        for name in SCALES:
            scale = context.tensor(name)
            if scale is not None and scale.dtype.is_floating_point:
                fill.uniform(scale, context.generator, 0.5, 1.5)
        summary = f"{int((batch.query > 0).sum())} sequences, {int(batch.query.sum())} new tokens"
        return InitReport(
            summary=f"{summary}, {int(batch.kv.sum())} seen",
            assumed=assumed,
            lengths=batch.lengths() if UNIFIED in context.op else None,
        )


class CacheSlotsInit(LengthRule):
    """Assigns each new token its own cache slot, in blocks listed by the block tables of the same batch."""

    name = "cache_slots"

    def initialize(self, context: InitContext) -> InitReport:
        tensors = ((name, context.tensor(name)) for name in ("slot_mapping", "slot_indices", "indices", "out_loc"))
        name, slots = next(((n, t) for n, t in tensors if t is not None), ("", None))
        pool = find_pool(context)
        if slots is None or pool is None:
            raise InitializerError(f"{context.op} has no slots or no cache among its arguments")
        count = slots.numel()
        tokens = pool.blocks * pool.page
        drawn, assumed = None, "random distinct slots"
        if context.batch is not None and count:
            total = context.batch.prefill_sequences + context.batch.decode_sequences
            batch = make_batch(
                context.batch,
                Room(sequences=total, tokens=count, longest=tokens),
                distribution=length_distribution(context),
                generator=shared_generator(context, "lengths"),
            )
            if int(batch.kv.sum()) <= tokens:
                drawn = slots_of(batch, pool, shared_generator(context, pool.key))
                assumed = "slots from the batch's block tables"
        if drawn is None:
            order = torch.randperm(tokens, generator=shared_generator(context, pool.key))
            drawn = order[torch.arange(min(count, tokens))]
        values = torch.full((count,), -1, dtype=torch.int64)
        if "sgl" in context.op.partition("::")[0]:
            # There is no negative slot here: padding goes to slot 0, which SGLang keeps for it.
            values.zero_()
        values[: len(drawn)] = drawn[:count]
        fill.assign(slots, values.reshape(slots.shape))
        return InitReport(summary=f"{len(drawn)} of {tokens} slots written", assumed={name: assumed})


def _sequences(context: InitContext) -> int | None:
    """Return the number of sequences according to the arguments; None if no argument gives it."""
    for name in (*CUMULATIVE_NEW, *CUMULATIVE_SEEN, "kv_indptr"):
        if (edges := context.tensor(name)) is not None and edges.numel():
            return edges.numel() - 1
    for name in (*SEEN, *TABLES):
        if (rows := context.tensor(name)) is not None and rows.dim():
            return rows.shape[0]
    return None


def _room(context: InitContext, pool: Pool | None) -> Room:
    query = context.first(QUERY, elements=True, dims=1)
    rows = query.shape[0] if query is not None else None
    sequences = _sequences(context)
    if sequences is None:
        return _room_of_layer(context, rows or 1)
    packed = context.first(CUMULATIVE_NEW, elements=True, dims=1) is not None
    keys = context.first(("k", "key"), elements=True, dims=1)
    limits = [value for name in LONGEST if isinstance(value := context.args.get(name), int) and value > 0]
    limits += _limits(context, pool, keys, packed=packed)
    together = pool is None and keys is not None and rows == keys.shape[0]
    return Room(
        sequences=sequences,
        tokens=rows if packed else None,
        longest=max(1, min(limits, default=rows or 1)),
        cached=not together,
    )


def _room_of_layer(context: InitContext, rows: int) -> Room:
    """Return the limits for ops without length arguments. The recorded batch gives the number of sequences."""
    batch = context.batch
    if batch is None:
        return Room(sequences=1, tokens=rows, longest=rows, cached=False, hidden=True)
    known = [k for k in (batch.prefill_seen, batch.decode_seen) if k is not None]
    sequences = max(1, batch.prefill_sequences + batch.decode_sequences)
    longest = max(rows, *known, 1)
    return Room(sequences=sequences, tokens=rows, longest=longest, cached=bool(known), hidden=not known)


def _limits(context: InitContext, pool: Pool | None, keys: torch.Tensor | None, *, packed: bool) -> list[int]:
    """Return upper bounds on the number of tokens per sequence, one for each shape that limits it."""
    limits: list[int] = []
    if pool is not None:
        limits.append(pool.blocks * pool.page)
        if (table := context.first(TABLES, elements=True, dims=1)) is not None and table.dim() == 2:
            limits.append(table.shape[1] * pool.page)
        if (pages := context.first(("kv_page_indices",), elements=True, dims=1)) is not None:
            limits.append(pages.numel() * pool.page)
    elif keys is not None:
        limits.append(keys.shape[0] if packed else keys.shape[1] if keys.dim() > 1 else 1)
    elif (gathered := context.tensor("dst")) is not None:
        limits.append(extent(gathered))
    return limits


def _recorded_lengths(context: InitContext, count: int) -> torch.Tensor | None:
    """Return int64 [count] context lengths that the trace records as a list of numbers; None if no valid list
    exists.
    """
    said = context.args.get("actual_seq_lengths_kv")
    if said is None and context.op == "npu::npu_incre_flash_attention":
        said = context.args.get("actual_seq_lengths")
    listed = cast("Sequence[object]", said) if isinstance(said, (list, tuple)) else ()
    sound = len(listed) == count > 0 and all(isinstance(n, int) and 0 <= n < 1 << 31 for n in listed)
    return torch.tensor(listed, dtype=torch.int64) if sound else None


def _fitted(context: InitContext, pool: Pool | None, batch: Batch) -> Batch:
    """Return the batch with lengths that fit the arguments.

    Context lengths recorded as a list are kept. If other lengths do not fit the tokens or pages in the arguments, these
    tokens or pages are split evenly over the sequences.
    """
    if (recorded := _recorded_lengths(context, len(batch.kv))) is not None:
        return Batch(query=batch.query, kv=recorded, assumed="lengths as recorded")
    keys, pages = (
        context.first(("k", "key"), elements=True, dims=1),
        context.first(("kv_page_indices",), elements=True, dims=1),
    )
    kv = batch.kv
    if pool is not None and pages is not None:
        capacity = pages.numel()
        wanted = int(((kv + pool.page - 1) // pool.page).sum())
        kv = kv if wanted <= capacity else fill.even_cuts(len(kv), capacity).diff() * pool.page
    elif pool is None and context.first(CUMULATIVE_SEEN, elements=True, dims=1) is not None:
        whole = keys if keys is not None else context.tensor("dst")
        alike = bool((kv == batch.query).all())
        capacity = whole.shape[0] if whole is not None else int(kv.sum())
        kv = (
            kv
            if int(kv.sum()) == capacity or (alike and int(kv.sum()) < capacity)
            else fill.even_cuts(len(kv), capacity).diff()
        )
    if kv is batch.kv:
        return batch
    return Batch(
        query=batch.query, kv=kv, assumed=f"{batch.assumed}; keys split evenly over the sequences of the arguments"
    )


def _write_lengths(context: InitContext, batch: Batch) -> list[str]:
    """Fill every argument that holds lengths or cumulative lengths; return the names of these arguments."""
    filled: list[str] = []
    values: dict[str, torch.Tensor] = {}
    for names, lengths in ((CUMULATIVE_NEW, batch.query), (CUMULATIVE_SEEN, batch.kv)):
        values.update(dict.fromkeys(names, fill.edges_of(lengths)))
    values.update(dict.fromkeys(SEEN, batch.kv))
    values["seqused_q"] = batch.query
    for name in ("leftpad_k", "seq_starts"):
        values[name] = torch.zeros_like(batch.kv)
    for name, numbers in values.items():
        target = context.tensor(name)
        if target is not None and target.numel() == len(numbers):
            fill.assign(target, numbers.reshape(target.shape))
            filled.append(name)
    return filled


def _write_table(table: torch.Tensor, counts: torch.Tensor, pages: torch.Tensor) -> None:
    """Write the pages of sequence i to the first counts[i] entries of row i, or as many as fit."""
    width = table.shape[1]
    named = counts.clamp(max=width).numpy()
    values = torch.zeros(table.numel(), dtype=table.dtype)
    into = consecutive(np.arange(len(named)) * width, named)
    values.numpy()[into] = pages.numpy()[consecutive((counts.cumsum(0) - counts).numpy(), named)]
    fill.assign(table, values.view(table.shape))


def _write_list(
    context: InitContext, listed: torch.Tensor, edges: torch.Tensor, counts: torch.Tensor, pages: torch.Tensor
) -> None:
    """Write the pages of all sequences one after another to `listed`, and the offset of each sequence to `edges`.

    Raises InitializerError if the pages do not fit.
    """
    if len(pages) > listed.numel():
        raise InitializerError(
            f"{context.op}: {len(pages)} pages do not fit into kv_page_indices, which has {listed.numel()} elements"
        )
    values = torch.zeros(listed.numel(), dtype=torch.int64)
    values[: len(pages)] = pages
    fill.assign(listed, values)
    fill.assign(edges, fill.edges_of(counts))


def _write_pages(context: InitContext, pool: Pool, batch: Batch) -> dict[str, str]:
    """Fill the block tables or page lists of the op; return the assumptions."""
    counts = (batch.kv + pool.page - 1) // pool.page
    total = int(counts.sum())
    pages = page_list(pool, total, shared_generator(context, pool.key))
    shared = f", each used {-(-total // pool.blocks)} times" if total > pool.blocks else ""
    said = f"{min(total, pool.blocks)} of {pool.blocks} blocks in random order{shared}"
    assumed: dict[str, str] = {}
    for name in TABLES:
        table = context.tensor(name)
        if table is None or tuple(table.shape[:-1]) != (len(counts),):
            continue
        if not fill.is_integer(table.dtype):
            raise InitializerError(f"{context.op}: {name} does not contain integers")
        _write_table(table, counts, pages)
        assumed[name] = said
    listed, edges = context.tensor("kv_page_indices"), context.tensor("kv_indptr")
    if listed is not None and edges is not None:
        _write_list(context, listed, edges, counts, pages)
        assumed["kv_page_indices"] = said
        assumed["kv_indptr"] = "pages of the sequences"
    if (last := context.tensor("kv_last_page_lens")) is not None and last.numel() == len(counts):
        fill.assign(last, torch.where(batch.kv > 0, (batch.kv - 1) % pool.page + 1, 0))
    return assumed


INITIALIZERS = (PagedAttentionInit, CacheSlotsInit)
