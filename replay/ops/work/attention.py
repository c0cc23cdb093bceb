"""Work of attention over packed and paged sequences: query tokens, context tokens, (query, key) pairs and pages
read.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from opreplay.initializers.amounts import Amount, Work, work
from opreplay.initializers.base import BatchLengths, InitContext
from opreplay.initializers.draws import argument_names as names
from opreplay.initializers.draws.paging import Pool, find_pool
from opreplay.initializers.fill import integer_values
from opreplay.initializers.rules.paged_attention import UNIFIED

CUMULATIVE_NEW = (*names.CUMULATIVE_NEW, "cum_seq_q", "cum_seqlens_q")
CUMULATIVE_SEEN = (*names.CUMULATIVE_SEEN, "cum_seq_k", "cum_seqlens_k", "cu_seq_lens")
LENGTHS_OF_QUERIES = ("actual_seq_lengths", "actual_seq_qlen")
"""Arguments that list query lengths. In packed layouts, each number is the end position of its sequence instead."""
PACKED_LAYOUTS = ("TND", "NTD")


class Sequences(msgspec.Struct, frozen=True):
    """Sequence lengths of a call: int64 [sequences] each, on the CPU."""

    query: torch.Tensor
    """New tokens of each sequence."""
    seen: torch.Tensor
    """Context tokens of each sequence; 0 for a sequence without query tokens."""
    pairs: torch.Tensor
    """Number of (query token, visible context token) pairs of each sequence."""
    most: int | None
    """Maximum context tokens that the arguments can hold for all sequences together, or None if no shape gives it."""
    warnings: tuple[str, ...]


def count_attention(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the context tokens that queries attend to.

    The block tables, page lists or keys give the maximum number of these tokens.
    """
    sequences = sequences_of(context, lengths)
    if sequences is None:
        return None
    amounts = [
        Amount(what="context tokens", done=int(sequences.seen.sum()), most=sequences.most),
        Amount(what="query tokens", done=int(sequences.query[sequences.seen > 0].sum()), most=_query_rows(context)),
        Amount(what="query-context pairs", done=int(sequences.pairs.sum())),
    ]
    warnings = [*sequences.warnings]
    pool = find_pool(context)
    if pool is not None:
        pages, warning = _pages(context, pool, sequences.seen)
        amounts += [] if pages is None else [pages]
        warnings += [] if warning is None else [warning]
    return work(*amounts, warnings=tuple(warnings))


def sequences_of(context: InitContext, lengths: BatchLengths | None) -> Sequences | None:
    """Return the sequences that a call's arguments describe, or None if no argument describes them."""
    pool = find_pool(context)
    seen = _seen(context, pool, lengths)
    if seen is None:
        return None
    query = _query(context, lengths, seen)
    count = min(len(query), len(seen))
    query, seen, warnings = query[:count], seen[:count], list[str]()
    if bool((query < 0).any()) or bool((seen < 0).any()):
        warnings.append("cumulative lengths descend")
        query, seen = query.clamp(min=0), seen.clamp(min=0)
    limit, capacity = _room(context, pool, count)
    if limit is not None and bool((seen > limit).any()):
        warnings.append(f"{int((seen > limit).sum()):,} sequences are longer than the limit of {limit:,} tokens")
        seen = seen.clamp(max=limit)
    seen = torch.where(query > 0, seen, 0)
    pairs = query * seen
    if context.flag("is_causal", context.flag("causal", True)):
        # The last query sees all of the context, each one before it a token less.
        inside = torch.minimum(query, seen)
        pairs = inside * seen - inside * (inside - 1) // 2
    return Sequences(query, seen, pairs, capacity, tuple(warnings))


def _listed(context: InitContext, wanted: tuple[str, ...]) -> torch.Tensor | None:
    """Return lengths given as a list of integers, or None if there is no such list."""
    values = (context.args.get(name) for name in wanted)
    lists = (v for v in values if isinstance(v, (list, tuple)) and v)
    value = next((v for v in lists if all(isinstance(number, int) for number in v)), None)
    return None if value is None else torch.tensor(value, dtype=torch.int64)


def _layout(context: InitContext) -> str:
    said = context.args.get("input_layout")
    return said.partition("_")[0] if isinstance(said, str) and said else "BSH"


def _lengths_of_ends(ends: torch.Tensor) -> torch.Tensor:
    return ends.diff(prepend=ends.new_zeros(1))


def _seen(context: InitContext, pool: Pool | None, lengths: BatchLengths | None) -> torch.Tensor | None:
    """Return the number of tokens that each sequence may attend to, or None if no argument gives it."""
    if lengths is not None:
        return torch.tensor(lengths.kv, dtype=torch.int64)
    if (direct := context.first(names.SEEN, elements=True)) is not None:
        return integer_values(direct)
    wanted = ("actual_seq_lengths_kv", "actual_seq_kvlen")
    if context.op == "npu::npu_incre_flash_attention":
        wanted = (*wanted, "actual_seq_lengths")
    if (listed := _listed(context, wanted)) is not None:
        ends = _layout(context) in PACKED_LAYOUTS and pool is None
        return _lengths_of_ends(listed) if ends else listed
    pages = context.first(("kv_indptr",), elements=True)
    if pool is not None and pages is not None:
        return _tokens_in_pages(
            integer_values(pages).diff(), pool.page, context.first(("kv_last_page_lens",), elements=True)
        )
    edges = context.first((*CUMULATIVE_SEEN, *CUMULATIVE_NEW), elements=True)
    return None if edges is None else integer_values(edges).diff()


