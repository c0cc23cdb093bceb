# pyright: strict
"""Pools that a call reads or writes only in places: KV caches and embedding tables, cut down to what fits.

Owns which arguments are such pools. What lies in a pool is addressed by indices that initializers make from the
tensors' shapes, so that fewer rows stay in range.
"""

from __future__ import annotations

import math

import msgspec

from opreplay.replay.ir.model import Assumption, ReplayArg, ReplayOp
from opreplay.replay.ir.sizes import need_of
from opreplay.traces.dtypes import MASKS
from opreplay.traces.model import TensorMeta

CACHES = frozenset(
    {
        "key_cache",
        "value_cache",
        "k_cache",
        "v_cache",
        "kv_cache",
        "src_cache",
        "kv_c_and_k_pe_cache",
        "kv_buffer",
        "k_buffer",
        "v_buffer",
        "key",
        "value",
        "k",
        "v",
        "K",
        "V",
        "kcache",
        "vcache",
    }
)
"""Names of arguments that are a paged cache where the call also has one of `PLACES`."""
PLACES = (
    "block_tables",
    "block_table",
    "page_table",
    "kv_page_indices",
    "kv_indices",
    "slot_mapping",
    "slot_indices",
    "indices",
    "loc",
    "block_table_tensor",
)
"""Names of arguments that say which blocks or slots of a cache are meant."""
PLACED_OPS = ("cache", "attention", "attn", "varlen", "mla", "mha", "fmha", "pa_fwd", "set_kv_buffer", "fwd")
"""Parts of the names of ops on paged caches; `key` and `indices` mean other things elsewhere."""
TABLES: dict[str, tuple[str, str]] = {
    "aten::embedding": ("weight", "indices"),
    "aten::embedding_bag": ("weight", "indices"),
    "aten::_embedding_bag": ("weight", "indices"),
    "aten::_embedding_bag_forward_only": ("weight", "indices"),
    "aten::index_select": ("self", "index"),
    "aten::gather": ("self", "index"),
    "aten::index_copy_": ("self", "index"),
    "aten::index_add_": ("self", "index"),
    "aten::index_fill_": ("self", "index"),
    "aten::index": ("self", "indices"),
    "aten::index_put_": ("self", "indices"),
    "aten::_index_put_impl_": ("self", "indices"),
}
"""Op → the argument that is a table, and the one that says which of its rows are meant."""
BATCHED_TABLES = "_embedding_codegen_"
"""In the names of fbgemm's lookups: `WEIGHTS` hold all tables one after the other, in one dimension."""
WEIGHTS = ("dev_weights", "uvm_weights", "host_weights", "weights")
MAX_DIM_OF_STACK = 2
"""A cache [2, blocks, ...] holds keys and values behind each other."""


def with_smaller_pools(op: ReplayOp, limit_bytes: int) -> tuple[ReplayOp, tuple[Assumption, ...]]:
    """The op with fewer rows in its pools so that it needs `limit_bytes` at most, and a note for each; else as is.

    All pools of a call keep the same number of rows. There are at least as many as the call names at once (for caches:
    as it has sequences; the initializer says how often a block is used when tables name more).
    """
    pools = pools_of(op)
    if not pools:
        return op, ()
    rows = min(_meta(op, name).shape[dim] for name, dim in pools.items())
    low, high = _rows_needed(op), rows
    if low >= rows or need_of(_cut(op, pools, low)).total > limit_bytes:
        return op, ()
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if need_of(_cut(op, pools, middle)).total <= limit_bytes else (low, middle)
    notes = tuple(
        Assumption(argument=name, what=f"{low} of {_meta(op, name).shape[dim]} rows: the call addresses few of them")
        for name, dim in pools.items()
    )
    return _cut(op, pools, low), notes


def pools_of(op: ReplayOp) -> dict[str, int]:
    """Name of each pool → the dimension that counts its rows."""
    tensors = {arg.name: arg.tensors[0] for arg in op.args if arg.type == "Tensor" and arg.tensors}
    table = TABLES.get(op.name)
    if table is not None:
        return _table(op, *table)
    if BATCHED_TABLES in op.name:
        sizes = [meta.shape[0] for name in WEIGHTS if (meta := tensors.get(name)) is not None and len(meta.shape) == 1]
        # A full optimizer state is as large as the weights.
        return {name: 0 for name, meta in tensors.items() if meta and sizes and meta.shape == (max(sizes),)}
    short = op.name.partition("::")[2].lower()
    named = any(tensors.get(name) is not None for name in PLACES)
    if not named or not any(word in short for word in PLACED_OPS):
        return {}
    caches = {
        name: _block_dim(meta) for name, meta in tensors.items() if name in CACHES and meta and len(meta.shape) > 1
    }
    if not caches:
        return {}
    rows = {_meta(op, name).shape[dim] for name, dim in caches.items()}
    largest = max(rows)
    caches = {name: dim for name, dim in caches.items() if _meta(op, name).shape[dim] == largest}
    scales = {
        name: 0
        for name, meta in tensors.items()
        if meta and "scale" in name.lower() and meta.shape and meta.shape[0] == largest
    }
    return {**caches, **scales}


