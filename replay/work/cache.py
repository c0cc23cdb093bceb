"""Work of ops that write new tokens into a paged cache: the slots that they really write."""

from __future__ import annotations

import torch

from opreplay.initializers.base import BatchLengths, InitContext
from opreplay.initializers.paged_attention import CacheSlotsInit
from opreplay.initializers.paging import find_pool
from opreplay.replay.work.amounts import Amount, Work, work
from opreplay.replay.work.registry import counts

SLOTS = ("slot_mapping", "slot_indices", "indices")


@counts(*CacheSlotsInit.op_patterns)
def count_slots(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Tokens that get a slot of their own; a negative slot, or SGLang's slot 0, skips the token."""
    slots = next((t for name in SLOTS if (t := context.tensor(name)) is not None), None)
    if slots is None:
        return None
    values = slots.detach().reshape(-1).to("cpu", torch.int64)
    written = values[values >= 0]
    if "sgl" in context.op.partition("::")[0]:
        # All padding goes to the reserved slot; a single token may be meant.
        reserved = written == 0
        written = written[~reserved] if int(reserved.sum()) > 1 else written
    distinct = int(torch.unique(written).numel())
    warnings = []
    if len(written) > distinct:
        warnings.append(f"{len(written) - distinct:,} tokens overwrite another's slot")
    pool = find_pool(context)
    if pool is not None and len(written) and int(written.max()) >= pool.blocks * pool.page:
        warnings.append(f"a slot lies beyond the {pool.blocks * pool.page:,} of the cache")
    return work(
        Amount(what="tokens written to the cache", done=distinct, most=len(values)),
        warnings=tuple(warnings), same=True,
    )  # fmt: skip
