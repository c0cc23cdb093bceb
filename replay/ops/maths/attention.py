"""Mathematics of attention over packed and paged sequences; no ops are declared here.

Sequences are processed one at a time, so the longest sequence bounds the memory. There is no loop over tokens. Where
scores are stored, they are computed in blocks of query rows of at most SCORE_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

SCORE_BYTES = 64 * 2**20
"""Maximum bytes of float32 attention scores that exist at a time."""


class Rules(NamedTuple):
    """Options of softmax(q kᵀ · scale) v; the same for all sequences of a call."""

    scale: float
    causal: bool = False
    """Whether to mask causally, with the last query aligned to the last key (bottom-right), as in flash-attention."""
    window: tuple[int, int] = (-1, -1)
    """Numbers of visible keys left and right of the aligned diagonal; −1 is unlimited."""
    softcap: float = 0.0
    """If positive, scores = softcap · tanh(scores / softcap)."""
    alibi: Tensor | None = None
    """Slopes [H], added as −slope · distance from the aligned diagonal."""
    sinks: Tensor | None = None
    """One additional softmax logit per head [H], to which no value vector belongs."""


class _Band(NamedTuple):
    """Band of visible keys around the diagonal that ends at the last query and the last key."""

    queries: int
    keys: int
    before: int
    """Number of keys left of the diagonal; −1 is unlimited, as for `after`."""
    after: int

    @classmethod
    def of(cls, queries: int, keys: int, rules: Rules) -> _Band:
        return cls(queries, keys, rules.window[0], 0 if rules.causal else rules.window[1])

    @property
    def shift(self) -> int:
        """Return the index of the key that is on the diagonal in the first query's row."""
        return self.keys - self.queries

    @property
    def limited(self) -> bool:
        return self.before >= 0 or self.after >= 0

    @property
    def full(self) -> bool:
        """Return whether every query sees every key; a single query without a left limit does."""
        return not self.limited or (self.queries == 1 and self.before < 0)

    @property
    def square_and_causal(self) -> bool:
        return self.shift == 0 and self.before < 0 and self.after == 0

    def blocks(self, rows: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (query start, query end, key start, key end) of blocks of `rows` queries.

        Ends are exclusive. Blocks without a visible key are skipped.
        """
        for start in range(0, self.queries, rows):
            stop = min(start + rows, self.queries)
            low = 0 if self.before < 0 else max(0, start + self.shift - self.before)
            high = self.keys if self.after < 0 else max(0, min(self.keys, stop + self.shift + self.after))
            if low < high:
                yield start, stop, low, high

    def visible(self, start: int, stop: int, low: int, high: int, device: torch.device) -> Tensor:
        """Return a mask bool [stop − start, high − low], True where the query row may attend to the key column."""
        diagonal = torch.arange(start + self.shift, stop + self.shift, device=device).unsqueeze(1)
        column = torch.arange(low, high, device=device).unsqueeze(0)
        seen = torch.ones((stop - start, high - low), dtype=torch.bool, device=device)
        if self.after >= 0:
            seen &= column <= diagonal + self.after
        if self.before >= 0:
            seen &= column >= diagonal - self.before
        return seen


Kernel = Literal["spelled out", "flash", "sdpa"]


def _kernel(rules: Rules, device: torch.device, *, need_lse: bool) -> Kernel:
    """Return the method of computing attention.

    Of torch's kernels, only the one for CPUs ("flash") returns usable log-sum-exps.
    """
    sums_wanted = need_lse or rules.sinks is not None
    if rules.softcap > 0 or rules.alibi is not None or (sums_wanted and device.type != "cpu"):
        return "spelled out"
    return "flash" if sums_wanted else "sdpa"


def attend(q: Tensor, k: Tensor, v: Tensor, rules: Rules, *, need_lse: bool = False) -> tuple[Tensor, Tensor | None]:
    """Compute attention of one sequence: q [Sq, H, D], k [Sk, Hkv, D] and v [Sk, Hkv, Dv].

    Returns (out [Sq, H, Dv], log-sum-exp float32 [H, Sq]). The log-sum-exp is None unless requested. Query head h reads
    KV head h // (H / Hkv). Rows without visible keys give zeros and −inf. k and v are converted to q's dtype.
    """
    queries, heads, _ = q.shape
    keys, _, width = v.shape
    out = q.new_zeros((queries, heads, width))
    lse = torch.full((heads, queries), -torch.inf, dtype=torch.float32, device=q.device) if need_lse else None
    if not queries or not keys:
        return out, lse
    q4, k4, v4 = _by_key_head(q, k, v)
    kernel, band = _kernel(rules, q.device, need_lse=need_lse), _Band.of(queries, keys, rules)
    # Square and causal is what torch's own flag means; its kernel leaves out what is hidden.
    by_flag = kernel == "sdpa" and band.square_and_causal
    whole = by_flag or band.full
    rows = _rows_at_a_time(heads, keys, queries, masked=not whole, explicit=kernel == "spelled out")
    for start, stop, low, high in band.blocks(rows):
        visible = None if whole else band.visible(start, stop, low, high, q.device)
        block = (q4[:, :, start:stop], k4[:, :, low:high], v4[:, :, low:high])
        result, sums = _attend_block(kernel, block, visible, rules, (start + band.shift, low), causal=by_flag)
        out[start:stop] = result.permute(2, 0, 1, 3).flatten(1, 2)
        if lse is not None and sums is not None:
            lse[:, start:stop] = sums.flatten(0, 1)
    return out, lse


def _by_key_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v as [Hkv, group, S, D]. The key head of a group is expanded without a copy."""
    heads, kv_heads = q.shape[1], v.shape[1]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads do not divide into {kv_heads} key heads")
    group = heads // kv_heads
    k4, v4 = (x.to(q.dtype).permute(1, 0, 2).unsqueeze(1).expand(-1, group, -1, -1) for x in (k, v))
    return q.unflatten(1, (kv_heads, group)).permute(1, 2, 0, 3), k4, v4


def _attend_block(
    kernel: Kernel,
    block: tuple[Tensor, Tensor, Tensor],
    visible: Tensor | None,
    rules: Rules,
    origin: tuple[int, int],
    *,
    causal: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention of a block of queries.

    Returns (out [Hkv, group, rows, Dv], log-sum-exp). The log-sum-exp is None if the kernel returns none.
    """
    if kernel == "sdpa":
        return _sdpa(*block, visible, rules.scale, causal=causal), None
    if kernel == "flash":
        result, sums = _cpu_flash(*block, visible, rules.scale)
    else:
        result, sums = _softmax_block(*block, visible, rules, origin)
    return (result, sums) if rules.sinks is None else _with_sinks(result, sums, rules.sinks)


def row_maxima(q: Tensor, k: Tensor, rules: Rules) -> Tensor:
    """Return the largest visible score of each row, float32 [H, Sq], which a softmax subtracts.

    A row without visible keys gives −inf. q is [Sq, H, D] and k [Sk, Hkv, D]. Only scale, causal and window of `rules`
    are used.
    """
    queries, heads, _ = q.shape
    keys, kv_heads, _ = k.shape
    maxima = torch.full((heads, queries), -torch.inf, dtype=torch.float32, device=q.device)
    if not queries or not keys:
        return maxima
    k3 = k.float().transpose(0, 1).repeat_interleave(heads // kv_heads, 0).transpose(1, 2)
    band = _Band.of(queries, keys, rules)
    for start, stop, _, _ in band.blocks(_rows_at_a_time(heads, keys, queries, masked=True, explicit=True)):
        scores = q[start:stop].float().transpose(0, 1) @ k3 * rules.scale
        if band.limited:
            scores = scores.masked_fill(~band.visible(start, stop, 0, keys, q.device), -torch.inf)
        maxima[:, start:stop] = scores.amax(-1)
    return maxima


def attend_packed(
    q: Tensor,
    keys_values: Sequence[tuple[Tensor, Tensor]],
    query_ends: Sequence[int],
    rules: Rules,
    *,
    need_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention of sequences packed along the first dim of q [T, H, D].

    Returns (out [T, H, Dv], lse [H, T]). query_ends is [0, .., T]. keys_values[i] is (k, v) of sequence i. Tokens after
    the last sequence give zeros.
    """
    width = keys_values[0][1].shape[-1] if keys_values else q.shape[-1]
    out = q.new_zeros((*q.shape[:2], width))
    lse = torch.zeros((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device) if need_lse else None
    for index, (k, v) in enumerate(keys_values):
        start, stop = query_ends[index], query_ends[index + 1]
        part, sums = attend(q[start:stop], k, v, rules, need_lse=need_lse)
        out[start:stop] = part
        if lse is not None and sums is not None:
            lse[:, start:stop] = sums
    return out, lse


def ends(cumulative: Tensor, total: int, name: str) -> list[int]:
    """Return cumulative lengths int [B + 1] as a list. Raises ValueError if they decrease or leave 0 .. `total`."""
    values = cumulative.tolist()
    if values and (values[0] < 0 or values[-1] > total or any(b < a for a, b in pairwise(values))):
        raise ValueError(f"{name} must not decrease and must stay within [0, {total}]")
    return values


def gather_pages(pages: Tensor, table: Tensor, length: int) -> Tensor:
    """Return the first `length` tokens of a sequence from pages [blocks, page, ..], by its row of the block table."""
    page = pages.shape[1]
    return gather_blocks(pages, table, length, page).flatten(0, 1)[:length]


def gather_blocks(pages: Tensor, table: Tensor, length: int, page: int) -> Tensor:
    """Return the blocks, of `page` tokens each, that hold the first `length` tokens of a sequence, in order."""
    if length > table.shape[0] * page:
        raise ValueError(f"{length} tokens do not fit into {table.shape[0]} blocks of {page}")
    wanted = table[: -(-length // page)].to(torch.int64)
    if pages.dtype.itemsize == 1:  # fp8 has no index_select on every device
        return pages.view(torch.uint8).index_select(0, wanted).view(pages.dtype)
    return pages.index_select(0, wanted)


def _rows_at_a_time(heads: int, keys: int, queries: int, *, masked: bool, explicit: bool) -> int:
    if explicit:
        return max(1, min(queries, SCORE_BYTES // (4 * heads * keys)))
    # A mask costs memory and hides work that the kernel could leave out: smaller blocks waste less of it.
    return min(queries, 512) if masked else queries


def _sdpa(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, *, causal: bool) -> Tensor:
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale, is_causal=causal)
    if visible is None:
        return out
    # Rows without any visible key are not defined there.
    return out.masked_fill(~visible.any(-1, keepdim=True), 0.0)


def with_elements_side_by_side(x: Tensor) -> Tensor:
    """Return x with a contiguous last dim, copied if necessary. Otherwise torch's kernel reads wrong elements."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _cpu_flash(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    mask = None
    if visible is not None:
        hidden = torch.zeros(visible.shape, dtype=q.dtype).masked_fill_(~visible, -torch.inf)
        mask = hidden.expand(q.shape[0], q.shape[1], -1, -1)
    q, k, v = (with_elements_side_by_side(x) for x in (q, k, v))
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask, scale=scale)
    if visible is None:
        return out, lse
    blind = ~visible.any(-1)
    return out.masked_fill(blind.unsqueeze(-1), 0.0), lse.masked_fill(blind, -torch.inf)


def _with_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Add one logit per head, `sinks` [H], to the denominator of a finished softmax. `lse` is [Hkv, group, rows]."""
    total = torch.logaddexp(lse, sinks.float().reshape(lse.shape[0], lse.shape[1], 1))
    return (out.float() * torch.exp(lse - total).unsqueeze(-1)).to(out.dtype), total


def _softmax_block(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, rules: Rules, origin: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Compute attention with explicit scores.

    Returns (out like q, log-sum-exp [Hkv, group, rows]). `origin` is (index of the key on the diagonal of the first
    query, index of the first key).
    """
    scores = (q.float() @ k.float().transpose(-1, -2)) * rules.scale
    if rules.softcap > 0:
        scores = rules.softcap * torch.tanh(scores / rules.softcap)
    if rules.alibi is not None:
        row = torch.arange(scores.shape[-2], device=q.device).unsqueeze(1) + origin[0]
        column = torch.arange(scores.shape[-1], device=q.device) + origin[1]
        slopes = rules.alibi.float().reshape(q.shape[0], q.shape[1], 1, 1)
        scores = scores - slopes * (row - column).abs()
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    # −inf − −inf is no number; such a row sees nothing.
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1))
    return (weights @ v.float()).to(q.dtype), lse
