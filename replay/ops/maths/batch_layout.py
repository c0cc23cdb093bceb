# pyright: strict
"""Lengths of the sequences in a batch, for ops whose arguments do not contain them (`vllm::unified_attention*`).

A caller that knows the lengths sets them for the time of a call. The op reads them here.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec


class BatchLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences packed into one batch: sequence i has query_lens[i] new tokens and attends to kv_lens[i] tokens in
    total.
    """

    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.query_lens) != len(self.kv_lens):
            raise ValueError(f"{len(self.query_lens)} query lengths but {len(self.kv_lens)} key lengths")
        if any(q < 0 or q > k for q, k in zip(self.query_lens, self.kv_lens, strict=True)):
            raise ValueError("a sequence needs 0 <= new tokens <= total tokens")


_current: ContextVar[BatchLayout | None] = ContextVar("opreplay_batch_layout", default=None)


@contextmanager
def batch_layout(layout: BatchLayout) -> Generator[None, None, None]:
    """Let ops of this package that need a batch's lengths read them from `layout` within this context."""
    token = _current.set(layout)
    try:
        yield
    finally:
        _current.reset(token)


def set_layout(layout: BatchLayout) -> None:
    """Set the layout for the rest of the current `contextvars` context."""
    _current.set(layout)


def current_layout(tokens: int) -> BatchLayout:
    """Return the current layout, or one causal sequence of all `tokens`. Raises ValueError if the layout has more
    tokens.
    """
    layout = _current.get()
    if layout is None:
        return BatchLayout(query_lens=(tokens,), kv_lens=(tokens,))
    if sum(layout.query_lens) > tokens:
        raise ValueError(f"the batch layout has {sum(layout.query_lens)} tokens, but the call has {tokens}")
    return layout