def _table(op: ReplayOp, table: str, indices: str) -> dict[str, int]:
    args = {arg.name: arg for arg in op.args}
    if table not in args or indices not in args or not any(args[table].tensors):
        return {}
    dim = args["dim"].value if "dim" in args else 0
    listed = args[indices].tensors
    if args[indices].type == "Tensor[]":
        # Only the first indexed dimension is cut; a mask must stay as large as what it masks.
        dim = next((i for i, meta in enumerate(listed) if meta is not None), None)
        if dim is None or any(meta is not None and meta.dtype in MASKS for meta in listed):
            return {}
    rank = len(_meta(op, table).shape)
    if not isinstance(dim, int) or not -rank <= dim < rank:
        return {}
    return {table: dim % rank}


def _block_dim(meta: TensorMeta) -> int:
    return 1 if len(meta.shape) > 3 and meta.shape[0] == MAX_DIM_OF_STACK else 0


def _rows_needed(op: ReplayOp) -> int:
    """The least number of rows that leaves the call what it was."""
    args = {arg.name: arg for arg in op.args}
    table = TABLES.get(op.name)
    if table is not None:
        if op.name == "aten::gather":
            # One index for each column: no more rows than the index has.
            index, dim = args[table[1]].tensors[0], args["dim"].value
            return index.shape[dim] if index is not None and index.shape and isinstance(dim, int) else 1
        wanted = (meta for meta in args[table[1]].tensors if meta is not None)
        padding = args["padding_idx"].value if "padding_idx" in args else -1
        last = padding + 1 if isinstance(padding, int) else 1
        return max(1, last, *(math.prod(meta.shape) for meta in wanted))
    counts = [1]
    if BATCHED_TABLES in op.name and isinstance(total := args["total_D"].value if "total_D" in args else None, int):
        counts.append(total)
    for name in PLACES if BATCHED_TABLES not in op.name else ():
        meta = args[name].tensors[0] if name in args and args[name].tensors else None
        if meta is not None and meta.shape:
            counts.append(meta.shape[0])
    return max(counts)


def _cut(op: ReplayOp, pools: dict[str, int], rows: int) -> ReplayOp:
    args = tuple(_cut_argument(arg, pools[arg.name], rows) if arg.name in pools else arg for arg in op.args)
    return msgspec.structs.replace(op, args=args, outputs=_outputs(op, pools))


def _cut_argument(arg: ReplayArg, dim: int, rows: int) -> ReplayArg:
    meta = arg.tensors[0]
    assert meta is not None
    shape = tuple(min(rows, n) if i == dim else n for i, n in enumerate(meta.shape))
    strides = meta.strides
    if strides is not None and strides[dim] < max(strides):
        strides = dense_strides(shape, strides)
    # A memory of its own: where it begins in the recorded one, and what else lies there, is as large as that.
    cut = msgspec.structs.replace(meta, shape=shape, strides=strides, storage_offset=0, storage=None)
    return msgspec.structs.replace(arg, tensors=(cut,))


def dense_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides without gaps that keep the order of dimensions in memory; a stride of 0 stays one."""
    dense = [0] * len(shape)
    step = 1
    for dim in sorted(range(len(shape)), key=lambda d: (strides[d], -d)):
        if strides[dim]:
            dense[dim] = step
            step *= max(1, shape[dim])
    return tuple(dense)


def _outputs(op: ReplayOp, pools: dict[str, int]) -> tuple[TensorMeta | None, ...] | None:
    """Results of an op that gives back a pool itself are as small as that: not counted twice."""
    if op.outputs is None:
        return None
    whole = {_meta(op, name).shape for name in pools if any(a.name == name and a.mutated for a in op.args)}
    return tuple(None if meta is not None and meta.shape in whole else meta for meta in op.outputs)


def _meta(op: ReplayOp, name: str) -> TensorMeta:
    meta = next(arg.tensors[0] for arg in op.args if arg.name == name)
    assert meta is not None
    return meta
