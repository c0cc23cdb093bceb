# pyright: strict
"""Time of fused attention: products on the cube cores, overlapping with softmax on the vector cores."""

from __future__ import annotations

from math import ceil, prod
from typing import NamedTuple

from opreplay.replay.ascend.cost.cube import mac_rate
from opreplay.replay.ascend.cost.sizes import total_bytes
from opreplay.replay.ascend.cost.vector import resident_share
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost
from opreplay.replay.ir.kernel import KernelCall, TensorSpec

COMPRESSED_MASK = (2048, 2048)
"""Shape of the mask that means "causal" for any sequence length (sparse mode 2 and above of the CANN kernels)."""


INFERENCE = "InferAttention"
"""The family of attention kernels that read a KV cache."""
MASKS = frozenset({"bool", "uint8", "int8"})
"""Dtypes that identify an input as an attention mask."""

KEYS_OF_A_CORE = 4096
"""Maximum number of keys that one core processes for a block of queries in inference kernels.

Longer contexts are split over more cores (flash decoding). The value is the longest measured context. The splitting is
assumed: MindIE processes two sequences of 65,536 in the time that moving their bytes takes.
"""
USUAL_LENGTH = 4096
"""Sequence length and context length assumed if the shapes do not give them."""


class Scores(NamedTuple):
    """Size of the score matrix of an attention call."""

    pairs: float
    """Number of query-key pairs that are computed, over all batches and heads."""
    head_dim: int
    value_dim: int
    rows: float
    """Number of query rows, over all batches and heads."""
    dtype: str
    moved: float
    """Bytes of queries, keys, values and outputs, each read or written once."""