def _tokens_in_pages(counts: torch.Tensor, page: int, last: torch.Tensor | None) -> torch.Tensor:
    """Return the number of tokens in the pages of each sequence. The last page may hold fewer than `page` tokens."""
    tokens = counts * page
    if last is None or last.numel() != len(counts):
        return tokens
    return torch.where(counts > 0, tokens - page + integer_values(last), 0)


def _query(context: InitContext, lengths: BatchLengths | None, seen: torch.Tensor) -> torch.Tensor:
    """Return the number of new tokens of each sequence.

    If no argument gives it, the query's tokens are split evenly.
    """
    if lengths is not None:
        return torch.tensor(lengths.query, dtype=torch.int64)
    if (edges := context.first(CUMULATIVE_NEW, elements=True)) is not None:
        return integer_values(edges).diff()
    if (used := context.tensor("seqused_q")) is not None and used.numel():
        return integer_values(used)
    listed = _listed(context, LENGTHS_OF_QUERIES)
    if listed is not None and context.op != "npu::npu_incre_flash_attention":
        return _lengths_of_ends(listed) if _layout(context) in PACKED_LAYOUTS else listed
    rows = _query_rows(context)
    if rows is None:
        # What only gathers a cache has no query: each token that it brings is wanted.
        return seen
    return torch.full((len(seen),), max(1, rows // max(1, len(seen))), dtype=torch.int64)


def _query_rows(context: InitContext) -> int | None:
    """Return the number of query tokens according to the shapes, or None if there is no query."""
    query = context.first(names.QUERY, elements=True)
    if query is None or not query.dim():
        return None
    if query.dim() == 1 or (query.dim() < 4 and "input_layout" not in context.args):
        return query.shape[0]
    if query.dim() == 4:
        return query.shape[0] * query.shape[2 if _layout(context) == "BNSD" else 1]
    layout = _layout(context)
    return query.shape[0] if layout == "TND" else query.shape[1] if layout == "NTD" else query[..., 0].numel()


def _room(context: InitContext, pool: Pool | None, sequences: int) -> tuple[int | None, int | None]:
    """Return the maximum number of tokens of one sequence and of all sequences.

    They come from the shapes and the maximum-length argument.
    """
    table, pages = context.first(names.TABLES, elements=True), context.first(("kv_page_indices",), elements=True)
    said = [v for name in names.LONGEST if isinstance(v := context.args.get(name), int) and v > 0]
    if pool is not None and table is not None and table.dim() == 2:
        longest = min([table.shape[1] * pool.page, *said])
        return longest, sequences * longest
    if pool is not None and pages is not None:
        return None, pages.numel() * pool.page
    return None, None if UNIFIED in context.op else _keys_in_shapes(context)


def _keys_in_shapes(context: InitContext) -> int | None:
    """Return how many tokens the keys, or the buffer into which they are gathered, can hold.

    Returns None without keys.
    """
    for name in ("k", "key", "dst"):
        value: Any = context.args.get(name)
        tensor = value[0] if isinstance(value, (list, tuple)) and value else value
        if isinstance(tensor, torch.Tensor) and tensor.dim() > 1:
            return tensor.shape[0] if tensor.dim() < 4 else tensor.shape[0] * tensor.shape[1]
    return None


def _pages(context: InitContext, pool: Pool, seen: torch.Tensor) -> tuple[Amount | None, str | None]:
    """Return the number of distinct pages of the context, and a warning.

    The warning is None unless pages are invalid or all the same.
    """
    table, listed = context.first(names.TABLES, elements=True), context.first(("kv_page_indices",), elements=True)
    counts_of_pages = (seen + pool.page - 1) // pool.page
    if table is not None and table.dim() == 2:
        rows = table.detach()[: len(seen)].to("cpu", torch.int64)
        named = rows[torch.arange(rows.shape[1]) < counts_of_pages[: len(rows)].unsqueeze(1)]
    elif listed is not None:
        named = integer_values(listed)[: int(counts_of_pages.sum())]
    else:
        return None, None
    distinct = int(torch.unique(named).numel())
    wrong = int(((named < 0) | (named >= pool.blocks)).sum())
    warning = None
    if wrong:
        warning = f"{wrong:,} page numbers are outside the cache of {pool.blocks:,} pages"
    elif distinct == 1 and len(named) > 1 and pool.blocks > 1:
        warning = f"all {len(named):,} pages of the context have the same page number"
    return Amount(what="pages", done=distinct, most=pool.blocks), warning


SLOTS = ("slot_mapping", "slot_indices", "indices")


def count_slots(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the tokens that are written to a slot.

    A token with a negative slot is skipped. In SGLang, tokens with slot 0 are also skipped if several tokens have this
    slot.
    """
    slots = context.first(SLOTS)
    if slots is None:
        return None
    values = integer_values(slots)
    written = values[values >= 0]
    if "sgl" in context.op.partition("::")[0]:
        # All padding goes to the reserved slot; a single token may be meant.
        reserved = written == 0
        written = written[~reserved] if int(reserved.sum()) > 1 else written
    distinct = int(torch.unique(written).numel())
    warnings: list[str] = []
    if len(written) > distinct:
        warnings.append(f"{len(written) - distinct:,} tokens overwrite the slot of another token")
    pool = find_pool(context)
    if pool is not None and len(written) and int(written.max()) >= pool.blocks * pool.page:
        warnings.append(f"a slot number is beyond the {pool.blocks * pool.page:,} slots of the cache")
    return work(
        Amount(what="tokens written to the cache", done=distinct, most=len(values)),
        warnings=tuple(warnings),
        same=True,
    )