def _number(call: KernelCall, key: str) -> float | None:
    value = call.attrs.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def scores_of(call: KernelCall) -> Scores | None:
    """Return the size of a call's score matrix.

    It comes from attrs (`batch`, `heads`, `q_len`, `kv_len`, `head_dim`, `causal`, `pairs`) or, if these are missing,
    from shapes. Shapes alone are ambiguous. Training kernels have softmax statistics, (B, heads, S, 8) or (T, heads,
    8), which give heads and length for every layout (SBH, BSH, BNSD, BSND, TND). Without statistics, (T, heads, D) is
    read as packed sequences of USUAL_LENGTH. A square mask is read as causal.
    """
    if not call.inputs or call.inputs[0] is None:
        return None
    query = call.inputs[0]
    key = call.inputs[1] if len(call.inputs) > 1 and call.inputs[1] is not None else query
    moved = total_bytes(call.inputs[:1]) + (total_bytes(call.outputs) or total_bytes(call.inputs[:1]))
    cached = total_bytes(call.inputs[1:3])
    if key.shape[:1] == query.shape[:1]:  # keys of the queries' own sequences: all are read
        moved += cached
    else:  # of a cache only the context of the queries' sequences is read
        tokens = max(1, prod(key.shape[:-1]))
        sequences = query.shape[0] if query.shape else 1
        moved += min(cached, cached * sequences * USUAL_LENGTH // tokens)
    pairs, rows = _number(call, "pairs"), _number(call, "rows")
    head = int(_number(call, "head_dim") or 0)
    if pairs is None or rows is None or not head:
        guess = _from_shapes(call, query, key)
        if guess is None:
            return None
        pairs, rows, head = guess
    value = int(_number(call, "value_dim") or head)
    return Scores(pairs, head, value, rows, query.dtype, _number(call, "moved_bytes") or moved)


def _is_causal(call: KernelCall, queries: float, keys: float) -> bool:
    """Check whether a call has a causal mask.

    The compressed mask counts as causal. So does a full square mask over equal lengths, because networks rarely use one
    for anything else.
    """
    for spec in call.inputs[3:]:
        if spec is None or len(spec.shape) < 2 or spec.dtype not in MASKS:
            continue
        if spec.shape[-2:] == COMPRESSED_MASK or (queries == keys > 1 and spec.shape[-2:] == (queries, keys)):
            return True
    # Where masks are recorded with another dtype, their shape is all there is.
    return any(s is not None and s.shape[-2:] == COMPRESSED_MASK for s in call.inputs)


def _statistics(call: KernelCall) -> TensorSpec | None:
    """Return the spec of the softmax maxima and sums that training kernels have; None if there is none.

    Its shape is (B, heads, S, 8), or (T, heads, 8) for packed sequences.
    """
    specs = call.inputs[3:] + call.outputs
    return next((s for s in specs if s is not None and len(s.shape) in (3, 4) and s.shape[-1] == 8), None)


def _from_shapes(call: KernelCall, query: TensorSpec, key: TensorSpec) -> tuple[float, float, int] | None:
    """Return (pairs, rows, head size) derived from shapes."""
    stats, rank = _statistics(call), len(query.shape)
    if stats is not None and len(stats.shape) == 4 and min(stats.shape) > 0:
        return _of_statistics(call, query, key, stats.shape)
    if rank == 3:
        has_statistics = stats is not None and len(stats.shape) == 3 and query.shape[:2] == stats.shape[:2]
        return _of_packed(call, query, key, has_statistics=has_statistics)
    return _of_batch(call, query, key) if rank == 4 else None


def _of_statistics(
    call: KernelCall, query: TensorSpec, key: TensorSpec, shape: tuple[int, ...]
) -> tuple[float, float, int]:
    batch, heads, queries, _ = shape
    head = max(1, prod(query.shape) // (batch * heads * queries))
    keys = _keys(query, key, batch, queries)
    pairs = batch * heads * queries * keys
    return pairs * (0.5 if _is_causal(call, queries, keys) else 1.0), float(batch * heads * queries), head


def _of_packed(
    call: KernelCall, query: TensorSpec, key: TensorSpec, *, has_statistics: bool
) -> tuple[float, float, int]:
    """Return (pairs, rows, head size) for packed sequences (layout TND).

    How the tokens are split into sequences depends on values that are unknown. The longest sequence is therefore
    assumed to have USUAL_LENGTH tokens.
    """
    tokens, heads, dim = query.shape
    longest = min(tokens, USUAL_LENGTH)
    if has_statistics:
        share = 0.5 if any(s is not None and s.dtype in MASKS for s in call.inputs[3:]) else 1.0
        return tokens * heads * longest * share, float(tokens * heads), dim
    paged = len(key.shape) == 3 and key.shape[0] != tokens
    return tokens * heads * (USUAL_LENGTH if paged else longest / 2), float(tokens * heads), dim


def _of_batch(call: KernelCall, query: TensorSpec, key: TensorSpec) -> tuple[float, float, int]:
    batch, heads, queries, dim = query.shape
    rank = len(key.shape)
    of_batch = rank == 4 and key.shape[0] == batch
    cached = prod(key.shape[:-1]) if rank >= 3 else queries
    keys = key.shape[2] if of_batch else min(cached, USUAL_LENGTH)
    if of_batch and key.shape[1] != heads and key.shape[2] == heads:
        # BSND: the heads are third.
        queries, heads, keys = heads, queries, key.shape[1]
    share = 0.5 if _is_causal(call, queries, keys) else 1.0
    return float(batch * heads * queries * keys) * share, float(batch * heads * queries), dim


def _keys(query: TensorSpec, key: TensorSpec, batch: int, queries: int) -> int:
    """Return the number of keys per sequence. The position of `queries` in the shape shows the layout (SBH, BSH, BNSD,
    BSND).
    """
    if len(key.shape) == 3 and len(query.shape) == 3:
        if query.shape[:2] == (queries, batch) and (queries != batch or key.shape[1] == batch):
            return key.shape[0]
        return key.shape[1] if query.shape[:2] == (batch, queries) else max(1, prod(key.shape[:2]) // batch)
    if len(key.shape) == 4 and len(query.shape) == 4:
        return key.shape[2] if query.shape[2] == queries else key.shape[1]
    return queries


def attention_terms(
    call: KernelCall, family: FamilyCost, device: DeviceProfile, resident: float | None = None
) -> dict[str, float]:
    """Return the cost terms of fused attention in microseconds.

    `family.cycles` is the number of cycles per score element on a vector core. `family.row_cycles` is the number per
    query row. `family.half_ratio` is half the number of matrix products that read or write a matrix of the score
    matrix's size. The forward pass has 2 such products.
    """
    scores = scores_of(call)
    rates, freq = device.rates, device.freq_hz
    if scores is None:
        moved, pairs, rows, macs = float(total_bytes(call.inputs) + total_bytes(call.outputs)), 0.0, 0.0, 0.0
    else:
        moved, pairs, rows = scores.moved, scores.pairs, scores.rows
        macs = pairs * (scores.head_dim + scores.value_dim) * family.half_ratio
    tasks = max(1.0, rows / 128)
    if family.name == INFERENCE:
        tasks *= max(1.0, pairs / max(1.0, rows) / KEYS_OF_A_CORE)
    spread = ceil(tasks / device.aic_cores) / tasks
    vector = pairs * family.cycles * spread * (device.aic_cores / device.aiv_cores)
    vector += rows * family.row_cycles * spread * (device.aic_cores / device.aiv_cores)
    dtype = scores.dtype if scores is not None else "float16"
    cube = macs * spread / (mac_rate(dtype, device, False) * rates.mac_efficiency)
    if resident is None:
        resident = resident_share(moved, device)
    far = moved * (1 - resident) / (device.hbm_bytes_per_s * rates.hbm_cube_efficiency)
    near = moved * resident / (device.aiv_cores * rates.l2_bytes_per_cycle * freq)
    p = rates.overlap_p
    parts = {"vector": vector / freq * 1e6, "cube": cube / freq * 1e6, "hbm": far * 1e6, "l2": near * 1e6}
    norm = sum(v**p for v in parts.values())
    share = norm ** (1 / p) / norm if norm > 0 else 0.0
    return {"launch": rates.mix_launch_us + family.fixed_us, **{k: v**p * share for k, v in parts.items()}}
